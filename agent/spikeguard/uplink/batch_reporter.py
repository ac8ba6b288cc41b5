"""What lay in an incident's batches: described beside the loop, told by rank 0.

When the server starts to watch closely, every rank takes the batches out of its ring, and those of
each step that follows until the server is content. A thread describes them, started by the first.
Of each step the rank with the highest loss describes its part. One above 0 writes it to
`DIRECTORY/batches/rank-00001.jsonl`, from where rank 0 tells it: no rank waits for another. Where
ranks do not share the directory, those alone are told that rank 0 had.
Law: the job's own functions (`name_batch`, `decode`) run here, on the host, never in the loop. What
they raise is counted; they get `SPENT_S` of each time the server watches, and one that does not
return holds up nothing else. All that waits is bounded; the oldest goes first.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from spikeguard.faults import Faults
from spikeguard.measure.batch_contents import (
    Decode,
    NameBatch,
    Names,
    Reference,
    histogram_of,
    reference_of,
    sequences_in,
    snippet_of,
    worst_of,
)
from spikeguard.measure.batch_ring import STEPS, BatchRing, Before, KeptItems, StepBatch
from spikeguard_protocol import BatchDetail, ProtocolError, Record, from_json, to_json

FOLDER = "batches"
WAITING = 128  # batches between the loop and the thread
SPENT_S = 10.0  # in the job's own functions, each time the server starts to watch
KNOWN_TEXTS = 4_096  # of single tokens
FILE_BYTES = 2**20  # of one rank's file; it begins anew each time the server starts to watch
LOOK_S, PATIENCE_S = 0.5, 15.0  # rank 0, for another rank's file


class Taken(NamedTuple):
    """Batches that left the ring together."""

    batches: list[StepBatch]
    before: Before | None
    fresh: bool  # the server started to watch


class Wanted(NamedTuple):
    """What another rank describes."""

    since: float  # monotonic seconds
    rank: int
    place: tuple[int, int]  # segment and step


class Describing:
    """The job's own functions, within their time; what one raises is counted."""

    def __init__(self, name_batch: NameBatch | None, decode: Decode | None, faults: Faults) -> None:
        self.name_batch, self._decode, self._faults = name_batch, decode, faults
        self._texts: dict[int, str] = {}
        self._left_s = SPENT_S

    def begin(self) -> None:
        """The server started to watch."""
        self._left_s = SPENT_S

    @property
    def decode(self) -> Decode | None:
        """Ids to text, "" where that fails; None where the job gives none."""
        return self._text if self._decode is not None else None

    def names(self, items: Iterable[object]) -> Names:
        """What `items` are called."""
        names = Names()
        for item in items if self.name_batch is not None else ():
            self._timed("name_batch", lambda item=item: names.add(self.name_batch(item)))  # type: ignore[misc]
        return names

    def _text(self, ids: list[int]) -> str:
        known = self._texts.get(ids[0]) if len(ids) == 1 else None
        if known is not None:
            return known
        said: list[str] = []
        self._timed("decode", lambda: said.append(self._decoded(ids)))
        text = said[0] if said else ""
        if len(ids) == 1 and said and len(self._texts) < KNOWN_TEXTS:
            self._texts[ids[0]] = text
        return text

    def _decoded(self, ids: list[int]) -> str:
        assert self._decode is not None
        text = self._decode(ids)
        if not isinstance(text, str):
            raise TypeError(f"decode returns a str, not {type(text).__name__}")
        return text

    def _timed(self, place: str, call: Callable[[], object]) -> None:
        if self._left_s <= 0.0:
            return
        began = time.monotonic()
        try:
            with self._faults.shield_thread(place):
                call()
        finally:
            self._left_s -= time.monotonic() - began
        if self._left_s <= 0.0:
            self._faults.note(place, f"took {SPENT_S:g} s for one incident: it is not asked more")


