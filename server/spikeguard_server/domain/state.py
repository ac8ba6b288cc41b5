"""The monitor's whole state, and its form in bytes.

Law: plain dataclasses; every float comes back bit for bit. A change of any field's meaning raises
`STATE_VERSION`, and an unknown version is refused, never guessed at.
"""

from __future__ import annotations

import json
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from spikeguard_server.domain.baseline import Baseline
from spikeguard_server.domain.detection_settings import DetectionSettings
from spikeguard_server.domain.detector import Detector
from spikeguard_server.domain.episode import Episode
from spikeguard_server.domain.evidence import Traces
from spikeguard_server.domain.leading import Leading

STATE_VERSION = 6
_MAGIC = b"spikeguard-monitor "


class UnknownStateVersion(ValueError):
    """The state was written by another version of the monitor, or is not one."""


@dataclass(slots=True)
class State:
    """Everything that a monitor remembers."""

    settings: DetectionSettings = field(default_factory=DetectionSettings)
    detector: Detector = field(default_factory=lambda: Detector(Baseline(falling=True)))
    leading: dict[str, Leading] = field(default_factory=dict)
    episode: Episode | None = None
    newest_step: int | None = None
    judged_step: int | None = None  # the newest whose loss was judged
    attentive_until: int | None = None
    drops: int = 0  # dropped updates in a row
    traces: Traces = field(default_factory=Traces)  # newest rows, for the cause of what may come

    def leading_of(self, name: str) -> Leading:
        """What is known of a leading signal; nothing yet, if it was never seen."""
        known = self.leading.get(name)
        if known is None:
            known = self.leading[name] = Leading(Baseline(falling=False))
        return known


def freeze(state: State) -> bytes:
    """The bytes of `state`, a few kB."""
    text = json.dumps(_dataclass_writer(State)(state), separators=(",", ":"))
    return _MAGIC + str(STATE_VERSION).encode() + b"\n" + zlib.compress(text.encode())


def thaw(body: bytes) -> State:
    """The state in `body`; raises `UnknownStateVersion` if this code did not write it."""
    head, _, packed = body.partition(b"\n")
    if head != _MAGIC + str(STATE_VERSION).encode():
        raise UnknownStateVersion(
            f"monitor state begins {head[:40]!r}; this server reads version {STATE_VERSION}: "
            "run the release that wrote it, or upgrade"
        )
    state = _dataclass_reader(State)(json.loads(zlib.decompress(packed)))
    assert isinstance(state, State)
    return state


def _writer(kind: Any) -> Callable[[Any], Any] | None:
    """What makes JSON of a value of one type of the state; None where the value is that already."""
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_writer(kind)
    if origin in (Union, types.UnionType):
        inner = _writer(next(arg for arg in args if arg is not type(None)))
        return inner and (lambda value: None if value is None else inner(value))
    if origin is list:
        item = _writer(args[0])
        return item and (lambda value: [item(entry) for entry in value])
    if origin is dict:
        entry = _writer(args[1])
        return entry and (lambda value: {key: entry(inner) for key, inner in value.items()})
    return None


@cache
def _dataclass_writer(kind: Any) -> Callable[[Any], list[Any]]:
    hints = get_type_hints(kind)
    names = [part.name for part in fields(kind)]
    within = [(at, write) for at, name in enumerate(names) if (write := _writer(hints[name]))]

    def write(value: Any) -> list[Any]:
        plain = [getattr(value, name) for name in names]
        for at, inner in within:
            plain[at] = inner(plain[at])
        return plain

    return write


def _typed(kind: Any) -> Callable[[Any], Any]:
    """The reader of one type of the state, the reverse of `_writer`."""
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin in (Union, types.UnionType):
        inner = _typed(next(arg for arg in args if arg is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is list:
        item = _typed(args[0])
        return lambda value: [item(entry) for entry in value]
    if origin is dict:
        entry = _typed(args[1])
        return lambda value: {key: entry(inner) for key, inner in value.items()}
    if origin is tuple:
        return tuple
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    return lambda value: value


@cache
def _dataclass_reader(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    readers = [_typed(hints[part.name]) for part in fields(kind)]

    def read(values: Any) -> Any:
        return kind(*(reader(value) for reader, value in zip(readers, values, strict=True)))

    return read
