"""Files of JSON lines that are only added to: how entries get there, and how they are read back.

Each line ends with its number and a checksum, and the last number also stands in a file beside it,
`.NAME.end`: whoever reads can tell a line that a kill cut short from one that was changed or is
gone.

Invariants
- What was added is durable and whole, or as if never tried. A line that was cut short counts for
  nothing and does not swallow the next.
- Lines without number and checksum are read as they stand.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spikeguard_protocol.plain_files import read_plain
from spikeguard_protocol.sealed_lines import seal, unseal

_TAIL_BYTES = 64 * 1024
_NOTE = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC


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
    for number, line in enumerate(read_plain(path).split(b"\n"), 1):
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
        number, _, checked = read_plain(_end_of(path)).decode().strip().partition(" ")
        return int(number) if f"{zlib.crc32(number.encode()):08x}" == checked else 0
    except (OSError, ValueError):
        return 0
