"""Exports the audit's newest digests to files outside the database.

Law: a head is written once its entry is committed, by whichever process committed it, and is only
ever added to a file: nothing here changes or removes a line. What cannot be written is tried again
and counted; nothing waits for it. A file holds one month, one JSON object a line.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from spikeguard_server.store.audit_chain import ChainHead, heads_since
from spikeguard_server.store.reads.feed import read_now

EVERY_S: Final = 1.0
WINDOW: Final = timedelta(seconds=75)  # longer than a transaction lives
PATTERN: Final = "audit-heads-*.jsonl"
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STOP_S: Final = 5.0
_log = logging.getLogger(__name__)


class BadHeads(Exception):
    """A file of heads cannot be read; says which line and why."""


def append_heads(directory: Path, heads: Sequence[ChainHead], now: datetime) -> None:
    """Add a line for each to this month's file, and wait until the disk has them."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(_as_json(head))}\n" for head in heads)
    path = directory / PATTERN.replace("*", f"{now:%Y-%m}")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other replicas may write there too
        file.write(_line_end(path) + text.encode())
        os.fsync(file.fileno())
    _sync(directory)


def _line_end(path: Path) -> bytes:
    """What ends a line that a full disk or a power cut broke off."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return b""
        file.seek(-1, os.SEEK_END)
        return b"" if file.read(1) == b"\n" else b"\n"


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_json(head: ChainHead) -> dict[str, Any]:
    return {
        "run_id": str(head.run_id), "number": head.number, "at": head.at.isoformat(),
        "digest": head.digest.hex(),
    }  # fmt: skip


def read_heads(place: Path) -> list[ChainHead]:
    """Those of a file, or of all files of a directory, oldest file first; raise `BadHeads`."""
    files = sorted(place.glob(PATTERN)) if place.is_dir() else [place]
    if not files:
        raise BadHeads(f"{place} holds no {PATTERN}")
    if not (found := [head for file in files for head in _heads_of(file)]):
        raise BadHeads(f"{place} holds no head: nothing could be held against the audit")
    return found


def _heads_of(file: Path) -> Iterator[ChainHead]:
    """A line that was broken off is no head: what it was to say was written again behind it."""
    try:
        lines = file.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadHeads(f"{file}: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.endswith("}"):
            continue
        try:
            found = json.loads(line)
            yield ChainHead(
                UUID(found["run_id"]), int(found["number"]), datetime.fromisoformat(found["at"]),
                bytes.fromhex(found["digest"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadHeads(f"{file}, line {number}: {error!r}") from None


@dataclass(frozen=True)
class _Written:
    """How far the heads are written down."""

    since: datetime  # the database's clock at the last look
    numbers: Mapping[UUID, int] = field(default_factory=dict)  # what that look saw

    def fresh(self, heads: Iterable[ChainHead]) -> list[ChainHead]:
        """Those that are not written yet."""
        return [head for head in heads if head.number > self.numbers.get(head.run_id, 0)]


class HeadWriter:
    """The thread that writes them down, until it is stopped."""

    def __init__(
        self, engine: sql.Engine, directory: Path, count: Callable[[str, int], None]
    ) -> None:
        self._engine, self._directory, self._count = engine, directory, count
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="audit heads", daemon=True)
        self._written: _Written | None = None

    def start(self) -> None:
        """Begin with what was committed since the newest line."""
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and end; a disk that hangs is not waited for."""
        self._stopping.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stopping.wait(EVERY_S)
            try:
                self._write()
            except SQLAlchemyError as error:
                _log.warning("the audit's heads wait for the database: %s", type(error).__name__)
            except OSError as error:
                self._count("failed", 1)
                _log.error("the audit's heads are not written to %s: %s", self._directory, error)

    def _write(self) -> None:
        written = self._written or _Written(_newest(self._directory))
        with self._engine.connect() as connection:
            now = read_now(connection)
            found = heads_since(connection, min(written.since, now) - WINDOW)
        if fresh := written.fresh(found):
            append_heads(self._directory, fresh, now)
            self._count("written", len(fresh))
        self._written = _Written(now, {head.run_id: head.number for head in found})


def _newest(directory: Path) -> datetime:
    """When the newest of the heads that are written was; where that cannot be read, all are."""
    files = sorted(directory.glob(PATTERN))
    with suppress(BadHeads):
        return max((head.at for file in files[-1:] for head in _heads_of(file)), default=_BEGINNING)
    return _BEGINNING
