"""The monitor's whole state, and its form in bytes.

Law: plain dataclasses; every float comes back bit for bit. A change of any field's meaning raises
`STATE_VERSION`, and an unknown version is refused, never guessed at. An older one is told apart:
there the run can be learned anew from its samples.

The form: JSON of the fields in their order, deflated.
"""

from __future__ import annotations

import json
import types
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from spikeguard_core.detection.loss_test import LossTest
from spikeguard_core.detection.norms import Leading
from spikeguard_core.detection.own_signals import OwnChoice, OwnSignal, own_signals_of
from spikeguard_core.detection.sample import Sample
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.diagnosis.evidence import RANKS_LOST_STEP, Traces
from spikeguard_core.diagnosis.incident_tracker import Episode
from spikeguard_core.diagnosis.silent_failures import SkippedRows

STATE_VERSION = 23
_Form: TypeAlias = Callable[[Any], Any]  # a value of the state from its form in JSON
_MAGIC = b"spikeguard-monitor "
_QUICKLY = 1  # more of it saves 2 % of the bytes and takes half as long again


class UnknownStateVersion(ValueError):
    """The state was written by another version of the monitor, or is not one."""


class OlderStateVersion(UnknownStateVersion):
    """The state was written by an older version of the monitor."""


@dataclass(frozen=True, slots=True)
class DetectorChoice:
    """What the policy says of detection: constants, and how single signals are judged."""

    settings: DetectionSettings = field(default_factory=DetectionSettings)
    precursors: Mapping[str, float] = field(default_factory=dict)  # leading signal -> threshold
    own: Mapping[str, OwnChoice] = field(default_factory=dict)  # signals of the user's own


@dataclass(slots=True)
class State:
    """Everything that a monitor remembers."""

    settings: DetectionSettings = field(default_factory=DetectionSettings)
    test: LossTest = field(default_factory=LossTest)
    precursors: dict[str, float] = field(default_factory=dict)  # signal -> threshold of its own
    leading: dict[str, Leading] = field(default_factory=dict)
    episode: Episode | None = None
    newest_step: int | None = None
    judged_step: int | None = None  # the newest whose loss was judged
    attentive_until: int | None = None
    drops: int = 0  # dropped updates in a row
    skipped: SkippedRows = field(default_factory=SkippedRows)
    traces: Traces = field(default_factory=Traces)  # newest rows, for the cause of what may come
    first_judged: int | None = None  # step of the first loss that could be judged
    own: dict[str, OwnSignal] = field(default_factory=lambda: own_signals_of({}, {}))

    @property
    def frozen_by(self) -> Episode | None:
        """The incident whose samples no baseline learns from; None where there is none."""
        episode = self.episode
        return None if episode is None or episode.calmed or episode.levelled else episode

    def settings_of(self, name: str) -> DetectionSettings:
        """The constants that a leading signal is judged by."""
        own = self.precursors.get(name)
        return self.settings if own is None else replace(self.settings, precursor_z=own)

    def choose(self, choice: DetectorChoice) -> None:
        """Judge by `choice` from the next row on; what is known of the run stays."""
        self.settings, self.precursors = choice.settings, dict(choice.precursors)
        self.own = own_signals_of(choice.own, self.own)

    def leading_of(self, name: str) -> Leading:
        """What is known of a leading signal; nothing yet, if it was never seen."""
        known = self.leading.get(name)
        if known is None:
            known = self.leading[name] = Leading()
        return known


def freeze(state: State) -> bytes:
    """The bytes of `state`, a few kB."""
    text = json.dumps(state, separators=(",", ":"), default=_fields)
    return _MAGIC + str(STATE_VERSION).encode() + b"\n" + zlib.compress(text.encode(), _QUICKLY)


def thaw(body: bytes) -> State:
    """The state in `body`; raises `UnknownStateVersion` if this code did not write it."""
    head, _, packed = body.partition(b"\n")
    if head != _MAGIC + str(STATE_VERSION).encode():
        kind = OlderStateVersion if _is_older(head) else UnknownStateVersion
        raise kind(
            f"monitor state begins {head[:40]!r}; this server reads version {STATE_VERSION}: "
            "run the release that wrote it, or upgrade"
        )
    state = _reader(State)(json.loads(zlib.decompress(packed)))
    assert isinstance(state, State)
    return state


def _is_older(head: bytes) -> bool:
    written = head.removeprefix(_MAGIC)
    return written != head and written.isdigit() and int(written) < STATE_VERSION


def _fields(value: Any) -> list[Any]:
    """What JSON holds of a dataclass."""
    return [getattr(value, part.name) for part in fields(value)]


@cache
def _reader(kind: Any) -> _Form:
    """What makes a value of one type of the state of its form in JSON."""
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        readers = [_reader(hints[part.name]) for part in fields(kind)]
        make = cast(type, kind)
        return lambda values: make(*(read(v) for read, v in zip(readers, values, strict=True)))
    if origin in (Union, types.UnionType):
        some = _reader(next(arg for arg in args if arg is not type(None)))
        return lambda value: None if value is None else some(value)
    if origin is list:
        each = _reader(args[0])
        return lambda values: list(map(each, values))
    if origin is dict:
        of = _reader(args[1])
        return lambda values: {name: of(value) for name, value in values.items()}
    if origin is tuple:
        return tuple
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind._make  # type: ignore[attr-defined,no-any-return]  # a NamedTuple
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    return lambda value: value


# Ranks that lost step with each other reduce nothing any more: from there on the loss is that of
# rank 0 alone, noisier by the square root of their number, and nothing known of the old one judges
# it.


def begins_alone(state: State, sample: Sample) -> bool:
    """Whether this sample is rank 0's alone, and the one before was not."""
    return sample.values.get(RANKS_LOST_STEP, 0.0) >= 1.0 and not _alone(state)


def _alone(state: State) -> bool:
    """Whether the newest sample was rank 0's."""
    marked = state.traces.of[RANKS_LOST_STEP].steps
    return bool(marked) and marked[-1] == state.newest_step
