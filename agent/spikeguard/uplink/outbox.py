"""Records waiting for the server: numbered, written to disk at once, bounded.

The loop only appends to a deque and shares no lock. A thread makes the records' texts and writes
them into the file of the open message; the sender seals a message when it is ready to send. After
SIGKILL the next attempt finds the files and sends what is left. What is missing is declared by a
`Gap` with the samples that went for want of room, were damaged on disk, or were refused by the
server. What the disk does not take stays in memory, and is tried again.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from spikeguard.faults import log
from spikeguard.uplink.backlog import LOCK, Backlog, Pending
from spikeguard.uplink.messages import EncodedMessage, gap, texts_of
from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    BatchDetail,
    Gap,
    LayerNorms,
    Record,
    RunId,
    Samples,
    SegmentStarted,
    encode,
)
from spikeguard_protocol.encoding import Position
from spikeguard_protocol.identity import ATTEMPT_PATTERN

WAITING = 5_000  # samples between the loop and the disk; of anything else, twice as many
SEAL_S = 30.0  # from its oldest record to its newest: what is old must not travel as if it were new
CLOSING_S = 5.0  # for a disk that takes its time
DRAIN_S = 0.05  # a SIGKILL costs no more samples than this
PAUSE_S = 0.0002  # after each record, and each message: the loop gets the interpreter back
SEGMENTS = 64  # newest ones that a server which lost them is told of again
RECORDS_AT_ONCE = 100  # one record more at a time for so many that wait
OLDEST_S = 9e8  # a clock that stood at 1970 dates a record further back than a message may say
MEMORY_BYTES = 16 * 2**20  # messages that the disk would not take
KILLED = "killed"


class Draft(Protocol):
    """What a call makes a record of, out of values that nobody changes any more."""

    def __call__(self) -> Record: ...


class Outbox(Backlog):
    """The messages of one attempt that the server has not acknowledged."""

    def __init__(
        self,
        folder: Path | None,
        run: RunId,
        attempt: str,
        limit: int,
        tell: Callable[[str], object] = str,
        earlier: Sequence[Outbox] = (),
    ) -> None:
        """`folder` None keeps everything in memory; raise OSError if it cannot be claimed.

        `limit`: bytes on disk, of it and the outboxes of `earlier` attempts together. `tell`:
        called with what was dropped, damaged or could not be written.
        """
        super().__init__(folder, attempt, limit, tell)
        self.run, self.closed = run, False
        self._limit, self._earlier = limit, earlier
        self._waiting: deque[tuple[float, Record | Draft]] = deque()
        self._overflowed: dict[tuple[int, str], int] = {}  # by thread: each counts up its own
        self._declared: Counter[str] = Counter()  # of those, what the server is told of
        self._io = threading.Lock()  # between writer and sender, never the loop
        self._started: bytes | None = None
        self._segments: deque[bytes] = deque(maxlen=SEGMENTS)
        self._closing = threading.Event()
        self._says_ended = False
        self._writer: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write what the loop puts."""
        self._writer = threading.Thread(target=self._write_on, name="spikeguard-outbox")
        self._writer.daemon = True
        self._writer.start()

    # ---- the loop ----------------------------------------------------------------------------

    def put(self, record: Record | Draft, at: float | None = None) -> None:
        """Called from the loop: never waits. A draft is made a record by the writer's thread.

        `at`: when it was made, monotonic seconds, where the caller knows.
        """
        if len(self._waiting) >= WAITING and self._has_no_room(record):
            return
        self._waiting.append((time.monotonic() if at is None else at, record))

    def _has_no_room(self, record: Record | Draft) -> bool:
        """Samples and detail go first: what commands came to is rare and worth more."""
        plain = callable(record) or isinstance(record, Samples | LayerNorms | BatchDetail)
        if not plain and len(self._waiting) < 2 * WAITING:
            return False
        key = threading.get_ident(), "samples" if plain else "records"
        self._overflowed[key] = self._overflowed.get(key, 0) + 1
        return True

    @property
    def unbegun(self) -> bool:
        """Whether there is nothing to say yet: the attempt's first message introduces it."""
        return self.empty and self._open.sequence == 1

    @property
    def empty(self) -> bool:
        """Whether everything was acknowledged."""
        undeclared = self._found_dead and self._cut_short
        return not (self._waiting or self._open.lines or self._sealed or undeclared)

    # ---- the sender --------------------------------------------------------------------------

    @property
    def backlog(self) -> bool:
        """Whether a whole message already waits behind the one being sent."""
        return bool(self._sealed)

    def next_message(self) -> EncodedMessage | None:
        """The oldest message not acknowledged, a heartbeat if nothing waits.

        None once closed, or where a dead attempt has nothing left; raise OSError while the disk
        that it lies on may come back.
        """
        with self._io:
            if self.closed:
                return None
            self._drain()
            if not self._sealed:
                if self._found_dead and not self._open.lines and not self._cut_short:
                    return None
                self._seal()
            if self._sealed[0].texts is None:
                self._put_together(self._sealed[0])
            head = self._sealed[0]
        age_s = max(0.0, time.monotonic() + self._clock - head.at)
        name = self.run.project, self.run.name, self.attempt
        return EncodedMessage(*name, head.sequence, min(age_s, OLDEST_S), head.texts or ())

    def acknowledge(self, sequence: int) -> None:
        """The server stored everything up to `sequence`."""
        with self._io:
            if self.closed:
                return
            gone = []
            while self._sealed and self._sealed[0].sequence <= sequence:
                pending = self._sealed.popleft()
                gone.append(pending.sequence)
                self.size -= pending.size
                self._acknowledged = max(self._acknowledged, pending.sequence)
                if pending.texts is None:  # the server has it: nothing of it is missing
                    self._expected = pending.end
                self._acknowledged_to = max(self._acknowledged_to, pending.end or Position())
            self._due = max(self._due, self._acknowledged + 1)
            self._note()
            for message in gone:
                self._spool.remove(message)

    def replace_by_gap(self, sequence: int, reason: str) -> None:
        """The server refused message `sequence` for good: declare it lost."""
        with self._io:
            head = self._sealed[0] if self._sealed else None
            if head is not None and head.sequence == sequence and not self.closed:
                head.texts = (gap(sequence, sequence, reason, head.samples),)

    def declare_lost(self, first: int) -> None:
        """The server waits for `first`, which is no longer here: its database was restored.

        One gap up to what is here, and again who this attempt is and where its segments begin.
        """
        with self._io:
            oldest = self._sealed[0].sequence if self._sealed else self._open.sequence
            if self.closed or first >= oldest:
                return
            again = [self._started] if self._started is not None else []
            texts = (gap(first, oldest - 1, "no longer held", 0), *again, *self._segments)
            at = time.monotonic() + self._clock
            self._sealed.appendleft(Pending(first, None, at=at, texts=texts))

    def end_killed(self, reason: str) -> None:
        """Record for a dead attempt that it ended, once however many find it."""
        with self._io:
            self._add(time.monotonic(), AttemptEnded(reason))
            self.ended = True
            self._seal()

    def close(self, within_s: float = CLOSING_S, ended: bool = False) -> None:
        """Stop; what was not acknowledged stays for the next attempt.

        `ended`: the attempt sent its last record. A writer that was started does it, and is waited
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
            self.ended |= self._says_ended
            self._note()
            self.closed = True
            self._spool.close(used_up=self.empty)

    # ---- the writer --------------------------------------------------------------------------

    def _write_on(self) -> None:
        while not self._closing.wait(DRAIN_S):
            try:
                self.keep_up()
            except Exception as error:  # whatever the disk says: without it nothing is written
                self._tell(f"the outbox was not kept up: {error!r}")
        self._shut()

    def keep_up(self) -> None:
        """Write down what the loop has put, record by record, and drop what is over the limit."""
        while (self._waiting or self._undeclared()) and not self._closing.is_set():
            with self._io:
                self._drain(1 + len(self._waiting) // RECORDS_AT_ONCE)
            time.sleep(PAUSE_S)
        if not self._written:
            with self._io:
                self._flush()
        before = self.dropped.total()
        while not self._closing.is_set() and self._is_full() and self.drop():
            time.sleep(PAUSE_S)
        if self.dropped.total() > before:
            self.tell_dropped()

    def _drain(self, at_most: int = sys.maxsize) -> None:
        if lost := self._undeclared():
            number = self._open.sequence
            said = Gap(number, number, "the loop outran the disk", lost["samples"])
            self._add(time.monotonic(), said)
            self._declared += lost
            self.dropped += lost
        before = self._end
        while self._waiting and at_most > 0:
            self._add(*self._waiting.popleft())
            at_most -= 1
        if self._end != before:
            self._flush()
            self._note()

    def _undeclared(self) -> Counter[str]:
        """What the loop could not put since; nobody but the threads that put counts it up."""
        lost: Counter[str] = Counter()
        for (_, what), count in tuple(self._overflowed.items()):
            lost[what] += count
        return lost - self._declared

    def _add(self, at: float, record: Record | Draft) -> None:
        clock = at + self._clock
        if clock - self._open.begun_at > SEAL_S:
            self._seal()
        try:
            made = record() if callable(record) else record
            texts = list(texts_of(made))
        except Exception as error:  # whatever it was made of: the writer goes on
            number = self._open.sequence
            made = Gap(number, number, f"could not be written: {error!r}"[:500], 1)
            texts = list(texts_of(made))
        if isinstance(made, AttemptStarted):
            self._started = encode(made)
        elif isinstance(made, SegmentStarted):
            self._segments.append(encode(made))
        for body, samples in texts:
            self._add_line(clock, body, samples)

    # ---- the limit ---------------------------------------------------------------------------

    @property
    def memory_size(self) -> int:
        """Bytes that the disk did not take."""
        if self._written:
            return 0
        with self._io:
            return sum(each.size for each in (*self._sealed, self._open) if each.in_memory)

    def _is_full(self) -> bool:
        allowed = self._limit - sum(box.size for box in self._earlier)
        return self.size > allowed or self.memory_size > MEMORY_BYTES

    def drop(self) -> bool:
        """Look at the oldest message that is not in the sender's hands, and remove it unless the
        others mean nothing without it; whether there was one."""
        with self._io:
            free = (each for each in self._sealed if each.texts is None and not each.stays)
            if (oldest := next(free, None)) is not None:
                self._drop(oldest)
            return oldest is not None


# ---- what earlier attempts left ------------------------------------------------------------------


def attempt_folders(parent: Path) -> list[Path]:
    """Oldest first; two attempts may tidy the same parent, so any of them may vanish meanwhile."""
    dated = []
    with suppress(OSError):
        for path in parent.iterdir():
            if ATTEMPT_PATTERN.fullmatch(path.name) and not path.is_symlink():
                with suppress(OSError):
                    dated.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(dated)]


def live_attempts(parent: Path) -> Iterator[str]:
    """Attempts whose folder a process of this machine holds."""
    for lock in sorted(parent.glob(f"*/{LOCK}")):
        with suppress(OSError):
            handle = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield lock.parent.name
            finally:
                os.close(handle)


def earlier_outboxes(
    parent: Path, run: RunId, tell: Callable[[str], object] = log.warning
) -> list[Outbox]:
    """The outboxes under `parent` whose attempts are dead and left something, oldest first.

    Never raises: what cannot be read stays where it is. `tell`: called with what was damaged.
    """
    found = []
    for folder in attempt_folders(parent):
        try:
            outbox = Outbox(folder, run, folder.name, sys.maxsize, tell)
            if not outbox.ended and outbox.sequence > 0:
                outbox.end_killed(KILLED)
        except (OSError, ValueError):
            continue  # its attempt is alive and holds the lock, or the disk will not have it
        if outbox.empty:
            outbox.close()
        else:
            found.append(outbox)
    return found
