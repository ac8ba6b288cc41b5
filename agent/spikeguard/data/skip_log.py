"""What this rank leaves out, on its way from the loop to the rank's own file.

Law: the loop hands over and goes on; a thread, started with the first batch that is left out, makes
it durable. What waits for the disk is bounded, and goes into checkpoints with the place in the
data: a process killed in between leaves out the same batches again, or finds them there.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from spikeguard.data.batch_names import NameBatch, Names
from spikeguard.data.line_files import append_lines, read_lines
from spikeguard.data.skipped import Known, LeftOut, file_of
from spikeguard.data.skips import Skips
from spikeguard.faults import Faults
from spikeguard.state.progress import Progress
from spikeguard_protocol import BatchesSkipped, BatchRange, SegmentId, SegmentPoint

WAITING = 10_000  # entries between the loop and the disk
AT_ONCE = 500  # entries a write
FILE_BYTES = 64 * 2**20  # a rank; beyond it the journal alone says what was left out
ASKED = 10_000  # positions of one skip that a loader is asked the names of
AGAIN_S = 10.0  # after the disk has failed


class Teller(Protocol):
    """Rank 0's way to the server."""

    def tell(self, entries: list[LeftOut]) -> None:
        """Of what could not be written down."""

    def look(self) -> float | None:
        """Tell of what is new in the files of all ranks; seconds until it is worth a look again."""

    def finish(self, deadline: float) -> None:
        """Tell what is left, until `deadline` by the monotonic clock."""

    def confirm(self) -> None:
        """What was told will arrive: do not tell it again."""


