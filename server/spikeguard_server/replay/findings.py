"""What a replay found: incidents folded from the monitor's events.

Law: pure. An incident is listed once it was opened, whatever became of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spikeguard_protocol import Outcome
from spikeguard_server.domain.detection.detectors.plugged import DetectorChoice
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.domain.events import (
    Closed,
    Event,
    Judgement,
    Opened,
    Precursor,
    Revised,
    Trend,
)
from spikeguard_server.domain.monitor.monitor import Monitor
from spikeguard_server.domain.suspicion import Ranking, worth_showing


@dataclass(frozen=True)
class Found:
    """One incident of the file."""

    onset_step: int
    detected_step: int
    peak_step: int
    signal: str
    judgement: Judgement
    pre_loss: float | None
    peak_loss: float | None
    trend: Trend | None
    closed_step: int | None = None
    outcome: Outcome | None = None
    revisions: tuple[Revised, ...] = ()
    causes: Ranking = ()
    first_moves: Mapping[str, int] = field(default_factory=dict)  # signal -> its first step

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "onset_step": self.onset_step,
            "detected_step": self.detected_step,
            "peak_step": self.peak_step,
            "closed_step": self.closed_step,
            "kind": str(self.judgement.kind),
            "confidence": round(self.judgement.confidence, 4),
            "pre_loss": self.pre_loss,
            "peak_loss": self.peak_loss,
            "signal": self.signal,
            "first_moves": dict(self.first_moves),
            "causes": [
                {
                    "cause": one.cause.value,
                    "confidence": round(one.confidence, 4),
                    "reasons": list(one.reasons),
                }
                for one in worth_showing(self.causes)
            ],
        }


@dataclass(frozen=True)
class Findings:
    """All that one file gave."""

    samples: int
    incidents: tuple[Found, ...]
    precursors: tuple[Precursor, ...] = field(default=())

    def plain(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "incidents": [found.plain() for found in self.incidents],
            "precursors": [_moved(one) for one in self.precursors],
        }


def _moved(precursor: Precursor) -> dict[str, Any]:
    z = precursor.z if math.isfinite(precursor.z) else None
    return {"step": precursor.step, "signal": precursor.signal, "z": z}


BATCH = 1_000  # samples handed over at once: fewer are slower, more tell nothing in between


def batches(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    """`samples` in the portions in which detection takes them best."""
    return (samples[at : at + BATCH] for at in range(0, len(samples), BATCH))


def monitor_of(choice: DetectorChoice | None) -> Monitor:
    """A monitor that judges by `choice`."""
    monitor = Monitor()
    if choice is not None:
        monitor.use(choice)
    return monitor


def replay(
    samples: Sequence[Sample],
    choice: DetectorChoice | None = None,
    portions: Iterable[Sequence[Sample]] | None = None,
) -> Findings:
    """Run detection over `samples`; what is open at the end stays open.

    `choice` says who judges the loss, where that is not the default. `portions` are the same
    samples cut up, where the caller wants to see them pass.
    """
    watching = monitor_of(choice)
    events: list[Event] = []
    for portion in batches(samples) if portions is None else portions:
        events += watching.observe(portion)
    incidents = fold_incidents(events, samples)
    return Findings(
        len(samples), incidents, tuple(event for event in events if isinstance(event, Precursor))
    )


def fold_incidents(events: Iterable[Event], samples: Sequence[Sample]) -> tuple[Found, ...]:
    """The incidents of `events`, in order, with their peaks read from `samples`."""
    found: list[Found] = []
    for event in events:
        if isinstance(event, Opened):
            found.append(_opened(event))
        elif isinstance(event, Revised):
            found[-1] = replace(
                found[-1],
                judgement=event.judgement,
                revisions=(*found[-1].revisions, event),
                causes=event.causes,
            )
        elif isinstance(event, Closed):
            found[-1] = replace(
                found[-1],
                judgement=event.judgement,
                closed_step=event.step,
                outcome=event.outcome,
                causes=event.causes,
            )
    return tuple(_with_peak(one, samples) for one in found)


def _opened(event: Opened) -> Found:
    return Found(
        onset_step=event.onset_step,
        detected_step=event.step,
        peak_step=event.onset_step,
        signal=event.signal,
        judgement=event.judgement,
        pre_loss=event.pre_loss,
        peak_loss=None,
        trend=event.trend,
        causes=event.causes,
        first_moves=event.first_moves,
    )


def _with_peak(found: Found, samples: Sequence[Sample]) -> Found:
    last = math.inf if found.closed_step is None else found.closed_step
    inside = [
        (sample.values["loss"], -sample.step)
        for sample in samples
        if found.onset_step <= sample.step <= last
        and math.isfinite(sample.values.get("loss", math.nan))
    ]
    if not inside:
        return found
    peak, step = max(inside)
    return replace(found, peak_loss=peak, peak_step=-step)
