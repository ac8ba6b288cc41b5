"""Runs a run's monitor inside the transaction: loads it, feeds it, rewinds it, saves it.

What is in the database is the truth: bytes written now and then, and the samples stored since. A
monitor kept in memory counts only for its version, and is moved on by the samples that another
replica took. A state of a newer or unknown version is answered with 503, never replaced; behind one
of an older version the run is learned anew from its samples. What is read for that is bounded:
`MOST_ROWS` rows of `MOST_SEGMENTS` segments, the newest, by far more than shape a baseline.
"""

from __future__ import annotations

import json
import logging
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from threading import Lock
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sql

from spikeguard_core.detection.sample import Sample, SampleColumns
from spikeguard_core.events import Event
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.settings import choose
from spikeguard_server.errors import ServiceError, Unready
from spikeguard_server.store.chunks import SegmentKey, read_curves
from spikeguard_server.store.detectors import (
    StateRow,
    line_to,
    load_state,
    nearest_snapshot,
    snapshot,
    update_of_state,
)
from spikeguard_server.store.engine import write
from spikeguard_server.store.runs import Place

_log = logging.getLogger(__name__)
_JUDGING = Lock()  # one thread at a time: others would only take the interpreter from it
MOST_SNAPSHOTS = 16  # of one message, each up to 100 kB
TAIL_STEPS = 2000  # so many at most are read again where no replica remembers the run


class Monitors:
    """Detections of the `size` runs that were seen last, some 100 kB each, so that a busy run is
    not read from samples every time."""

    def __init__(self, size: int = 2000) -> None:
        self._size = size
        self._kept: OrderedDict[UUID, Detection] = OrderedDict()
        self._lock = Lock()

    def take(self, run_id: UUID) -> Detection | None:
        """As it was committed; no longer kept, since it may be changed in vain."""
        with self._lock:
            return self._kept.pop(run_id, None)

    def keep(self, run_id: UUID, kept: Detection) -> None:
        """Keep what was committed."""
        with self._lock:
            self._kept[run_id] = kept
            self._kept.move_to_end(run_id)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)


@dataclass
class Detection:
    """The monitor of one locked run, and the place in history that it stands at."""

    run_id: UUID
    monitor: Monitor
    row: StateRow = field(default_factory=StateRow)  # its bytes are written where they are needed
    changed: bool = False
    _led: bool = True  # only samples led here from the bytes in the row
    _mark: tuple[int, bytes] | None = None  # newest step and bytes that a snapshot was kept of
    snapshots: int = 0  # that this message kept
    relearned: bool = False  # from the samples, since another release wrote the state

    @property
    def place(self) -> Place:
        return Place(self.row.attempt, self.row.segment, self.row.step)

    def use(self, choice: DetectorChoice) -> None:
        """Judge by `choice` from now on. What came before was judged otherwise: the bytes say it,
        so that no replica judges those samples again."""
        if self.monitor.use(choice):
            self.moved()

    def enter(self, place: Place) -> None:
        """The next samples come from another place."""
        self.row.attempt, self.row.segment, self.row.step = place.attempt, place.segment, place.step
        self.moved()

    def observe(
        self, connection: sql.Connection, samples: SampleColumns, *, every: int,
        targets: Collection[int],
    ) -> list[Event]:  # fmt: skip
        """Take the samples that are new here; keep snapshots on the way."""
        begin, count = bisect_right(samples.steps, self.row.step), len(samples.steps)
        events: list[Event] = []
        for end in range(begin + 1, count + 1):
            step = samples.steps[end - 1]
            due = step % every == 0 or step in targets
            if not due and end < count:
                continue
            with _JUDGING:
                events += self.monitor.observe(samples[begin:end])
            self.changed, self.row.step, self.row.failures = True, step, 0
            if due:
                self.keep(connection, at_target=step in targets)
            begin = end
        return events

    def keep(self, connection: sql.Connection, *, at_target: bool = False) -> None:
        """Keep a snapshot of where the monitor stands; not where a message asks for many."""
        if self.snapshots >= MOST_SNAPSHOTS:
            return
        self.snapshots += 1
        state = freeze(self.monitor)
        self._mark = (self.row.step, state)
        write(connection, snapshot(self.run_id, self.place, state, at_target=at_target))

    def await_decision(self, awaited: bool) -> None:
        """Nothing is accepted of the open incident while somebody is asked about it."""
        if self.monitor.await_decision(awaited):
            self.moved()

    def save(self, connection: sql.Connection) -> None:
        """Write where the monitor stands, if anything changed; once, at the end of the
        transaction."""
        if not self.changed:
            return
        row = self.row
        row.version, row.state = row.version + 1, None
        if not self._led:
            row.anchor = row.version
        if not self._led or row.step - row.state_step >= TAIL_STEPS:
            row.state_step, row.state = row.step, freeze(self.monitor)
        elif self._mark is not None:
            row.state_step, row.state = self._mark
        write(connection, update_of_state(self.run_id, row))

    def moved(self) -> Monitor:
        """The monitor, which more than samples leads on: the bytes have to say where it stands."""
        self.changed, self._led = True, False
        return self.monitor


def load_detection(
    connection: sql.Connection, run_id: UUID, monitors: Monitors | None = None
) -> Detection:
    """The monitor as the last transaction left it; a new one where there was none."""
    kept = monitors.take(run_id) if monitors is not None else None
    row = load_state(connection, run_id, kept.row.version if kept else -1)
    return detection_of(connection, run_id, row, kept)