class SkipLog:
    """One rank's. `pass_by` and the like are the loop's, everything else the thread's."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        name_batch: NameBatch | None,
        progress: Progress,
        ledger: Skips,
        faults: Faults,
    ) -> None:
        self.folder = folder
        self._path, self._rank, self._name_batch = file_of(folder, rank), rank, name_batch
        self._progress, self._ledger, self._faults = progress, ledger, faults
        self.shield = faults.shield("left_out")  # around whatever the loop calls here
        self._range: LeftOut | None = None  # without names; grows until it is put
        self._waiting: deque[LeftOut] = deque()
        self._told = 0  # of those that wait, as many told of past the disk
        self._known: Known | None = None  # once the file was read
        self._teller: Teller | None = None
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._deadline = 0.0

    # ---- the loop ----------------------------------------------------------------------------

    def name(self, names: Names, item: Any) -> None:
        """One item of a position that is left out."""
        if self._name_batch is not None:
            with self._faults.shield("name_batch"):
                names.add(self._name_batch(item))

    def names_of(self, loader: Any, first: int, end: int) -> list[Names]:
        """What a loader that is not read says of positions [first, end); empty if nothing."""
        ask = getattr(loader, "names_of", None)
        found: list[Names] = []
        if not callable(ask):
            return found
        for position in range(first, min(end, first + ASKED)):
            found.append(Names())
            with self._faults.shield("names_of"):
                found[-1].add(ask(position))
        return found

    def pass_by(self, first: int, end: int, found: list[Names]) -> None:
        """Positions [first, end) were left out; `found` are the names of the first of them."""
        for position, names in enumerate(found, first):
            self.leave(position, names)
        for batches, command in self._by_command(BatchRange(first, end), first + len(found)):
            self._add(batches, command, Names())

    def leave(self, position: int, names: Names) -> None:
        """One position was left out."""
        command = self._ledger.command_of(position)
        self._add(BatchRange(position, position + 1), command, names)

    def settle(self) -> None:
        """No more for now: what was collected goes its way."""
        collected, self._range = self._range, None
        if collected is not None:
            self._put(collected)

    def pending(self) -> str:
        """What is not on disk yet, for a checkpoint."""
        return json.dumps([entry.plain() for entry in tuple(self._waiting)])

    def take_up(self, pending: str) -> None:
        """Back from a checkpoint; what got to the disk meanwhile is one entry all the same."""
        for plain in json.loads(pending or "[]"):
            self._put(LeftOut.read(plain))

    def _by_command(
        self, batches: BatchRange, first: int
    ) -> Iterator[tuple[BatchRange, str | None]]:
        """What is left of `batches` from `first` on, cut where another command asked for it."""
        ends = {end for r in self._ledger.ranges for end in (r.first, r.end) if end in batches}
        cuts = [first, *sorted(end for end in ends if end > first), batches.end]
        for begin, end in pairwise(cuts):
            if begin < end:
                yield BatchRange(begin, end), self._ledger.command_of(begin)

    def _add(self, batches: BatchRange, command: str | None, names: Names) -> None:
        at = self._progress
        point = SegmentPoint(SegmentId(at.attempt, at.segment), at.steps)
        record = BatchesSkipped(batches, self._rank, point, command, tuple(names.kept), names.cut)
        grown = _grown(self._range, record)
        if grown is not None:
            self._range = grown
            return
        self.settle()
        entry = LeftOut(record, time.time())
        if names.kept:
            self._put(entry)
        else:
            self._range = entry

    def _put(self, entry: LeftOut) -> None:
        if len(self._waiting) >= WAITING:
            self._faults.note("left_out", "too many batches were left out for the disk to follow")
            return
        self._waiting.append(entry)
        self._start()
        self._wake.set()

    # ---- life ----------------------------------------------------------------------------------

    def begin(self, teller: Teller) -> None:
        """Rank 0: tell the server too, and of what earlier attempts did not live to tell."""
        self._teller = teller
        if self._waiting or self.folder.is_dir():
            self._start()
            self._wake.set()

    def confirm(self) -> None:
        """The outbox is closed, with all that was told in it; called by its thread."""
        if self._teller is not None and self._thread is not None and not self._thread.is_alive():
            with self._faults.shield("ledger"):
                self._teller.confirm()

    def close(self, within_s: float) -> None:
        """Write and tell what is left, for at most `within_s`."""
        self._deadline = time.monotonic() + within_s
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(within_s)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spikeguard-left-out")
            self._thread.daemon = True
            self._thread.start()

    # ---- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        pause: float | None = 0.0
        while not self._closing.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            pause = self._work()
        self._work()
        if self._teller is not None:
            with self._faults.shield("ledger"):
                self._teller.finish(self._deadline)

    def _work(self) -> float | None:
        """Seconds until there may be more to do; None: until somebody says so."""
        with self.shield:
            while self._waiting:
                self._write(list(self._waiting)[:AT_ONCE])
        if self._waiting and self._teller is not None:
            with self._faults.shield("ledger"):
                self._tell_past_the_disk(self._teller)
        pause = AGAIN_S if self._waiting else None
        if self._teller is not None:
            with self._faults.shield("ledger"):
                asked = self._teller.look()
                pause = asked if pause is None else pause if asked is None else min(pause, asked)
        return pause

    def _write(self, entries: list[LeftOut]) -> None:
        known = self._read_known()
        fresh = [entry for entry in entries if not known.holds(entry)]
        if fresh and self._full():
            self._faults.note("left_out", f"{self._path.name} holds {FILE_BYTES >> 20} MiB: full")
            fresh = []
        if fresh:
            append_lines(self._path, [entry.plain() for entry in fresh])
        for entry in fresh:
            known.add(entry)
        for _ in entries:
            self._waiting.popleft()
        self._told = max(0, self._told - len(entries))

    def _read_known(self) -> Known:
        """What the file holds, read when it is first written to."""
        if self._known is not None:
            return self._known
        self.folder.mkdir(parents=True, exist_ok=True)
        known = Known()
        for entry in self._read_own():
            known.add(entry)
        self._known = known
        return known

    def _read_own(self) -> Iterator[LeftOut]:
        """What this rank's file holds; what is wrong with it is told."""
        try:
            lines = read_lines(self._path)
        except FileNotFoundError:
            return
        if lines.damage is not None:
            self._faults.note("left_out", f"{self._path.name} {lines.damage}")
        for number, plain in lines.entries:
            if number not in lines.changed:
                with suppress(ValueError, KeyError, TypeError):  # another release wrote it
                    yield LeftOut.read(plain)

    def _full(self) -> bool:
        return self._path.exists() and self._path.stat().st_size > FILE_BYTES

    def _tell_past_the_disk(self, teller: Teller) -> None:
        """The disk will not have it: the server may."""
        untold = list(self._waiting)[self._told :]
        teller.tell(untold)
        self._told += len(untold)


def _grown(collected: LeftOut | None, record: BatchesSkipped) -> LeftOut | None:
    """`collected` with the positions of `record`, if they follow and nothing else is different."""
    if collected is None or collected.record.batches.end != record.batches.first:
        return None
    batches = collected.record.batches
    if replace(record, batches=batches) != collected.record:
        return None
    return LeftOut(
        replace(record, batches=BatchRange(batches.first, record.batches.end)), collected.at
    )