class BatchReporter:
    """One rank's. `pass_on` is the loop's, the rest the thread's."""

    def __init__(
        self,
        ring: BatchRing,
        home: Path,
        rank: int,
        attempt: str,
        describing: Describing,
        put: Callable[[Record], None] | None,
        faults: Faults,
    ) -> None:
        """`put`: rank 0's way to the server."""
        self.ring, self._folder, self._rank = ring, home / FOLDER, rank
        self._attempt, self._describing, self._put = attempt, describing, put
        self._faults = faults
        self.on = ring.steps > 0 and (put is not None or rank > 0)
        named = self.on and describing.name_batch is not None
        self.items = KeptItems(STEPS) if named else None
        self._watching = False
        self._waiting: deque[Taken] = deque(maxlen=WAITING)
        self._wanted: deque[Wanted] = deque(maxlen=WAITING)
        self._reference: Reference | None = None
        self._written = 0  # bytes of this rank's file
        self._wake, self._closing = Event(), Event()
        self._thread: Thread | None = None

    # ---- the loop ----------------------------------------------------------------------------

    def pass_on(self, step: int, worst_rank: int, watched: bool) -> None:
        """All ranks have told of `step`: take out what is to be told."""
        if worst_rank:
            self.ring.settle(step, worst_rank)
        fresh = watched and not self._watching
        self._watching = watched
        if not watched:
            return
        before = self.ring.before() if fresh else None
        self._waiting.append(Taken(self.ring.take(step), before, fresh))
        if self._thread is None:
            self._thread = Thread(target=self._work, name="spikeguard-batches", daemon=True)
            self._thread.start()
        self._wake.set()

    def close(self, within_s: float) -> None:
        """The attempt ends: what waits is told, as far as that takes no longer."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(within_s)

    # ---- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        while not (self._closing.is_set() and not self._waiting):
            self._wake.wait(LOOK_S if self._wanted else None)
            self._wake.clear()
            with self._faults.shield("batches"):
                while self._waiting:
                    self._tell(self._waiting.popleft())
                self._look()
        with self._faults.shield("batches"):
            self._look()

    def _tell(self, taken: Taken) -> None:
        if taken.fresh:
            self._describing.begin()
            self._reference = reference_of(taken.before)
            self._written = 0
        for batch in taken.batches:
            if batch.worst_rank == self._rank:
                tell = self._write if self._put is None else self._put
                tell(self._described(batch))
            elif self._put is not None:
                wanted = Wanted(time.monotonic(), batch.worst_rank, (batch.segment, batch.step))
                self._wanted.append(wanted)

    def _described(self, batch: StepBatch) -> BatchDetail:
        if batch.event is not None:
            batch.event.synchronize()
        decode, names = self._describing.decode, self._describing.names(batch.items)
        worst = worst_of(batch, self._reference)
        return BatchDetail(
            segment=batch.segment,
            step=batch.step,
            rank=self._rank,
            position=batch.position,
            names=tuple(names.kept),
            names_cut=names.cut,
            sequences=sequences_in(batch),
            worst=worst.place if worst is not None else None,
            sequence_loss=worst.loss if worst is not None else None,
            snippet=snippet_of(worst, decode) or None,
            histogram=histogram_of(batch.rows, self._reference, decode),
        )

    # ---- the files of other ranks ----------------------------------------------------------------

    def _write(self, detail: BatchDetail) -> None:
        """For rank 0 to read."""
        entry = {"attempt": self._attempt, "detail": to_json(detail)}
        line = json.dumps(entry).encode() + b"\n"
        if self._written + len(line) > FILE_BYTES:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with file_of(self._folder, self._rank).open("ab" if self._written else "wb") as file:
            self._written += file.write(line)

    def _look(self) -> None:
        """Tell what other ranks have written of the steps of which they had the highest loss."""
        now, waiting = time.monotonic(), list(self._wanted)
        self._wanted.clear()
        found = {rank: self._read(rank) for rank in {each.rank for each in waiting}}
        for wanted in waiting:
            detail = found[wanted.rank].get(wanted.place)
            if detail is not None and self._put is not None:
                self._put(detail)
            elif now - wanted.since < PATIENCE_S:
                self._wanted.append(wanted)

    def _read(self, rank: int) -> dict[tuple[int, int], BatchDetail]:
        found: dict[tuple[int, int], BatchDetail] = {}
        with suppress(OSError), file_of(self._folder, rank).open("rb") as file:
            for line in file.read(FILE_BYTES).splitlines():
                with suppress(ValueError, KeyError, TypeError, ProtocolError):  # cut short
                    entry = json.loads(line)
                    detail = from_json(BatchDetail, entry["detail"])
                    if entry["attempt"] == self._attempt and detail.rank == rank:
                        found[detail.segment, detail.step] = detail
        return found


def file_of(folder: Path, rank: int) -> Path:
    """Where a rank writes for rank 0."""
    return folder / f"rank-{rank:05}.jsonl"
