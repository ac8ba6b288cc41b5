"""The lines of a run's journal: how they come to disk and are read back, and what entries say.

Files of JSON lines are only added to. Each line ends with its number and a checksum: whoever reads
can tell a line that a kill cut short from one that was changed or is gone. What was added is
durable and whole, or as if never tried; a line that was cut short counts for nothing and does not
swallow the next. Lines without number and checksum are read as they stand.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spikeguard.optim.lr_scale import LrScale
from spikeguard.state.lineage import Abandonment, Lineage
from spikeguard_protocol import BatchRange, CommandResult, ResultState
from spikeguard_protocol.encoding import seal, unseal
from spikeguard_protocol.orders import check_mitigation

_TAIL_BYTES = 64 * 1024


@dataclass(slots=True)
class Lines:
    """What a file holds."""

    entries: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # by line number
    cut_short: list[int] = field(default_factory=list)  # lines that are no JSON object
    changed: list[int] = field(default_factory=list)  # lines whose checksum is another one
    missing: int = 0  # entries that were durable once and are not there

    @property
    def damage(self) -> str | None:
        """What is wrong with the file, as the rest of a sentence about it; None: nothing."""
        parts = [f"lacks {self.missing} entries that it once held"] if self.missing else []
        if self.changed:
            parts.append(f"has lines that were changed: {', '.join(map(str, self.changed[:8]))}")
        return " and ".join(parts) or None


def append_line(path: Path, entry: dict[str, Any]) -> None:
    """Durable and whole, or as if never tried; raise OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "a+b", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        tail = os.pread(handle, _TAIL_BYTES, max(0, length - _TAIL_BYTES))
        data = sealed_line(entry, _last_number(tail, path.name) + 1, path.name)
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


def sealed_line(entry: dict[str, Any], number: int, name: str) -> bytes:
    """`entry` as line `number` of the file called `name`, its end included."""
    return seal(json.dumps(entry, allow_nan=False).encode(), number, name)


def read_lines(path: Path) -> Lines:
    """All of the file; raise OSError where it cannot be read, also where there is none."""
    found, expected = Lines(), 1
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            found.cut_short.append(number)
            continue
        found.entries.append((number, entry))
        own, sound = unseal(line.strip(), path.name) or (None, not entry.keys() & {"n", "crc"})
        if not sound:
            found.changed.append(number)
        if own is not None:
            found.missing += max(0, own - expected)
            expected = own + 1
    return found


def _last_number(tail: bytes, name: str) -> int:
    sealed = (unseal(line, name) for line in reversed(tail.split(b"\n")))
    return next((each[0] for each in sealed if each is not None and each[1]), 0)


# ---- what entries say ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scaling:
    """The learning rate's scale from the end of `lineage` on, once `command` was carried out."""

    command: str
    lineage: Lineage
    scale: LrScale | None
    asked: bool  # the command lowers it; otherwise it came back with a rollback's target


@dataclass(frozen=True, slots=True)
class Applying:
    """The mitigation `name` in the `steps` steps after step `start`, where `lineage` ends."""

    command: str
    lineage: Lineage
    name: str
    start: int
    steps: int

    def __post_init__(self) -> None:
        check_mitigation("name", self.name)

    @property
    def end(self) -> int:
        """The last step that is made with it."""
        return self.start + self.steps


@dataclass(frozen=True, slots=True)
class Begun:
    """What `command` changes, written ahead at `step`."""

    command: str
    step: int
    skip: BatchRange | None = None
    abandoned: tuple[Abandonment, ...] = ()
    scaling: Scaling | None = None
    applying: Applying | None = None

    def __post_init__(self) -> None:
        CommandResult(self.command, ResultState.FAILED, "", self.step)  # as a restart tells it
