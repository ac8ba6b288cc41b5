"""The messages of one attempt that wait for the server, in files, or in memory where those fail.

Nothing here locks: the outbox does. Every line says how many records and samples came before it, so
whatever is missing between two of them is counted and declared in the next message.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from spikeguard.uplink.messages import DAMAGED, FULL, gap, records_of
from spikeguard.uplink.spool import Note, Spool
from spikeguard_protocol.encoding import (
    Position,
    SpooledLine,
    read_spooled,
    seal,
    spool_name,
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
