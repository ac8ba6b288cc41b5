"""The files of one attempt's unsent messages: `FOLDER/000000000007.jsonl` holds message 7.

`FOLDER/lock` is held by the one process that writes. The last numbers stand in it too, so that
messages whose files are missing are missed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from spikeguard_protocol.encoding import (
    Position,
    SpooledLine,
    read_spooled,
    seal,
    spool_name,
    unseal,
)

MOST_BYTES = 16 * 2**20  # of a file that is read; the rest of a longer one is damaged
LOCK = "lock"
_NAME = re.compile(r"([0-9]{12,15})\.jsonl")
_NOTE_BYTES = 240  # a note overwrites the one before as a whole
_ADD = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Note(NamedTuple):
    """What whoever finds the files has to know."""

    newest: int = 0  # message that got a number
    end: Position = Position()  # of the records
    acknowledged: int = 0  # message that the server has
    acknowledged_to: Position = Position()
    dropped_to: Position = Position()  # up to here messages went for want of room
    ended: bool = False  # the attempt sent its last record

    def text(self, attempt: str) -> bytes:
        """One sealed line."""
        body = json.dumps(self._asdict()).encode()
        return seal(body, self.newest, attempt)[:-1].ljust(_NOTE_BYTES) + b"\n"

    @classmethod
    def read(cls, text: bytes, attempt: str) -> Note | None:
        """None for what is no such line."""
        line = text.partition(b"\n")[0].rstrip()
        sealed = unseal(line, attempt)
        if sealed is None or not sealed[1]:
            return None
        plain = json.loads(line)
        return cls(
            plain["newest"],
            Position(*plain["end"]),
            plain["acknowledged"],
            Position(*plain["acknowledged_to"]),
            Position(*plain["dropped_to"]),
            plain["ended"],
        )


class Spool:
    """The folder of one attempt; `folder` None: there is no disk, and every write raises."""

    def __init__(self, folder: Path | None, attempt: str) -> None:
        """Raise OSError (BlockingIOError) where the folder cannot be claimed."""
        self.folder, self.attempt = folder, attempt
        self.sizes: dict[int, int] = {}  # bytes by message, of the files that were found
        self.note: Note | None = None  # as it was found
        self.fresh = True  # nobody has written here before
        self._lock = -1
        self._file, self._writing = -1, 0  # of the message that was written to last
        self._torn = False  # a write failed and may have left half a line
        if folder is not None:
            self._claim(folder)

    def _claim(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.pread(self._lock, _NOTE_BYTES + 1, 0)
            for path in folder.iterdir():
                if match := _NAME.fullmatch(path.name):
                    with suppress(OSError):  # gone meanwhile
                        self.sizes[int(match[1])] = path.stat().st_size
        except OSError:
            self.close(used_up=False)
            raise
        self.note, self.fresh = Note.read(found, self.attempt), not (found or self.sizes)

    def append(self, message: int, lines: Sequence[bytes], written: int) -> None:
        """Write `lines` of a message, all or none, but the first `written`; raise OSError."""
        if self._lock < 0:
            raise FileNotFoundError(errno.ENOENT, "this outbox lies in memory")
        if message == self._writing and not os.fstat(self._file).st_nlink:  # it was removed
            self._release()
            written = 0
        if message != self._writing:
            self._release()
            self._file = os.open(self._path(message), _ADD, 0o600)
            self._writing = message
        status = os.fstat(self._file)
        data = b"\n" * self._torn + b"".join(lines[written:])
        try:
            if os.write(self._file, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._torn = False
        except OSError:
            self._torn = True
            with suppress(OSError):
                os.ftruncate(self._file, status.st_size)
                self._torn = False
            self._release()
            if not status.st_size:
                self.remove(message)
            raise

    def sync(self) -> None:
        """Have the disk hold what was appended last; raise OSError."""
        if self._file >= 0:
            os.fdatasync(self._file)

    def _release(self) -> None:
        file, self._file, self._writing = self._file, -1, 0
        if file >= 0:
            with suppress(OSError):
                os.close(file)

    def read(self, message: int) -> tuple[list[SpooledLine], int]:
        """Its lines, and how many bytes are damaged; raise OSError where the disk is away. An empty
        file is none: a job that is killed leaves it where it had begun a message."""
        data = b""
        with suppress(FileNotFoundError), self._path(message).open("rb") as file:
            data = file.read(MOST_BYTES)
        return read_spooled(data, spool_name(self.attempt, message))

    def remove(self, message: int) -> None:
        """It is needed no more."""
        if message == self._writing:
            self._release()
        if self._lock >= 0:
            with suppress(OSError):  # there is none, or the disk is gone
                self._path(message).unlink()

    def write_note(self, note: Note) -> None:
        """For whoever finds this later."""
        if self._lock >= 0:
            with suppress(OSError):
                os.pwrite(self._lock, note.text(self.attempt), 0)

    def close(self, used_up: bool) -> None:
        """Let others claim the folder; one that is `used_up` goes, unless others' files lie there.

        The numbers of the files may be somebody else's in a moment.
        """
        self._release()
        lock, self._lock = self._lock, -1
        if used_up and lock >= 0 and self.folder is not None:
            with suppress(OSError):
                (self.folder / LOCK).unlink(missing_ok=True)
                self.folder.rmdir()
        if lock >= 0:
            with suppress(OSError):  # what a network's file system reports as it closes
                os.close(lock)

    def _path(self, message: int) -> Path:
        if self.folder is None:
            raise FileNotFoundError(errno.ENOENT, "this outbox lies in memory")
        return self.folder / f"{message:012d}.jsonl"