def detection_of(
    connection: sql.Connection, run_id: UUID, row: StateRow | None, kept: Detection | None
) -> Detection:
    """The monitor that `row` tells of, from the bytes in it or from what was `kept`."""
    if row is None:
        return Detection(run_id, Monitor())
    near = kept is not None and row.step - kept.place.step <= TAIL_STEPS
    if kept is not None and near and row.anchor <= kept.row.version <= row.version:
        monitor, step = kept.monitor, kept.place.step
    elif row.state is None:  # kept from a future that the database never had, or from long ago
        return load_detection(connection, run_id)
    else:
        try:
            monitor, step = thaw(row.state), row.state_step
        except OlderStateVersion:  # what an older release knew can't be read
            here = Place(row.attempt, row.segment, row.step)
            line = line_to(connection, run_id, here, MOST_SEGMENTS)
            found = Detection(run_id, relearn(connection, run_id, line), row, relearned=True)
            found.moved()
            return found
    if step < row.step:
        key = SegmentKey(run_id, row.attempt, row.segment)
        monitor.observe(read_curves(connection, key, step + 1, row.step).samples())
    return Detection(run_id, monitor, row)


def detection_in(run_id: UUID, row: StateRow | None) -> Detection:
    """The detection of a message that detection failed on, as it stands in the row."""
    monitor = Monitor()
    if row is None:
        return Detection(run_id, monitor)
    if row.state is not None:  # without the samples since: one of them may be what fails
        try:
            monitor = thaw(row.state)
        except ServiceError:
            raise
        except Exception:
            _log.exception("the detector's state cannot be read")
    return Detection(run_id, monitor, row)


@lru_cache(maxsize=256)
def choice_of(detection: str | None) -> DetectorChoice:
    """How the policy wants a run judged, its `detection` as JSON."""
    return choose(json.loads(detection) if detection is not None else {}, "detection.")


def past_monitor(connection: sql.Connection, run_id: UUID, place: Place) -> Monitor | None:
    """What the monitor knew at `place`: the nearest snapshot and a replay of what followed, or
    where that is too much the newest rows alone. None where nothing is known of `place`."""
    line = line_to(connection, run_id, place, MOST_SEGMENTS)
    if not line:
        return None
    found = nearest_snapshot(connection, run_id, line)
    monitor, step, path = Monitor(), -1, line
    if found is not None:
        number, step, state = found
        path = line[: number + 1]
        try:
            monitor = thaw(state)
        except OlderStateVersion:
            return relearn(connection, run_id, line)
    rows = _newest(connection, run_id, path, step, MOST_ROWS + 1)
    if sum(map(len, rows)) > MOST_ROWS:
        return relearn(connection, run_id, line)
    for part in reversed(rows):
        monitor.observe(part)
    return monitor


MOST_ROWS: Final = 4000  # about a tenth of a second; six seconds where most of them are not finite
MOST_SEGMENTS: Final = 100


def relearn(connection: sql.Connection, run_id: UUID, line: Sequence[Place]) -> Monitor:
    """The monitor that saw the newest `MOST_ROWS` rows of `line` alone."""
    monitor = Monitor()
    for part in reversed(_newest(connection, run_id, line, -1, MOST_ROWS)):
        monitor.observe(part)
    return monitor


def _newest(
    connection: sql.Connection, run_id: UUID, path: Sequence[Place], step: int, most: int
) -> list[Sequence[Sample]]:
    """The newest `most` rows of `path` behind `step` of its last place; newest place first."""
    found, left = list[Sequence[Sample]](), most
    for place, parent in pairwise([*path, None]):
        assert place is not None
        after = step if parent is None else parent.step
        key = SegmentKey(run_id, place.attempt, place.segment)
        rows = read_curves(connection, key, after + 1, place.step, most=left)
        found.append(rows.samples())
        left -= len(found[-1])
        if left <= 0:
            break
    return found


STATE_VERSION: Final = 29  # whoever changes `State` or a class that it holds counts it up
_MAGIC: Final = b"spikeguard-monitor "
_QUICKLY: Final = 1  # more of it saves 2 % of the bytes and takes half as long again
_WRITER: Final = msgspec.msgpack.Encoder(enc_hook=float)  # numbers of numpy, too
_READER: Final = msgspec.msgpack.Decoder(Monitor)


class OlderStateVersion(Exception):
    """The state was written by an older version of the monitor, or is damaged: the run is learned
    anew from its samples."""


def freeze(monitor: Monitor) -> bytes:
    """The bytes of what `monitor` remembers, some 10 kB."""
    head = _MAGIC + str(STATE_VERSION).encode() + b"\n"
    return head + zlib.compress(_WRITER.encode(monitor), _QUICKLY)


def thaw(body: bytes) -> Monitor:
    """The monitor that `freeze` wrote; raise `OlderStateVersion`, or `Unready` where this server is
    too old for it."""
    head, _, packed = body.partition(b"\n")
    written = head.removeprefix(_MAGIC)
    if written != head and written.isdigit() and int(written) < STATE_VERSION:
        raise OlderStateVersion
    if head != _MAGIC + str(STATE_VERSION).encode():
        raise Unready(
            f"This server reads detector states of version {STATE_VERSION}, not one that begins "
            f"{head[:40]!r}",
            "Finish the upgrade of all replicas; nothing is lost meanwhile",
            retry_after_s=5,
        )
    try:
        return _READER.decode(zlib.decompress(packed))
    except (zlib.error, msgspec.DecodeError) as error:
        raise OlderStateVersion from error
