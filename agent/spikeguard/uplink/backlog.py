"""The messages of one attempt that wait for the server, in files, or in memory where those fail.

Nothing here locks: the outbox does. Every line says how many records and samples came before it, so
whatever is missing between two of them is counted and declared in the next message.
`FOLDER/000000000007.jsonl` holds message 7. `FOLDER/lock` is held by the one process that writes;
the last numbers stand in it too, so that messages whose files are missing are missed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from spikeguard.uplink.messages import DAMAGED, FULL, gap, records_of
from spikeguard_protocol.encoding import (
    Position,
    SpooledLine,
    read_spooled,
    seal,
    spool_name,
    unseal,
)

SEAL_BYTES = 512 * 1024  # an open message; well under the protocol's limit
LEAST_SEAL_BYTES = 2 * 1024
SEAL_RECORDS = 900
KEPT = {"AttemptStarted", "SegmentStarted", "AttemptEnded"}  # records that make sense of the rest
UNREADABLE_S = 60.0  # a disk that is away for longer keeps what lies there; what is newer goes on


@dataclass(slots=True)
class Pending:
    """A message that the server has not acknowledged."""

    sequence: int
    lines: list[bytes] | None = field(default_factory=list)  # None: they are on disk alone
    written: int = 0  # of `lines` that are on disk
    size: int = 0  # bytes of the lines
    samples: int = 0
    begun_at: float = math.inf  # seconds since the epoch, of the oldest record
    at: float = 0.0  # of the newest
    end: Position | None = None  # of its records; None: not known yet
    texts: tuple[bytes, ...] | None = None  # its records as they travel, once the sender has it
    stays: bool = False  # it holds a record of `KEPT`

    @property
    def in_memory(self) -> bool:
        """Whether the disk did not take all of it."""
        return self.lines is not None and self.written < len(self.lines)


class Backlog:
    """The open message, and those that are sealed and not acknowledged."""

    def __init__(
        self, folder: Path | None, attempt: str, limit: int, tell: Callable[[str], object]
    ) -> None:
        """Go on where an attempt stopped that wrote here; raise OSError where it is unreadable."""
        self.attempt, self.folder = attempt, folder
        self.dropped: Counter[str] = Counter()  # by what it was, for want of room
        self.size = 0  # bytes of all messages
        self._tell_of = tell
        self._seal_bytes = min(SEAL_BYTES, max(limit // 32, LEAST_SEAL_BYTES))
        self._clock = time.time() - time.monotonic()  # so that a jump of the clock ages nothing
        self._spool = Spool(folder, attempt)
        self._written = folder is not None  # whether the disk has all that was put
        self._unreadable_since: float | None = None  # monotonic
        self._sealed: deque[Pending] = deque()  # oldest first
        self._find()

    def _find(self) -> None:
        """Go on where an attempt stopped that wrote here."""
        spool, note = self._spool, self._spool.note or Note()
        if spool.note is None and not spool.fresh:
            self._tell("the note beside its messages was damaged")
        for message, size in sorted(spool.sizes.items()):
            if message <= note.acknowledged:
                spool.remove(message)
            else:
                self._sealed.append(Pending(message, None, size=size))
                self.size += size
        self.ended, self._dropped_to = note.ended, note.dropped_to  # its last record is there
        self._acknowledged, self._acknowledged_to = note.acknowledged, note.acknowledged_to
        self._expected = note.acknowledged_to if spool.note or spool.fresh else None
        self._due = note.acknowledged + 1  # the message that the server is to get next
        self._end = note.end
        for pending in reversed(self._sealed):  # a kill may have left more than the note
            if lines := spool.read(pending.sequence)[0]:
                self._end = max(self._end, lines[-1].end)
                break
        newest = max(note.newest, *spool.sizes, 0, int(self._end > Position()))
        self._found_dead = newest > 0
        self._open = Pending(newest + 1)

    def _tell(self, what: str) -> None:
        self._tell_of(f"attempt {self.attempt}: {what}")

    def tell_dropped(self) -> None:
        """What went so far for want of room."""
        parts = ", ".join(f"{count} {what}" for what, count in sorted(self.dropped.items()))
        self._tell(f"the outbox was full and dropped {parts} so far")

    @property
    def sequence(self) -> int:
        """The highest number that a message has got."""
        return self._open.sequence - 1

    @property
    def _cut_short(self) -> bool:
        """Whether records are missing behind the last one that was found."""
        return self._expected is not None and self._expected < self._end

    # ---- to the sender -----------------------------------------------------------------------

    def _put_together(self, head: Pending) -> None:
        """Make the texts of the oldest message, and gaps for what is missing before or in it."""
        lines = self._lines(head)
        expected = self._expected or (lines[0].start if lines else head.end)
        begins = lines[0].start if lines else head.end
        if expected and begins and begins.number > expected.number and head.sequence > self._due:
            self._declare_before(head, expected, begins)
            return
        lost: Counter[str] = Counter()  # samples by reason
        sound: list[SpooledLine] = []
        for line in lines:
            if expected and line.start.number < expected.number:
                continue  # it is in a message before, or a gap stands for it
            self._count_missing(lost, expected, line.start)
            sound.append(line)
            expected = line.end
        self._count_missing(lost, expected, head.end)
        gaps = (gap(head.sequence, head.sequence, why, count) for why, count in lost.items())
        head.texts = (*records_of(sound), *gaps)
        head.end = self._expected = max(filter(None, (expected, head.end)), default=None)
        head.samples = sum("step" in line.entry for line in sound) + sum(lost.values())
        head.at = head.at or (lines[-1].at if lines else time.monotonic() + self._clock)
        self._due = head.sequence + 1

    def _declare_before(self, head: Pending, expected: Position, begins: Position) -> None:
        """One gap for the messages before `head` whose files are gone."""
        lost: Counter[str] = Counter()
        self._count_missing(lost, expected, begins)
        ((why, samples),) = lost.items()
        first, self._expected = self._due, begins
        said = gap(first, head.sequence - 1, why, samples)
        self._sealed.appendleft(Pending(first, None, end=begins, texts=(said,), at=head.at))
        self._sealed[0].at = head.at or time.monotonic() + self._clock
        self._due = head.sequence

    def _count_missing(
        self, lost: Counter[str], expected: Position | None, found: Position | None
    ) -> None:
        if expected is None or found is None or found.number <= expected.number:
            return
        why = FULL if found <= self._dropped_to else DAMAGED
        records, samples = found.number - expected.number, max(0, found.total - expected.total)
        lost[why] += samples
        if why is DAMAGED:
            self._tell(f"{records} records with {samples} samples are lost: {DAMAGED}")

    def _lines(self, pending: Pending) -> list[SpooledLine]:
        """Raise OSError while the disk may come back; afterwards as if nothing were there."""
        if pending.lines is not None:
            name = spool_name(self.attempt, pending.sequence)
            return read_spooled(b"".join(pending.lines), name)[0]
        try:
            lines, damaged = self._spool.read(pending.sequence)
        except OSError as error:
            now = time.monotonic()
            since = self._unreadable_since = self._unreadable_since or now
            if now - since < UNREADABLE_S:
                raise
            self._tell(f"message {pending.sequence} cannot be read: {error.strerror}")
            return []
        self._unreadable_since = None
        if damaged:
            self._tell(f"{damaged} bytes of message {pending.sequence} were damaged on disk")
        return lines

    # ---- to the disk -------------------------------------------------------------------------

    def _add_line(self, clock: float, body: bytes, samples: int) -> None:
        open_, (number, total) = self._open, self._end
        name = spool_name(self.attempt, open_.sequence)
        line = seal(b'{"total":%d,"at":%.3f,%b}' % (total, clock, body), number, name)
        assert open_.lines is not None
        open_.lines.append(line)
        open_.size += len(line)
        self.size += len(line)
        open_.at, open_.begun_at = clock, min(open_.begun_at, clock)
        self._end = Position(number + 1, total + samples)
        if open_.size > self._seal_bytes or len(open_.lines) >= SEAL_RECORDS:
            self._seal()

    def _seal(self) -> None:
        """The open message is whole; the next record begins another one."""
        sealed, self._open = self._open, Pending(self._open.sequence + 1)
        sealed.end, sealed.at = self._end, sealed.at or time.monotonic() + self._clock
        self._sealed.append(sealed)
        if self._flush() and sealed.lines:
            try:
                self._spool.sync()
            except OSError as error:
                self._tell(f"its messages cannot be synced: {error.strerror}")
        self._note()

    def _flush(self) -> bool:
        """Write what is not on disk yet; whether all of it is there."""
        if self.folder is None:
            return False
        pending = (self._open, self._sealed[-1]) if self._written and self._sealed else (
            *self._sealed, self._open)  # fmt: skip
        try:
            for each in pending:
                if each.lines and each.in_memory:
                    self._spool.append(each.sequence, each.lines, each.written)
                    each.written = len(each.lines)
                if each is not self._open and each is not self._sealed[0]:
                    each.lines = None
        except OSError as error:
            if self._written:
                self._tell(f"it cannot be written ({error.strerror}): messages stay in memory")
            self._written = False
            self._note()  # a kill would lose in silence what is in memory alone
            return False
        self._written = True
        return True

    def _note(self) -> None:
        """Write what the next attempt has to know."""
        acknowledged = self._acknowledged, self._acknowledged_to
        self._spool.write_note(
            Note(self.sequence, self._end, *acknowledged, self._dropped_to, self.ended)
        )

    # ---- less of it --------------------------------------------------------------------------

    def _drop(self, pending: Pending) -> None:
        lines: list[SpooledLine] = []
        with suppress(OSError):  # a disk that is away is no room either
            lines = self._lines(pending)
        types = {line.entry["record"].get("type") for line in lines if "record" in line.entry}
        if KEPT & types:
            pending.stays = True
            return
        self._sealed.remove(pending)
        self._spool.remove(pending.sequence)
        self.size -= pending.size
        self._dropped_to = max(self._dropped_to, pending.end or Position())
        samples = sum("step" in line.entry for line in lines)
        self.dropped += Counter(messages=1, samples=samples)
        self._note()


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
