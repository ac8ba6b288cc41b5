"""Runs a run's monitor inside the transaction: loads it, feeds it, rewinds it, saves it.

Law: what is in the database is the truth: bytes written now and then, and the samples stored since.
A monitor kept in memory counts only for its version, and is moved on by the samples that another
replica took. A state of a newer or unknown version is answered with 503, never replaced; behind one
of an older version the run is learned anew from its samples.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.detection.sample import SampleColumns
from spikeguard_core.events import Event
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.detection import choose
from spikeguard_protocol import Verb
from spikeguard_server.errors import Unready
from spikeguard_server.ingest.detector_rebuild import MOST_ROWS, MOST_SEGMENTS, relearn, replay
from spikeguard_server.ingest.detector_state import (
    OlderStateVersion,
    UnknownStateVersion,
    freeze,
    thaw,
)
from spikeguard_server.store.detectors import (
    Place,
    StateRow,
    load_state,
    nearest_snapshot,
    snapshot,
    update_of_state,
)
from spikeguard_server.store.engine import write
from spikeguard_server.store.runs import line_to
from spikeguard_server.store.samples import read_samples

NOWHERE = Place(0, 0, 0)
_JUDGING = Lock()  # one thread at a time: others would only take the interpreter from it
FREE_SNAPSHOTS = 2  # of one message, each up to 100 kB; more only `SNAPSHOT_ROWS` judged rows apart
SNAPSHOT_ROWS = 100
MOST_SNAPSHOTS = 16  # of one message
TAIL_STEPS = 2000  # so many at most are read again where no replica remembers the run


@dataclass(frozen=True, slots=True)
class KeptMonitor:
    """A monitor as it was committed."""

    version: int
    step: int
    monitor: Monitor


class Monitors:
    """Monitors of recently seen runs, so that a busy run is not read from samples every time.

    The newest `size` as they are, 81 to 98 kB each; of `packed` more their bytes, some 10 kB each.
    So the defaults take up to 300 MB.
    """

    def __init__(self, size: int = 2000, packed: int = 10_000) -> None:
        self._size, self._most = size, packed
        self._kept: OrderedDict[UUID, KeptMonitor] = OrderedDict()
        self._packed: OrderedDict[UUID, tuple[int, int, bytes]] = OrderedDict()
        self._lock = Lock()

    def take(self, run_id: UUID) -> KeptMonitor | None:
        """The monitor with its version; no longer kept, since it may be changed in vain."""
        with self._lock:
            kept, packed = self._kept.pop(run_id, None), self._packed.pop(run_id, None)
        if kept is None and packed is not None:
            version, step, state = packed
            kept = KeptMonitor(version, step, thaw(state))
        return kept

    def keep(self, run_id: UUID, kept: KeptMonitor) -> None:
        """Keep what was committed."""
        with self._lock:
            self._kept[run_id] = kept
            self._kept.move_to_end(run_id)
            self._packed.pop(run_id, None)
            oldest = []
            while len(self._kept) > self._size:
                oldest.append(self._kept.popitem(last=False))
        for run, old in oldest:
            self._pack(run, old)

    def _pack(self, run_id: UUID, kept: KeptMonitor) -> None:
        packed = kept.version, kept.step, freeze(kept.monitor)
        with self._lock:
            if run_id in self._kept:  # came back meanwhile
                return
            self._packed[run_id] = packed
            while len(self._packed) > self._most:
                self._packed.popitem(last=False)


@dataclass
class Detection:
    """The monitor of one locked run, and the place in history that it stands at."""

    run_id: UUID
    monitor: Monitor
    place: Place = NOWHERE
    version: int = 0
    changed: bool = False
    failures: int = 0
    _state_step: int = 0  # what the bytes in the row stand at
    _anchor: int = 0
    _led: bool = True  # only samples led here from the bytes in the row
    _mark: tuple[int, bytes] | None = None  # newest step and bytes that a snapshot was kept of
    snapshots: int = 0  # that this message kept
    _rows: int = 0  # judged since the last of them
    relearned: bool = False  # from the samples, since another release wrote the state

    @classmethod
    def of(cls, run_id: UUID, monitor: Monitor, row: StateRow) -> Detection:
        """`monitor` as it stands by `row`."""
        return cls(
            run_id, monitor, Place(row.attempt, row.segment, row.step), row.version,
            failures=row.failures,
            _state_step=row.state_step, _anchor=row.anchor,
        )  # fmt: skip

    @classmethod
    def anew(cls, connection: sql.Connection, run_id: UUID, row: StateRow) -> Detection:
        """The run of `row` learned anew: what an older release knew can't be read."""
        place = Place(row.attempt, row.segment, row.step)
        line = line_to(connection, run_id, place, MOST_SEGMENTS)
        found = cls.of(run_id, relearn(connection, run_id, line), row)
        found.relearned = True
        found._moved()
        return found

    def use(self, choice: DetectorChoice) -> None:
        """Judge by `choice` from now on. What came before was judged otherwise: the bytes say it,
        so that no replica judges those samples again."""
        if self.monitor.use(choice):
            self._moved()

    def enter(self, place: Place) -> None:
        """The next samples come from another place."""
        self.place = place
        self._moved()

    def observe(
        self, connection: sql.Connection, samples: SampleColumns, *, every: int,
        targets: Collection[int],
    ) -> list[Event]:  # fmt: skip
        """Take the samples that are new here; keep snapshots on the way."""
        begin, count = bisect_right(samples.steps, self.place.step), len(samples.steps)
        if begin:
            self._moved()  # what is filled in later was not seen when it was judged
        events: list[Event] = []
        for end in range(begin + 1, count + 1):
            step = samples.steps[end - 1]
            due = step % every == 0 or step in targets
            if not due and end < count:
                continue
            with _JUDGING:
                events += self.monitor.observe(samples[begin:end])
            self.place = Place(self.place.attempt, self.place.segment, step)
            self.changed, self.failures = True, 0
            self._rows += end - begin
            if due:
                self.keep(connection, at_target=step in targets)
            begin = end
        return events

    def keep(self, connection: sql.Connection, *, at_target: bool = False) -> None:
        """Keep a snapshot of where the monitor stands; not where a message asks for many."""
        near = self._rows < SNAPSHOT_ROWS
        if self.snapshots >= (FREE_SNAPSHOTS if near else MOST_SNAPSHOTS):
            return
        self.snapshots, self._rows = self.snapshots + 1, 0
        state = freeze(self.monitor)
        self._mark = (self.place.step, state)
        write(connection, snapshot(self.run_id, self.place, state, at_target=at_target))

    def write_down(self) -> None:
        """Let the bytes alone say it: the samples behind them may be dropped some day."""
        self._moved()

    def fail(self, monitor: Monitor, step: int) -> None:
        """Go past `step` with what `monitor` knows: what came before it could not be judged."""
        self.monitor = monitor
        self.failures += 1
        self.enter(Place(self.place.attempt, self.place.segment, max(step, self.place.step)))

    def rewind(self, past: Monitor) -> bool:
        """The run went on from where it was at `past`."""
        self._moved()
        return self.monitor.rewind(past)

    def intervened(self, step: int, verb: Verb) -> list[Event]:
        self._moved()
        return self.monitor.intervened(step, verb)

    def await_decision(self, awaited: bool) -> None:
        """Nothing is accepted of the open incident while somebody is asked about it."""
        if self.monitor.await_decision(awaited):
            self._moved()

    def note_change(self, step: int) -> None:
        """Somebody changed the run on purpose after `step`."""
        self._moved()
        self.monitor.note_change(step)

    def end(self) -> list[Event]:
        self._moved()
        return self.monitor.end()

    def save(self, connection: sql.Connection) -> None:
        """Write where the monitor stands, if anything changed; once, at the end of the
        transaction."""
        if not self.changed:
            return
        self.version += 1
        state: bytes | None = None
        if not self._led:
            self._anchor = self.version
        if not self._led or self.place.step - self._state_step >= TAIL_STEPS:
            self._state_step, state = self.place.step, freeze(self.monitor)
        elif self._mark is not None:
            self._state_step, state = self._mark
        here = self.place
        row = StateRow(
            self.version, here.attempt, here.segment, here.step, self._state_step, self._anchor,
            self.failures, state,
        )  # fmt: skip
        write(connection, update_of_state(self.run_id, row))

    def _moved(self) -> None:
        """More than samples led here."""
        self.changed, self._led = True, False


