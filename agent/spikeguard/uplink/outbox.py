"""Records waiting for the server: written ahead on local disk, numbered, bounded.

The loop only appends to a deque. A thread of its own writes the records to the open message's
file (`letter_files`); the sender seals it when it is ready to send. After SIGKILL the next attempt
finds the files and sends them.
Law: no lock is shared with the loop. Numbers have no holes: over `limit` bytes messages are thinned
out, the oldest first, stage by stage (`thinning`: norms by layer, slow signals, samples, ...); they
then carry a `Gap` that says how many samples were lost, and `dropped` counts everything. A message
refused for good becomes a `Gap`. Commands' results and segments are kept. Without a working disk
the newest messages stay in memory.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from spikeguard.uplink.letter import Draft, Letter, Mark
from spikeguard.uplink.letter_files import LetterFiles
from spikeguard.uplink.lines import count_samples, encoded, merged
from spikeguard.uplink.room import Room
from spikeguard.uplink.thinning import Neighbours, Stage, samples_in, thinned
from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    Gap,
    LayerNorms,
    Message,
    Record,
    RunId,
    Samples,
    SegmentStarted,
)

WAITING = 5_000  # samples between the loop and the disk; of anything else, twice as many
SEAL_BYTES = 512 * 1024  # an open message; well under the protocol's limit
SEAL_RECORDS = 900
SEAL_S = 30.0  # from its oldest record to its newest: what is old must not travel as if it were new
LONG_SEAL_S = 300.0  # the same once `MANY` messages wait: a month without a server is many files
MANY = 120
CLOSING_S = 5.0  # for a disk that takes its time
DRAIN_S = 0.05  # a SIGKILL costs no more samples than this
BREATH_S = 0.0002  # after each record
THIN_S = 0.001  # after each message that is thinned out
UNREADABLE_S = 60.0  # a disk that is away for longer keeps what lies there; what is newer goes on
SEGMENTS = 64  # newest ones that a server which lost them is told of again
HURRY = 100  # one record more at a time for so many that wait


class Outbox:
    """The messages of one attempt that the server has not acknowledged."""

    def __init__(
        self,
        folder: Path | None,
        run: RunId,
        attempt: str,
        room: Room | int,
    ) -> None:
        """`folder` None keeps everything in memory; raise OSError if it cannot be claimed.

        `room`: bytes on disk, or the room that it shares with others.
        """
        self.run, self.attempt = run, attempt
        self._waiting: deque[tuple[float, Record | Draft]] = deque()
        self._overflowed: dict[tuple[int, str], int] = {}  # by thread: each counts up its own
        self._declared: Counter[str] = Counter()  # of those, what the server is told of
        self.watched_until = -math.inf  # the server asks for detail, monotonic; the sender's to say
        self.room = room if isinstance(room, Room) else Room(room)
        self.on_closed: Callable[[], object] = bool  # called by the writer, at its end
        self._io = threading.Lock()  # between writer and sender, never the loop
        self._sealed: deque[Letter] = deque()
        self._sizes: tuple[int, int] | None = None  # of those, on disk and in memory; None: to add
        self._started: AttemptStarted | None = None
        self._segments: deque[SegmentStarted] = deque(maxlen=SEGMENTS)
        self._closing = threading.Event()
        self._says_ended = False
        self._unreadable_since: float | None = None  # the disk, monotonic
        self.closed = False
        self._files = LetterFiles(folder)
        left, newest, self.ended = self._files.left()
        self._sealed.extend(left)
        self._open = Letter(newest + 1, lines=[])
        self._writer: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write what the loop puts."""
        self._writer = threading.Thread(target=self._write_on, name="spikeguard-outbox")
        self._writer.daemon = True
        self._writer.start()

    @property
    def folder(self) -> Path | None:
        """Where the messages lie; None: in memory."""
        return self._files.folder

    @property
    def dropped(self) -> Counter[str]:
        """By what it was, for want of room."""
        return self.room.dropped

    def put(self, record: Record | Draft, at: float | None = None) -> None:
        """Called from the loop: never waits. A draft is made a record by the writer's thread.

        `at`: when it was made, monotonic seconds, where the caller knows.
        """
        if len(self._waiting) >= WAITING and self._has_no_room(record):
            return
        self._waiting.append((time.monotonic() if at is None else at, record))

    def _has_no_room(self, record: Record | Draft) -> bool:
        """Samples and detail go first: what commands came to is rare and worth more."""
        plain = callable(record) or isinstance(record, Samples | LayerNorms)
        if not plain and len(self._waiting) < 2 * WAITING:
            return False
        key = threading.get_ident(), "samples" if plain else "records"
        self._overflowed[key] = self._overflowed.get(key, 0) + 1
        return True

    @property
    def sequence(self) -> int:
        """The highest number that a message has got."""
        return self._open.sequence - 1

    @property
    def unbegun(self) -> bool:
        """Whether there is nothing to say yet: the attempt's first message introduces it."""
        return self.empty and self._open.sequence == 1

    @property
    def empty(self) -> bool:
        """Whether everything was acknowledged."""
        return not (self._waiting or self._sealed or self._open.records)

    @property
    def written_ahead(self) -> bool:
        """Whether all that was put is past the loop's queue."""
        return not self._waiting

    @property
    def backlog(self) -> bool:
        """Whether a whole message already waits behind the one being sent."""
        return len(self._sealed) > 0

    def next_message(self) -> Message | None:
        """The oldest message not acknowledged, a heartbeat if nothing waits; None once closed."""
        with self._io:
            if self.closed:
                return None
            self._drain()
            if not self._sealed:
                self._seal()
            letter = self._sealed[0]
            records = merged(self._read_or_given_up(letter))
        age = max(0.0, time.monotonic() - letter.at)
        return Message(
            self.run.project, self.run.name, self.attempt, letter.sequence, age, tuple(records)
        )

    def acknowledge(self, sequence: int) -> None:
        """The server stored everything up to `sequence`."""
        with self._io:
            while not self.closed and self._sealed and self._sealed[0].sequence <= sequence:
                letter, self._sizes = self._sealed.popleft(), None
                self._files.remove(letter)

    def replace_by_gap(self, sequence: int, reason: str) -> None:
        """The server refused message `sequence` for good: declare it lost."""
        with self._io:
            for letter in self._sealed:
                if letter.sequence == sequence and not self.closed:
                    lost = count_samples(self._files.read(letter))
                    self._rewrite(letter, [Gap(sequence, sequence, reason[:500], lost)])

    def declare_lost(self, first: int) -> None:
        """The server waits for `first`, which is no longer here: its database was restored.

        One gap up to what is here, and again who this attempt is and where its segments begin.
        """
        with self._io:
            if self.closed:
                return
            oldest = self._sealed[0].sequence if self._sealed else self._open.sequence
            if first < oldest:
                letter = Letter(first)
                gap = Gap(first, oldest - 1, "no longer held", 0)
                again = [self._started] if self._started is not None else []
                self._rewrite(letter, [gap, *again, *self._segments])
                self._sealed.appendleft(letter)
                self._sizes = None

    def end_killed(self, reason: str) -> None:
        """Say for a dead attempt that it ended, once however many find it."""
        with self._io:
            self._add(time.monotonic(), AttemptEnded(reason))
            self._seal()
            self._mark_ended()

    def close(self, within_s: float = CLOSING_S, ended: bool = False) -> None:
        """Stop; what was not acknowledged stays for the next attempt.

        `ended`: the attempt said its last word. A writer that was started does it, and is waited
        for no longer than `within_s`: a disk that hangs may keep it.
        """
        self._says_ended |= ended
        self._closing.set()
        if self._writer is not None:
            self._writer.join(within_s)
        if self._writer is None or not self._writer.is_alive():
            self._shut()

    def _shut(self) -> None:
        with self._io:
            if self.closed:
                return
            self._drain()
            self._files.stop_writing()
            if self._says_ended:
                self._mark_ended()
            self.closed = True
            self._files.give_up(used_up=self.empty)
        self.room.close()
        self.on_closed()

    def _write_on(self) -> None:
        """Record by record: the loop gets the interpreter back in between, and after each wait."""
        while not self._closing.wait(DRAIN_S):
            try:
                if self.keep_up():
                    self.room.bound(self)
            except Exception as error:  # whatever the disk says: without it nothing is written
                self.room.fault(error)
        self._shut()

    def keep_up(self) -> bool:
        """Write down what the loop has put; False if the outbox is to close."""
        while (self._waiting or self._undeclared()) and not self._closing.is_set():
            with self._io:
                self._drain(1 + len(self._waiting) // HURRY)
            time.sleep(BREATH_S)
        return not self._closing.is_set()

    def _drain(self, at_most: int = sys.maxsize) -> None:
        if lost := self._undeclared():
            number = self._open.sequence
            said = Gap(number, number, "the loop outran the disk", lost["samples"])
            self._add(time.monotonic(), said)
            self._declared += lost
            self.room.dropped += lost
        while self._waiting and at_most > 0:
            self._add(*self._waiting.popleft())
            at_most -= 1
        self._files.flush()

    def _undeclared(self) -> Counter[str]:
        """What the loop could not put since; nobody but the threads that put counts it up."""
        lost: Counter[str] = Counter()
        for (_, what), count in tuple(self._overflowed.items()):
            lost[what] += count
        return lost - self._declared

    def _add(self, at: float, record: Record | Draft) -> None:
        if isinstance(record, AttemptStarted):
            self._started = record
        elif isinstance(record, SegmentStarted):
            self._segments.append(record)
        longest_s = SEAL_S if len(self._sealed) < MANY else LONG_SEAL_S
        if at - self._open.begun_at > longest_s:
            self._seal()
        line = self._line(record)
        letter = self._open
        assert letter.lines is not None
        letter.lines.append(line)
        letter.size += len(line)
        letter.records += 1
        letter.at, letter.begun_at = at, min(at, letter.begun_at)
        letter.watched |= at <= self.watched_until
        self._files.append(letter, line)
        if letter.size > SEAL_BYTES or letter.records >= SEAL_RECORDS:
            self._seal()

    def _line(self, record: Record | Draft) -> bytes:
        try:
            return encoded(record() if callable(record) else record)
        except Exception as error:  # whatever it was made of: the writer goes on
            number = self._open.sequence
            return encoded(Gap(number, number, f"could not be written: {error!r}"[:500], 1))

    def _seal(self) -> None:
        letter, self._open = self._open, Letter(self._open.sequence + 1, lines=[])
        self._files.note(letter.sequence, ended=self.ended)
        self._files.seal(letter)
        self._sealed.append(letter)
        self._sizes = None

    def _read_or_given_up(self, letter: Letter) -> list[Record]:
        """Its records, or that they are lost; raise OSError while the disk may come back."""
        now = time.monotonic()
        try:
            records = self._files.read(letter)
            self._unreadable_since = None if letter.lines is None else self._unreadable_since
        except OSError as error:
            since = self._unreadable_since = self._unreadable_since or now
            if now - since < UNREADABLE_S:
                raise
            reason = f"its file cannot be read: {error.strerror}"
            return [Gap(letter.sequence, letter.sequence, reason, 0)]
        return records

    def _rewrite(self, letter: Letter, records: Iterable[Record]) -> None:
        self._sizes = None
        self._files.rewrite(letter, records)

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes on disk and in memory."""
        with self._io:
            on_disk, in_memory = self._sizes or self._added_up()
            return on_disk + self._open.size, in_memory

    def thin(self, stage: Stage, fits: Callable[[], bool]) -> Counter[str]:
        """Thin messages out as far as `stage`, the oldest first, until it `fits`; what has gone."""
        lost: Counter[str] = Counter()
        while not fits():
            with self._io:
                thicker = (at for at in enumerate(self._sealed) if at[1].stage < stage)
                found = next(thicker, None) if not self.closed else None
                if found is None:
                    break
                lost += self._thin(*found, stage)
            time.sleep(THIN_S)
        return lost

    @property
    def marks(self) -> dict[int, Mark]:
        """By sequence: how far each message was thinned out, and the bytes that it then had."""
        with self._io:
            return {letter.sequence: (letter.stage, letter.size) for letter in self._sealed}

    def recall(self, marks: Mapping[int, Mark]) -> None:
        """Take over what is known of messages found on disk: none is read to no purpose again."""
        with self._io:
            for letter in self._sealed:
                stage, size = marks.get(letter.sequence, (letter.stage, letter.size))
                if size == letter.size:
                    letter.stage = stage

    def _added_up(self) -> tuple[int, int]:
        """Kept until a message comes, goes or is thinned: a long outage leaves thousands."""
        in_memory = sum(letter.size for letter in self._sealed if letter.lines is not None)
        self._sizes = sum(letter.size for letter in self._sealed) - in_memory, in_memory
        return self._sizes

    def _thin(self, place: int, letter: Letter, stage: Stage) -> Counter[str]:
        letter.stage = stage
        try:
            records = self._files.read(letter)
            around = self._neighbours(place) if stage is Stage.SURROUNDINGS else Neighbours()
        except OSError:
            return Counter()  # a disk that cannot be read has no room to win
        kept, lost = thinned(records, stage, around, letter.watched)
        if lost["samples"]:
            number = letter.sequence
            kept.append(Gap(number, number, "the outbox was full", lost["samples"]))
        if lost:
            self._rewrite(letter, kept)
        return lost

    def _neighbours(self, place: int) -> Neighbours:
        before, after = place - 1, place + 1
        return Neighbours(
            samples_in(self._files.read(self._sealed[before])) if before >= 0 else (),
            samples_in(self._files.read(self._sealed[after])) if after < len(self._sealed) else (),
        )

    def _mark_ended(self) -> None:
        """Whoever finds this later adds nothing."""
        self.ended = True
        self._files.note(self._open.sequence - 1, ended=True)
