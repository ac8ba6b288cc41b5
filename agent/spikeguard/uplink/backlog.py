"""What was numbered and not acknowledged: in the sender's hands, on disk, or in memory.

Messages wait in this order: `_head` (read, the sender's next), the segments of the log, `_tail`
(sealed ones that the disk did not take).

Invariants
- Nothing here locks; the outbox does.
- What is missing on disk is found by the numbers of the records around it, is declared in the next
  message, and is told.
- What the disk does not take stays in memory and is tried again, in its order.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from spikeguard.uplink.log import Log, Note, Segment
from spikeguard.uplink.messages import DAMAGED, gap, gaps_of, records_of
from spikeguard.uplink.shedding import Level, Stretch, extend, outstanding, thinned
from spikeguard_protocol.frames import (
    BEGINNING,
    HEADER_BYTES,
    Frame,
    Kind,
    Position,
    with_tombstones,
)

MOST_STRETCHES = 1_000  # of samples that stood out, the newest
UNREADABLE_S = 60.0  # a disk that is away for longer keeps what lies there; what is newer goes on


@dataclass(slots=True)
class Batch:
    """The records of one message."""

    sequence: int
    frames: list[Frame] = field(default_factory=list)
    size: int = 0  # bytes of them in the log
    begun_at: float = math.inf  # seconds since the epoch, of the oldest record
    at: float = 0.0  # of the newest
    end: Position = BEGINNING
    declared: list[bytes] = field(default_factory=list)  # gaps before its records
    texts: tuple[bytes, ...] | None = None  # of all, once they were put together

    def add(self, frame: Frame) -> None:
        """One more record."""
        self.frames.append(frame)
        self.size += HEADER_BYTES + len(frame.payload)
        self.at, self.begun_at = frame.at, min(self.begun_at, frame.at)
        self.end = frame.end

    @property
    def samples(self) -> int:
        """Samples that it has, or had."""
        return sum(frame.samples for frame in self.frames)

    def put_together(self) -> tuple[bytes, ...]:
        """Its records as they travel."""
        if self.texts is None:
            gaps = gaps_of(self.frames, self.sequence)
            self.texts = (*records_of(self.frames), *gaps, *self.declared)
        return self.texts


class Backlog:
    """The sealed messages of one attempt, and the log that they lie in."""

    def __init__(self, log: Log, tell: Callable[[str], object]) -> None:
        """Go on where an attempt stopped that wrote here; raise OSError where it is unreadable."""
        self.log, self._tell = log, tell
        found = log.note or Note()
        if log.note is None and not log.fresh and not log.foreign:
            tell("the note beside its log was damaged")
        self.ended = found.ended
        self.newest, self.end = self._newest_found(found)
        self.found_dead = self.newest > 0  # somebody wrote here before
        self._acknowledged, self._acknowledged_to = found.acknowledged, found.acknowledged_to
        self._taken = found.acknowledged  # the last message that was in `_head`
        self._expected = found.acknowledged_to if log.note is not None else None
        self._head: deque[Batch] = deque()
        self._tail: deque[Batch] = deque()
        self._late: list[Frame] = []  # of a message that was sent without them
        self._unwritten: list[Frame] = []
        self._unwritten_bytes = 0
        self._outstanding: deque[Stretch] = deque(maxlen=MOST_STRETCHES)
        self._takes = True  # whether the disk took the last write
        self._unreadable_since: float | None = None  # monotonic

    def _newest_found(self, note: Note) -> tuple[int, Position]:
        """The last message and where the records end: a kill may have left more than the note."""
        newest, end = max(note.newest, note.end.number > 1), note.end
        for segment in reversed(self.log.segments):
            if frames := self.log.read(segment)[0]:
                return max(newest, frames[-1].message), max(end, frames[-1].end)
        return newest, end

    @property
    def behind(self) -> bool:
        """Whether sealed messages wait that are not in the sender's hands."""
        return self.newest > self._taken

    @property
    def held(self) -> int:
        """Messages in the sender's hands."""
        return len(self._head)

    @property
    def waiting(self) -> int:
        """Messages that were not acknowledged, about."""
        return self.newest - self._acknowledged

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes on disk and in memory."""
        return self.log.size, self._unwritten_bytes

    # ---- to the disk -------------------------------------------------------------------------

    def add(self, frame: Frame) -> None:
        """One more record; `flush` writes it."""
        self.end = frame.end
        self._unwritten.append(frame)
        if frame.kept:
            extend(self._outstanding, frame.total)
        self._unwritten_bytes += len(frame.payload)

    def flush(self) -> bool:
        """Write what is not on disk yet, a message at a time; whether all of it is there."""
        try:
            while self._unwritten:
                message = self._unwritten[0].message
                frames = [frame for frame in self._unwritten if frame.message == message]
                writing = self.log.writing
                if writing is not None and writing.last_message != message:
                    self.log.rotate_if_full()
                self.log.append(frames, frames[0].number, message)
                self._keep_unwritten(self._unwritten[len(frames) :])
        except OSError as error:
            if self._takes and self.log.folder is not None:
                self._tell(f"it cannot be written ({error.strerror}): messages stay in memory")
            self._takes = False
            self.note()  # a kill would lose in silence what is in memory alone
            return False
        self._takes = True
        self._tail.clear()
        return True

    def seal(self, batch: Batch, *, to_send: bool = False) -> None:
        """No record comes to `batch` any more. `to_send`: the sender waits for it."""
        self.newest = batch.sequence
        if not batch.frames:
            batch.end = self.end
        written = self.flush()
        if written and batch.frames:
            self._sync()
        self.note()
        if to_send:
            self._take(batch)
        elif not written:
            self._tail.append(batch)

    def _sync(self) -> None:
        try:
            self.log.sync()
        except OSError as error:
            self._tell(f"its log cannot be synced: {error.strerror}")

    def note(self) -> None:
        """What the next attempt has to know."""
        said = Note(self.newest, self.end, self._acknowledged, self._acknowledged_to, self.ended)
        self.log.write_note(said)

    def _keep_unwritten(self, frames: list[Frame]) -> None:
        self._unwritten = frames
        self._unwritten_bytes = sum(len(frame.payload) for frame in frames)

    # ---- to the sender -----------------------------------------------------------------------

    def oldest(self) -> Batch | None:
        """The next one to send; raise OSError while the disk that it lies on may come back."""
        if not self._head and self.behind:
            self._load()
        if not self._head:
            while self._tail:
                self._take(self._tail.popleft())
        if not self._head and not self.cut_short:
            self._taken = self.newest
        return self._head[0] if self._head else None

    def of(self, sequence: int) -> Batch | None:
        """The message of that number in the sender's hands."""
        return next((batch for batch in self._head if batch.sequence == sequence), None)

    def put_first(self, batch: Batch) -> None:
        """Send it before all others."""
        self._head.appendleft(batch)

    @property
    def cut_short(self) -> bool:
        """Whether records are missing behind the last one that was found."""
        return bool(self._late) or (self._expected is not None and self._expected < self.end)

    @property
    def first_waiting(self) -> int:
        """The number of the oldest message that is here."""
        return self._head[0].sequence if self._head else self._taken + 1

    def acknowledge(self, sequence: int) -> None:
        """The server has everything up to `sequence`."""
        while self._head and self._head[0].sequence <= sequence:
            batch = self._head.popleft()
            self._acknowledged = max(self._acknowledged, batch.sequence)
            self._acknowledged_to = max(self._acknowledged_to, batch.end)
        if self._unwritten:
            left = [frame for frame in self._unwritten if frame.message > self._acknowledged]
            self._keep_unwritten(left)
        for segment in list(self.log.segments):
            if 0 < segment.last_message <= self._acknowledged and segment is not self.log.writing:
                self.log.remove(segment)
        self.note()

    def _load(self) -> None:
        """The messages of the oldest segment that was not read yet."""
        for segment in list(self.log.segments):
            if 0 < segment.last_message <= self._taken:
                continue
            if segment is self.log.writing:
                self.log.rotate()
            frames, damaged = self._read(segment)
            last = max((frame.message for frame in frames), default=max(1, self._taken))
            segment.last_message = max(segment.last_message, last)
            self._admit(frames, damaged)
            if self._head:
                return

    def _read(self, segment: Segment) -> tuple[list[Frame], int]:
        """Raise OSError while the disk may come back; afterwards as if nothing were there."""
        now = time.monotonic()
        try:
            found = self.log.read(segment)
        except OSError as error:
            since = self._unreadable_since = self._unreadable_since or now
            if now - since < UNREADABLE_S:
                raise
            self._tell(f"{segment.name} cannot be read: {error.strerror}")
            return [], 0
        self._unreadable_since = None
        return found

    def _admit(self, frames: list[Frame], damaged: int) -> None:
        """Take the messages out of `frames` that the sender has not had yet."""
        if damaged:
            self._tell(f"{damaged} bytes of its log were damaged")
        if self._expected is None and frames:  # nobody knows what was acknowledged
            self._expected = frames[0].start
        known = self._expected.number if self._expected is not None else 1
        fresh = with_tombstones(frame for frame in frames if frame.number >= known)
        for message, group in groupby(fresh, lambda frame: frame.message):
            if message <= self._taken:
                self._late += group
                continue
            batch = Batch(message)
            for frame in group:
                batch.add(frame)
            self._take(batch)

    def _take(self, batch: Batch) -> None:
        """It goes next; what is missing before it is declared."""
        if self._late:  # between these and its own some may be missing
            batch.frames, self._late = [*with_tombstones([*self._late, *batch.frames])], []
        start = batch.frames[0].start if batch.frames else batch.end
        expected = self._expected or start
        records, samples = start.number - expected.number, max(0, start.total - expected.total)
        if records > 0:
            self._declare(batch, samples)
        self._tell_lost(batch.frames, max(0, records), samples)
        self._expected, self._taken = max(expected, batch.end), max(self._taken, batch.sequence)
        self._head.append(batch)

    def _declare(self, batch: Batch, samples: int) -> None:
        """In place of the messages that are missing before `batch`, or in it."""
        first, last = self._taken + 1, max(self._taken + 1, batch.sequence - 1)
        said = gap(first, last, DAMAGED, samples)
        if first == batch.sequence:
            batch.declared.append(said)
        else:
            self._head.append(Batch(first, at=batch.at, texts=(said,)))

    def _tell_lost(self, frames: Iterable[Frame], records: int, samples: int) -> None:
        for frame in frames:
            if frame.kind is Kind.LOST:
                records, samples = records + frame.span, samples + frame.samples
        if records:
            self._tell(f"{records} records with {samples} samples are lost: {DAMAGED}")

    # ---- less of it --------------------------------------------------------------------------

    def thicker(self, level: Level) -> Segment | None:
        """The oldest segment that still holds something of that level."""
        return next((s for s in self.log.segments if s.level < level), None)

    def thin(self, segment: Segment, level: Level) -> Counter[str]:
        """Take out of `segment` what goes at `level`; what has gone."""
        if segment is self.log.writing:
            self.log.rotate()
        segment.level = level
        try:
            frames, damaged = self.log.read(segment)
            around = self._around(segment) if level is Level.SURROUNDINGS else []
            left = [f for f in frames if f.number >= self._acknowledged_to.number]
            known = self._expected.number if self._expected is not None else 0
            sent = [frame._replace(level=level) for frame in left if frame.number < known]
            whole = with_tombstones(frame for frame in left if frame.number >= known)
            kept, lost = thinned(whole, level, around)
            self.log.replace(segment, [*sent, *kept])
        except OSError as error:  # a disk without room for a copy, or one that is away
            self._tell(f"{segment.name} cannot be thinned: {error.strerror}")
            return Counter()
        if damaged:
            self._tell(f"{damaged} bytes of its log were damaged")
        return lost

    def _around(self, segment: Segment) -> list[Stretch]:
        """What stood out in this attempt's time, and in the segments before and behind."""
        place = self.log.segments.index(segment)
        others = self.log.segments[max(0, place - 1) : place + 2]
        read = [self.log.read(each)[0] for each in others if each is not segment]
        return [*self._outstanding, *(stretch for each in read for stretch in outstanding(each))]

    def thin_memory(self, level: Level) -> Counter[str] | None:
        """The same of the oldest message that the disk did not take; None: there is none."""
        for batch in self._tail:
            if any(frame.level < level for frame in batch.frames):
                batch.frames, lost = thinned(batch.frames, level, self._outstanding)
                others = [f for f in self._unwritten if f.message != batch.sequence]
                together = sorted([*others, *batch.frames], key=lambda frame: frame.number)
                self._keep_unwritten(together)
                return lost
        return None