def load_detection(
    connection: sql.Connection, run_id: UUID, monitors: Monitors | None
) -> Detection:
    """The monitor as the last transaction left it; a new one where there was none."""
    kept = monitors.take(run_id) if monitors is not None else None
    row = load_state(connection, run_id, kept.version if kept else -1)
    return detection_of(connection, run_id, row, kept)


def detection_of(
    connection: sql.Connection, run_id: UUID, row: StateRow | None, kept: KeptMonitor | None
) -> Detection:
    """The monitor that `row` tells of, from the bytes in it or from what was `kept`."""
    if row is None:
        return Detection(run_id, Monitor())
    near = kept is not None and row.step - kept.step <= TAIL_STEPS
    if kept is not None and near and row.anchor <= kept.version <= row.version:
        monitor, step = kept.monitor, kept.step
    elif row.state is None:  # kept from a future that the database never had, or from long ago
        return load_detection(connection, run_id, None)
    else:
        try:
            monitor, step = read_monitor(row.state), row.state_step
        except OlderStateVersion:
            return Detection.anew(connection, run_id, row)
    if step < row.step:
        monitor.observe(
            read_samples(connection, run_id, row.attempt, row.segment, step + 1, row.step)
        )
    return Detection.of(run_id, monitor, row)


def check_detection(connection: sql.Connection, run_id: UUID) -> Detection:
    """An empty one, by which nothing is judged and which is not saved; no sample is read. Raises
    `Unready` where a newer release wrote the state."""
    row = load_state(connection, run_id, -1)
    if row is not None and row.state is not None:
        with suppress(OlderStateVersion):
            read_monitor(row.state)
    return Detection(run_id, Monitor())


