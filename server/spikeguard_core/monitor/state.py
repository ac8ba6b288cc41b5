"""The monitor's whole state, and its form in bytes.

Law: plain dataclasses; every float comes back bit for bit. A change of any field's meaning raises
`STATE_VERSION`, and an unknown version is refused, never guessed at. An older one is told apart:
there the run can be learned anew from its samples.

The form: JSON of the fields in their order, deflated; lists of floats in it are base64 of IEEE 754
doubles, lowest byte first: as text they took four times as long to write and no fewer bytes.
"""

from __future__ import annotations

import json
import types
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache, partial
from typing import Any, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from spikeguard_core.detection.loss_test import LossTest
from spikeguard_core.detection.norms import Leading
from spikeguard_core.detection.own_signals import OwnChoice, OwnSignal, own_signals_of
from spikeguard_core.detection.sample import Sample
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.diagnosis.evidence import RANKS_LOST_STEP, Traces
from spikeguard_core.diagnosis.incident_tracker import Episode
from spikeguard_core.diagnosis.silent_failures import SkippedRows

STATE_VERSION = 21
_Form: TypeAlias = Callable[[Any], Any]  # a value of the state from or to its form in JSON
_MAGIC = b"spikeguard-monitor "
_DOUBLES = "<f8"
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
    text = json.dumps(_dataclass_writer(State)(state), separators=(",", ":"))
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
    state = _dataclass_reader(State)(json.loads(zlib.decompress(packed)))
    assert isinstance(state, State)
    return state


def _is_older(head: bytes) -> bool:
    written = head.removeprefix(_MAGIC)
    return written != head and written.isdigit() and int(written) < STATE_VERSION


def _writer(kind: Any) -> _Form | None:
    """What makes JSON of a value of one type of the state; None where the value is that already."""
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_writer(cast(type, kind))
    if origin in (Union, types.UnionType):
        return _made(_writer(next(arg for arg in args if arg is not type(None))), _of_option)
    if kind == list[float]:
        return _packed
    if columns := _columns(kind):
        return partial(_of_rows, [_writer(column) or _same for column in columns])
    if origin is list:
        return _made(_writer(args[0]), _of_list)
    if origin is dict:
        return _made(_writer(args[1]), _of_dict)
    return None


def _made(inner: _Form | None, outer: Callable[[_Form, Any], Any]) -> _Form | None:
    return None if inner is None else partial(outer, inner)


def _of_option(inner: _Form, value: Any) -> Any:
    return None if value is None else inner(value)


def _columns(kind: Any) -> list[Any]:
    """The columns of a list of tuples of numbers, as lists of one type each; none of another."""
    row = get_args(kind)[0] if get_origin(kind) is list else None
    cells = get_args(row) if get_origin(row) is tuple else ()
    if isinstance(row, type) and issubclass(row, tuple) and hasattr(row, "_fields"):
        hints = get_type_hints(row)
        cells = tuple(hints[name] for name in row._fields)
    return [types.GenericAlias(list, (cell,)) for cell in cells]


def _row_of(kind: Any) -> Callable[[tuple[Any, ...]], Any]:
    row = get_args(kind)[0]
    make: Callable[[tuple[Any, ...]], Any] = getattr(row, "_make", tuple)
    return make


def _of_rows(inner: list[_Form], rows: list[tuple[Any, ...]]) -> list[Any]:
    columns = zip(*rows, strict=True) if rows else [()] * len(inner)
    return [write(list(column)) for write, column in zip(inner, columns, strict=True)]


def _to_rows(
    make: Callable[[tuple[Any, ...]], Any], inner: list[_Form], columns: list[Any]
) -> list[Any]:
    read = [reader(column) for reader, column in zip(inner, columns, strict=True)]
    return [make(row) for row in zip(*read, strict=True)]


def _same(value: Any) -> Any:
    return value


def _packed(values: list[float]) -> str:
    return b64encode(np.array(values, _DOUBLES).tobytes()).decode()


def _unpacked(text: str) -> list[float]:
    return cast(list[float], np.frombuffer(b64decode(text), _DOUBLES).tolist())


def _of_list(inner: _Form, value: list[Any]) -> list[Any]:
    return [inner(entry) for entry in value]


def _of_dict(inner: _Form, value: dict[str, Any]) -> dict[str, Any]:
    return {key: inner(entry) for key, entry in value.items()}


@cache
def _dataclass_writer(kind: type) -> _Form:
    hints = get_type_hints(kind)
    names = [part.name for part in fields(kind)]
    within = [(at, inner) for at, name in enumerate(names) if (inner := _writer(hints[name]))]

    def write(value: Any) -> list[Any]:
        plain = [getattr(value, name) for name in names]
        for at, inner in within:
            plain[at] = inner(plain[at])
        return plain

    return write


def _typed(kind: Any) -> _Form:
    """The reader of one type of the state, the reverse of `_writer`."""
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_reader(cast(type, kind))
    if origin in (Union, types.UnionType):
        inner = _typed(next(arg for arg in args if arg is not type(None)))
        return partial(_of_option, inner)
    if kind == list[float]:
        return _unpacked
    if columns := _columns(kind):
        return partial(_to_rows, _row_of(kind), [_typed(column) for column in columns])
    if origin is list:
        return partial(_of_list, _typed(args[0]))
    if origin is dict:
        return partial(_of_dict, _typed(args[1]))
    if origin is tuple:
        return tuple
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    return _same


@cache
def _dataclass_reader(kind: type) -> _Form:
    hints = get_type_hints(kind)
    readers = [_typed(hints[part.name]) for part in fields(kind)]

    def read(values: Any) -> Any:
        return kind(*(reader(value) for reader, value in zip(readers, values, strict=True)))

    return read


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
