"""What goes where the outbox is full, and what stays to the end.

Norms by layer go first, then samples, the oldest first and those around whatever stood out last.
Where that is not enough, word of snapshots and skipped batches goes, which the run's directory has
anyway. What an attempt cannot be understood without stays: commands' results, segments, its
beginning and its end. Whatever goes is counted, and declared where it is a sample.

Invariants
- Pure. What is gone has one frame in its place, so records and samples can be counted on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, MutableSequence, Sequence
from enum import IntEnum

from spikeguard_protocol import Samples, Signal
from spikeguard_protocol.frames import Frame, Kind

BEFORE, AFTER = 50, 100  # samples around one that stood out
STANDS_OUT = 8.0  # usual distances from the usual loss: coarse, for the server judges it later
WARM_UP = 20  # samples before a loss can stand out
_PACE = 0.05  # at which what is usual follows the losses
_FLOOR = 1e-3  # of the usual loss, where a flat one has no distances
_JUDGED = (Signal.LOSS.value, Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value)
_WORDS = {Kind.DETAIL: "layer norms", Kind.SAMPLE: "samples", Kind.NEWS: "notices"}


Stretch = tuple[int, int]  # first and last sample, each as how many came before it


class Level(IntEnum):
    """How far a message was thinned."""

    WHOLE = 0
    NO_DETAIL = 1
    SURROUNDINGS = 2  # of samples only those around what stood out
    NO_SAMPLES = 3
    ESSENTIAL = 4


class Outstanding:
    """Tells a sample that stands out as it is written, from the losses before it."""

    def __init__(self) -> None:
        self._usual = self._distance = 0.0
        self._seen = 0

    def see(self, sample: Samples) -> bool:
        """Whether it has a value that is not finite, a skipped update or a loss far off."""
        signals = sample.signals
        judged = [v for name in _JUDGED for v in signals.get(name, ()) if v is not None]
        odd = any(signals.get(Signal.UPDATE_DROPPED.value, ()))
        odd = odd or not all(map(math.isfinite, judged))
        losses = signals.get(Signal.LOSS.value, ())
        far = [self._far(loss) for loss in losses if loss is not None]
        return any(far) or odd

    def _far(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        if not self._seen:
            self._usual, self._distance = loss, _FLOOR * abs(loss)
        off, width = loss - self._usual, max(self._distance, _FLOOR * abs(self._usual))
        far = self._seen >= WARM_UP and off > STANDS_OUT * width
        pace = max(_PACE, 1.0 / (self._seen + 1))
        step = max(-3.0 * width, min(3.0 * width, off)) if self._seen >= WARM_UP else off
        self._usual += pace * step
        self._distance += pace * (abs(step) - self._distance)
        self._seen += 1
        return far


def thinned(
    frames: Iterable[Frame], level: Level, around: Iterable[Stretch] = ()
) -> tuple[list[Frame], Counter[str]]:
    """What is left of `frames`, and what has gone; `around`: samples elsewhere that stood out."""
    frames = list(frames)
    near = [(first - BEFORE, last + AFTER) for first, last in (*around, *outstanding(frames))]
    near = near if level is Level.SURROUNDINGS else []
    kept: list[Frame] = []
    lost: Counter[str] = Counter()
    for frame in frames:
        if _goes(frame, level, near):
            lost[_WORDS[frame.kind]] += frame.samples or 1
            frame = frame._replace(kind=Kind.SHED, payload=b"", kept=False)
        _add(kept, frame._replace(level=level))
    return kept, lost


def outstanding(frames: Iterable[Frame]) -> list[Stretch]:
    """The samples among `frames` that stood out."""
    found: list[Stretch] = []
    for frame in frames:
        if frame.kept:
            extend(found, frame.total)
    return found


def extend(stretches: MutableSequence[Stretch], mark: int) -> None:
    """One more sample that stood out; a stretch has no holes whose surroundings do not touch."""
    if stretches and mark <= stretches[-1][1] + AFTER:
        stretches[-1] = stretches[-1][0], max(mark, stretches[-1][1])
    else:
        stretches.append((mark, mark))


def _goes(frame: Frame, level: Level, near: Sequence[Stretch]) -> bool:
    if frame.kind is Kind.DETAIL:
        return level >= Level.NO_DETAIL
    if frame.kind is Kind.NEWS:
        return level >= Level.ESSENTIAL
    if frame.kind is not Kind.SAMPLE or level < Level.SURROUNDINGS:
        return False
    return not any(first <= frame.total <= last for first, last in near)


def _add(frames: list[Frame], frame: Frame) -> None:
    """One frame for all that went in a row of one message."""
    last = frames[-1] if frames else None
    if (
        last is not None
        and last.kind is frame.kind is Kind.SHED
        and last.message == frame.message
        and last.end.number == frame.number
    ):
        frames[-1] = last._replace(
            samples=last.samples + frame.samples, span=last.span + frame.span
        )
    else:
        frames.append(frame)