def read_monitor(state: bytes) -> Monitor:
    """The monitor in `state`; `Unready` where this server is too old for it, `OlderStateVersion`
    where it is too new."""
    try:
        return thaw(state)
    except OlderStateVersion:
        raise
    except UnknownStateVersion as error:
        raise Unready(
            f"This server cannot read the detector's state: {error}",
            "Finish the upgrade of all replicas; nothing is lost meanwhile",
            retry_after_s=5,
        ) from error


@lru_cache(maxsize=256)
def choice_of(detection: str | None) -> DetectorChoice:
    """How the policy wants a run judged, its `detection` as JSON."""
    return choose(json.loads(detection) if detection is not None else {}, "detection.")


@dataclass(frozen=True, slots=True)
class Past:
    """What the monitor knew at a place; `shortened`: why that is less than all."""

    monitor: Monitor
    shortened: str | None = None


def past_monitor(connection: sql.Connection, run_id: UUID, place: Place) -> Past | None:
    """What the monitor knew at `place`: the nearest snapshot and a replay of what followed. None
    where nothing is known of `place`."""
    line = line_to(connection, run_id, place, MOST_SEGMENTS)
    if not line:
        return None
    found = nearest_snapshot(connection, run_id, line)
    monitor, step, path = Monitor(), -1, line
    if found is not None:
        number, step, state = found
        path = line[: number + 1]
        try:
            monitor = read_monitor(state)
        except OlderStateVersion:
            return Past(relearn(connection, run_id, line))
    if replay(connection, run_id, monitor, step, path):
        return Past(monitor)
    return Past(
        relearn(connection, run_id, line),
        f"more than {MOST_ROWS:,} rows lie behind the nearest snapshot: learned from the newest",
    )
