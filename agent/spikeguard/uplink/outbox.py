"""Records waiting for the server: numbered, written ahead to an append-only log, bounded.

The loop only appends to a deque. A thread of its own makes the records' texts and writes them to
the log; the sender seals a message when it is ready to send. After SIGKILL the next attempt finds
the log and sends what is left.

Invariants
- No lock is shared with the loop.
- A message that was sent once has the same records when it is sent again.
- What is missing is declared: `Gap` with the samples that went for want of room, that were
  damaged on disk, or that the server refused.
- Without a working disk the newest messages stay in memory.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Protocol

from spikeguard.uplink.backlog import Backlog, Batch
from spikeguard.uplink.log import SEGMENT_BYTES, Log
from spikeguard.uplink.messages import EncodedMessage, Text, gap, texts_of
from spikeguard.uplink.quota import Quota
from spikeguard.uplink.shedding import Level, Outstanding
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
from spikeguard_protocol.frames import Frame

WAITING = 5_000  # samples between the loop and the disk; of anything else, twice as many
SEAL_BYTES = 512 * 1024  # an open message; well under the protocol's limit
SEAL_RECORDS = 900
SEAL_S = 30.0  # from its oldest record to its newest: what is old must not travel as if it were new
LONG_SEAL_S = 300.0  # the same once `MANY` messages wait
MANY = 120
CLOSING_S = 5.0  # for a disk that takes its time
DRAIN_S = 0.05  # a SIGKILL costs no more samples than this
PAUSE_S = 0.0002  # after each record: the loop gets the interpreter back
SEGMENTS = 64  # newest ones that a server which lost them is told of again
RECORDS_AT_ONCE = 100  # one record more at a time for so many that wait
OLDEST_S = 9e8  # a clock that stood at 1970 dates a record further back than a message may say
LEAST_SEGMENT_BYTES = 4 * 1024
CUT_SHORT = "its last records were damaged on disk"


class Draft(Protocol):
    """What a call makes a record of, out of values that nobody changes any more."""

    def __call__(self) -> Record: ...


class Outbox:
    """The messages of one attempt that the server has not acknowledged."""

    def __init__(self, folder: Path | None, run: RunId, attempt: str, quota: Quota | int) -> None:
        """`folder` None keeps everything in memory; raise OSError if it cannot be claimed.

        `quota`: bytes on disk, or the quota that it shares with others.
        """
        self.run, self.attempt, self.folder = run, attempt, folder
        self.quota = quota if isinstance(quota, Quota) else Quota(quota)
        self.watched_until = -math.inf  # the server asks for detail, monotonic; the sender's to say
        self.closed = False
        self._waiting: deque[tuple[float, Record | Draft]] = deque()
        self._overflowed: dict[tuple[int, str], int] = {}  # by thread: each counts up its own
        self._declared: Counter[str] = Counter()  # of those, what the server is told of
        self._clock = time.time() - time.monotonic()  # so that a jump of the clock ages nothing
        self._io = threading.Lock()  # between writer and sender, never the loop
        self._outstanding = Outstanding()
        self._started: bytes | None = None
        self._segments: deque[bytes] = deque(maxlen=SEGMENTS)
        self._closing = threading.Event()
        self._says_ended = False
        self._writer: threading.Thread | None = None
        limit = min(self.quota.limit // 16, SEGMENT_BYTES)
        self._log = Log(folder, attempt, max(limit, LEAST_SEGMENT_BYTES))
        self._seal_bytes = min(SEAL_BYTES, self._log.segment_bytes // 2)
        self._backlog = Backlog(self._log, self._tell)
        self._open = Batch(self._backlog.newest + 1)

    def start(self) -> None:
        """Begin to write what the loop puts."""
        self._writer = threading.Thread(target=self._write_on, name="spikeguard-outbox")
        self._writer.daemon = True
        self._writer.start()

    def _tell(self, what: str) -> None:
        self.quota.tell(f"attempt {self.attempt}: {what}")

    @property
    def foreign(self) -> list[str]:
        """Files beside the log that are none of it."""
        return self._log.foreign

    @property
    def ended(self) -> bool:
        """Whether the attempt said its last word."""
        return self._backlog.ended

    @property
    def dropped(self) -> Counter[str]:
        """By what it was, for want of room."""
        return self.quota.dropped

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
        waits = self._waiting or self._open.frames or self._backlog.held
        undeclared = self._backlog.found_dead and self._backlog.cut_short
        return not (waits or self._backlog.behind or undeclared)

    @property
    def written_ahead(self) -> bool:
        """Whether all that was put is past the loop's queue."""
        return not self._waiting

    # ---- the sender --------------------------------------------------------------------------

    @property
    def backlog(self) -> bool:
        """Whether a whole message already waits behind the one being sent."""
        return self._backlog.held > 0 or self._backlog.behind

    def next_message(self) -> EncodedMessage | None:
        """The oldest message not acknowledged, a heartbeat if nothing waits.

        None once closed, or where a dead attempt has nothing left; raise OSError while the disk
        that it lies on may come back.
        """
        with self._io:
            if self.closed:
                return None
            self._drain()
            batch = self._oldest()
            if batch is None:
                return None
            texts = batch.put_together()
        age_s = max(0.0, time.monotonic() + self._clock - batch.at)
        name = self.run.project, self.run.name, self.attempt
        return EncodedMessage(*name, batch.sequence, min(age_s, OLDEST_S), texts)

    def _oldest(self) -> Batch | None:
        if self._backlog.behind and self._open.frames and not self._backlog.held:
            self._seal()  # what is read from disk changes no more
        batch = self._backlog.oldest()
        if batch is not None:
            return batch
        if self._backlog.found_dead:
            if not self._backlog.cut_short:
                return None
            self._add(time.monotonic(), AttemptEnded(CUT_SHORT))
        self._seal(to_send=True)
        return self._backlog.oldest()

    def acknowledge(self, sequence: int) -> None:
        """The server stored everything up to `sequence`."""
        with self._io:
            if not self.closed:
                self._backlog.acknowledge(sequence)

    def replace_by_gap(self, sequence: int, reason: str) -> None:
        """The server refused message `sequence` for good: declare it lost."""
        with self._io:
            batch = self._backlog.of(sequence)
            if batch is not None and not self.closed:
                batch.texts = (gap(sequence, sequence, reason, batch.samples),)

    def declare_lost(self, first: int) -> None:
        """The server waits for `first`, which is no longer here: its database was restored.

        One gap up to what is here, and again who this attempt is and where its segments begin.
        """
        with self._io:
            oldest = self._backlog.first_waiting
            if self.closed or first >= oldest:
                return
            batch = Batch(first, at=time.monotonic() + self._clock)
            again = [self._started] if self._started is not None else []
            batch.texts = (gap(first, oldest - 1, "no longer held", 0), *again, *self._segments)
            self._backlog.put_first(batch)

    def end_killed(self, reason: str) -> None:
        """Say for a dead attempt that it ended, once however many find it."""
        with self._io:
            self._add(time.monotonic(), AttemptEnded(reason))
            self._backlog.ended = True
            self._seal()

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
            self._backlog.ended |= self._says_ended
            self._backlog.note()
            self.closed = True
            self._log.close(used_up=self.empty)
        self.quota.close()

    # ---- the writer --------------------------------------------------------------------------

    def _write_on(self) -> None:
        """Record by record: the loop gets the interpreter back in between, and after each wait."""
        while not self._closing.wait(DRAIN_S):
            try:
                if self.keep_up():
                    self.quota.bound(self)
            except Exception as error:  # whatever the disk says: without it nothing is written
                self.quota.fault(error)
        self._shut()

    def keep_up(self) -> bool:
        """Write down what the loop has put; False if the outbox is to close."""
        while (self._waiting or self._undeclared()) and not self._closing.is_set():
            with self._io:
                self._drain(1 + len(self._waiting) // RECORDS_AT_ONCE)
            time.sleep(PAUSE_S)
        return not self._closing.is_set()

    def _drain(self, at_most: int = sys.maxsize) -> None:
        if lost := self._undeclared():
            number = self._open.sequence
            said = Gap(number, number, "the loop outran the disk", lost["samples"])
            self._add(time.monotonic(), said)
            self._declared += lost
            self.quota.dropped += lost
        before = self._backlog.end
        while self._waiting and at_most > 0:
            self._add(*self._waiting.popleft())
            at_most -= 1
        if self._backlog.end != before:
            self._backlog.flush()
            self._backlog.note()

    def _undeclared(self) -> Counter[str]:
        """What the loop could not put since; nobody but the threads that put counts it up."""
        lost: Counter[str] = Counter()
        for (_, what), count in tuple(self._overflowed.items()):
            lost[what] += count
        return lost - self._declared

    def _add(self, at: float, record: Record | Draft) -> None:
        clock = at + self._clock
        longest_s = SEAL_S if self._backlog.waiting < MANY else LONG_SEAL_S
        if clock - self._open.begun_at > longest_s:
            self._seal()
        made, texts = self._texts(record)
        stands_out = isinstance(made, Samples) and self._outstanding.see(made)
        kept = stands_out or at <= self.watched_until
        for kind, payload, samples in texts:
            number, total = self._backlog.end
            message = self._open.sequence
            frame = Frame(kind, number, message, samples, total, clock, payload, kept)
            self._open.add(frame)
            self._backlog.add(frame)
            if self._open.size > self._seal_bytes or len(self._open.frames) >= SEAL_RECORDS:
                self._seal()

    def _texts(self, record: Record | Draft) -> tuple[Record, list[Text]]:
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
        return made, texts

    def _seal(self, *, to_send: bool = False) -> None:
        """The open message is whole; the next record begins another one."""
        batch, self._open = self._open, Batch(self._open.sequence + 1)
        batch.at = batch.at or time.monotonic() + self._clock
        self._backlog.seal(batch, to_send=to_send)

    # ---- the quota -----------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes on disk and in memory."""
        with self._io:
            return self._backlog.sizes

    def thin(self, level: Level) -> Counter[str] | None:
        """Take what goes at `level` out of the oldest that holds some; what has gone, or None."""
        with self._io:
            if self.closed:
                return None
            segment = self._backlog.thicker(level)
            if segment is None:
                return self._backlog.thin_memory(level)
            if segment is self._log.writing and self._open.frames:
                self._seal()  # what is thinned changes no more
            return self._backlog.thin(segment, level)
