"""The lines of a run's journal: how they come to disk and are read back, and what entries say.

Files of JSON lines are only added to. Each line ends with its number and a checksum, and the last
number also stands in a file beside it, `.NAME.end`: whoever reads can tell a line that a kill cut
short from one that was changed or is gone. What was added is durable and whole, or as if never
tried; a line that was cut short counts for nothing and does not swallow the next. Lines without
number and checksum are read as they stand.
"""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spikeguard.optim.lr_scale import LrScale
from spikeguard.state.lineage import Abandonment, Lineage, plain_lineage, read_lineage
from spikeguard_protocol import (
    Action,
    BatchRange,
    CommandResult,
    ProtocolError,
    ResultState,
    SegmentId,
    Verb,
    from_json,
    verb_of,
)
from spikeguard_protocol.encoding import seal, unseal
from spikeguard_protocol.orders import check_mitigation

_TAIL_BYTES = 64 * 1024
_NOTE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


@dataclass(slots=True)
class Lines:
    """What a file holds."""

    entries: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # by line number
    cut_short: list[int] = field(default_factory=list)  # lines that are no JSON object
    changed: list[int] = field(default_factory=list)  # lines whose checksum is another one
    missing: int = 0  # entries that were durable once and are not there

    @property
    def damage(self) -> str | None:
        """What is wrong with the file, as the rest of a sentence about it; None: nothing.

        A line that was cut short was never durable, unless an entry is missing.
        """
        parts = []
        if self.missing:
            parts.append(f"lacks {self.missing} entries that it once held")
        if self.missing and self.cut_short:
            parts.append(f"has lines that cannot be read: {_listed(self.cut_short)}")
        if self.changed:
            parts.append(f"has lines that were changed: {_listed(self.changed)}")
        return " and ".join(parts) or None


def _listed(lines: list[int]) -> str:
    return ", ".join(map(str, lines[:8])) + (", ..." if len(lines) > 8 else "")


def append_lines(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Durable and whole, or as if never tried; raise OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "a+b", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        tail = os.pread(handle, _TAIL_BYTES, max(0, length - _TAIL_BYTES))
        number = max(_last_number(tail, path.name), noted_end(path))
        data = b""
        for entry in entries:
            number += 1
            data += sealed_line(entry, number, path.name)
        if tail and not tail.endswith(b"\n"):
            data = b"\n" + data  # what stands there was cut short: it must not swallow this
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        except BaseException:
            with suppress(OSError):
                file.truncate(length)
                os.fsync(handle)
            raise
    with suppress(OSError):
        _note_end(path, number)


def read_lines(path: Path) -> Lines:
    """All of the file; raise OSError where it cannot be read, also where there is none."""
    found = Lines()
    expected = None
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        entry, own, sound = open_line(line, path.name)
        if entry is None:
            found.cut_short.append(number)
            continue
        if not sound:
            found.changed.append(number)
        found.entries.append((number, entry))
        if own is not None:
            found.missing += max(0, own - (1 if expected is None else expected))
            expected = own + 1
    if (end := noted_end(path)) and not (expected is None and found.entries):
        found.missing += max(0, end + 1 - (expected or 1))
    return found


def open_line(line: bytes, name: str = "") -> tuple[dict[str, Any] | None, int | None, bool]:
    """Its entry (None for a line that is no JSON object), its number, whether it is unchanged."""
    sealed = unseal(line.strip(), name)
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None, None, True
    if not isinstance(entry, dict):
        return None, None, True
    if sealed is None:
        return entry, None, not entry.keys() & {"n", "crc"}
    return entry, *sealed


def sealed_line(entry: dict[str, Any], number: int = 1, name: str = "") -> bytes:
    """`entry` as line `number` of the file called `name`, its end included."""
    return seal(json.dumps(entry, allow_nan=False).encode(), number, name)


def _last_number(tail: bytes, name: str) -> int:
    for line in reversed(tail.split(b"\n")):
        _, number, sound = open_line(line, name)
        if number is not None and sound:
            return number
    return 0


def _end_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.end")


def _note_end(path: Path, number: int) -> None:
    text = f"{number:015d}"
    handle = os.open(_end_of(path), _NOTE, 0o600)
    try:
        os.pwrite(handle, f"{text} {zlib.crc32(text.encode()):08x}\n".encode(), 0)
    finally:
        os.close(handle)


def noted_end(path: Path) -> int:
    """The number of the last line, as it stands beside the file; 0 where nothing can be read."""
    try:
        number, _, checked = _end_of(path).read_text().strip().partition(" ")
        return int(number) if f"{zlib.crc32(number.encode()):08x}" == checked else 0
    except (OSError, ValueError):
        return 0


# ---- what entries say ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scaling:
    """The learning rate's scale from the end of `lineage` on, once `command` was carried out."""

    command: str
    lineage: Lineage
    scale: LrScale | None
    asked: bool  # the command lowers it; otherwise it came back with a rollback's target

    def plain(self) -> dict[str, Any]:
        """For the file."""
        scale = self.scale.plain() if self.scale is not None else None
        return {"lineage": plain_lineage(self.lineage), "scale": scale, "asked": self.asked}

    @classmethod
    def read(cls, command: str, plain: dict[str, Any]) -> Scaling:
        """Back from the file."""
        scale = LrScale.read(plain["scale"]) if plain["scale"] is not None else None
        return cls(command, read_lineage(plain["lineage"]), scale, plain["asked"])


@dataclass(frozen=True, slots=True)
class Applying:
    """The mitigation `name` in the `steps` steps after step `start`, where `lineage` ends."""

    command: str
    lineage: Lineage
    name: str
    start: int
    steps: int

    @property
    def end(self) -> int:
        """The last step that is made with it."""
        return self.start + self.steps

    def plain(self) -> list[Any]:
        """For the file."""
        return [plain_lineage(self.lineage), self.name, self.start, self.steps]

    @classmethod
    def read(cls, command: str, plain: list[Any]) -> Applying:
        """Back from the file."""
        lineage, name, start, steps = plain
        if type(start) is not int or type(steps) is not int:
            raise ValueError("a step is no whole number")
        return cls(command, read_lineage(lineage), check_mitigation("name", name), start, steps)


@dataclass(frozen=True, slots=True)
class Begun:
    """What `command` changes, written ahead at `step`."""

    command: str
    step: int
    skip: BatchRange | None = None
    abandoned: tuple[Abandonment, ...] = ()
    scaling: Scaling | None = None
    applying: Applying | None = None

    def plain(self) -> dict[str, Any]:
        """For the file."""
        skip = self.skip
        return {
            "command": self.command,
            "step": self.step,
            "skip": [skip.first, skip.end] if skip is not None else None,
            "abandoned": [[a.segment.attempt, a.segment.number, a.after] for a in self.abandoned],
            "scaling": self.scaling.plain() if self.scaling is not None else None,
            **({"applying": self.applying.plain()} if self.applying is not None else {}),
        }

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Begun:
        """Back from the file; raise for what was never written so: the loop would meet it later."""
        command, step, skip = plain["command"], plain["step"], plain["skip"]
        CommandResult(command, ResultState.FAILED, "", step)  # as a restart tells it
        left = [Abandonment(SegmentId(a, n), after) for a, n, after in plain["abandoned"]]
        if any(type(n) is not int for n in (step, *(skip or ()), *(each.after for each in left))):
            raise ValueError("a step or a position is no whole number")
        scaling, applying = plain.get("scaling"), plain.get("applying")
        return cls(
            command,
            step,
            BatchRange(*skip) if skip else None,
            tuple(left),
            Scaling.read(command, scaling) if scaling else None,
            Applying.read(command, applying) if applying else None,
        )


def past_orders(entries: list[dict[str, Any]]) -> list[tuple[Verb, float]]:
    """What was ordered and when, by the monotonic clock of this process.

    No entry is later than one behind it, or than now: one that says so was dated by a clock that
    was ahead, and would count for as long as that was.
    """
    wall, steady, found = time.time(), time.monotonic(), list[tuple[Verb, float]]()
    latest = wall
    for entry in reversed(entries):
        if (verb := _verb_in(entry)) is not None:
            latest = min(latest, float(entry["at"]))
            found.append((verb, steady - (wall - latest)))
    return found[::-1]


def _verb_in(entry: dict[str, Any]) -> Verb | None:
    """What was ordered, where the entry says it and when."""
    action, at = entry.get("action"), entry.get("at")
    if action is None or not isinstance(at, int | float) or not abs(at) < 1e12:
        return None
    try:
        return verb_of(from_json(Action, action))
    except ProtocolError:  # of a newer release
        return None
