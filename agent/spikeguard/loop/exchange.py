"""What goes to the server at a step boundary, and what has come from it.

The loop hands over references to a step's row, still on its way from the device; the outbox's
thread makes the record. `together` alone meets other ranks: it reads what was said K steps ago and
waits for nobody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from spikeguard.commands.executor import Executor
from spikeguard.commands.orders import Delivery
from spikeguard.faults import Faults, log
from spikeguard.loop.attempt import introduction
from spikeguard.loop.capabilities import no_replicas
from spikeguard.loop.context import Parts
from spikeguard.loop.local_watch import LocalWatch
from spikeguard.measure.readback import DEPTH, FlightRecorder, Row, arrived, copied
from spikeguard.ranks.agreement import LAG, Agreed, Agreement
from spikeguard.ranks.rank_group import in_step
from spikeguard.ranks.vote import Pin, Word, alone
from spikeguard_protocol import (
    OWN_RULE,
    RUN_ITSELF,
    Answer,
    CommandId,
    CommandResult,
    IncidentId,
    OptionalSignal,
    Order,
    Record,
    Samples,
    ScaleLr,
    SegmentId,
    SegmentStarted,
    Signal,
    TargetSaved,
)

Write = Callable[[dict[str, float], int], object]  # values by signal, step
FORWARDED = 1_000  # steps between the loop and `forward=`; the oldest are dropped
FORWARD_CLOSE_S = 3.0  # the end of an attempt waits no longer for it


class Tracker:
    """Each step's values also to a function of the user's own (TensorBoard, Weights & Biases), in a
    thread of its own. What it raises, and what is dropped, is counted."""

    def __init__(self, write: Write, faults: Faults) -> None:
        self._write, self._faults = write, faults
        self._waiting: deque[tuple[int, dict[str, float]]] = deque(maxlen=FORWARDED)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Called from the loop: never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spikeguard-forward")
            self._thread.daemon = True
            self._thread.start()
        if len(self._waiting) == FORWARDED:
            self._faults.note("forward", f"it is {FORWARDED} steps behind: the oldest is dropped")
        self._waiting.append((step, dict(values)))
        self._wake.set()

    def close(self) -> None:
        """Write what waits, for at most `FORWARD_CLOSE_S`."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(FORWARD_CLOSE_S)

    def _run(self) -> None:
        while not (self._closing.is_set() and not self._waiting):
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                step, values = self._waiting.popleft()
                with self._faults.shield_thread("forward"):
                    self._write(values, step)


class RanksDraft(NamedTuple):
    """One step's values where there are several ranks; a call makes the record."""

    row: Row
    read: Callable[[], dict[str, float]]  # by name; waits for the device if they have not arrived

    def __call__(self) -> Samples:
        return self.row.record(self.read())


class Reporter:
    """Holds the rows of the last steps until their values have arrived."""

    def __init__(self, parts: Parts, forward: Write | None) -> None:
        self._p, self._outbox = parts, parts.outbox
        self._forward = Tracker(forward, parts.faults) if forward is not None else None
        self._rows: deque[Row] = deque()
        self._recorder = FlightRecorder(parts.settings.flight_recorder)
        self._watch: LocalWatch | None = None
        if parts.outbox is not None and parts.sender is None and parts.settings.watch_alone:
            saved: list[TargetSaved] = []
            with suppress(OSError):  # resume() says so
                saved = [target.record() for target in parts.recovery.candidates()]
            segment = SegmentId(parts.progress.attempt, parts.progress.segment)
            self._watch = LocalWatch(segment, saved)
        self._emergency: EmergencyRule | None = None
        if parts.settings.emergency_drops and parts.world.leads:
            self._emergency = EmergencyRule(parts)

    def report(self, record: Record) -> None:
        """Tell the server of something other than a sample."""
        if self._watch is not None:
            self._watch.put(record)
        if self._outbox is not None:
            self._outbox.put(record)
        if self._p.sender is not None and isinstance(record, CommandResult | SegmentStarted):
            self._p.sender.wake()

    def add(self, row: Row) -> None:
        """A step was made, all ranks together."""
        self._rows.append(row)

    def add_alone(self, row: Row) -> None:
        """A step was made in a job of one process: pass on what has arrived."""
        rows = self._rows
        if not rows and type(row.scalars) is dict:  # on a CPU there is nothing to wait for
            self._pass_on(row, row)
            return
        rows.append(row)
        while rows and (arrived(rows[0].scalars) or len(rows) >= DEPTH):
            row = rows.popleft()
            self._pass_on(row, row)

    def go_on_apart(self, agreement: Agreement[Row], wait: bool = False) -> None:
        """The ranks agree no more: rank 0 passes on its own rows, the others forget theirs."""
        rows = self._rows
        rows.extendleft(reversed(agreement.take_unread()))
        if not self._p.world.leads:
            rows.clear()
        while rows and (wait or arrived(rows[0].scalars) or len(rows) >= DEPTH // 2):
            row = rows.popleft()
            self._pass_on(row, RanksDraft(row, partial(alone, row.read, agreement.sharded)))

    def deliver_together(self, agreement: Agreement[Row], word: Word) -> list[Agreed[Row]]:
        """All ranks at the same boundary: pass on earlier steps; what was agreed then."""
        rows = self._rows
        # the row whose step is the same on all ranks: this one, or on CUDA that of `lag` ago
        lag = LAG if rows and copied(rows[0].scalars) else 0
        row = rows.popleft() if len(rows) > lag else None
        return self._sample_agreed(agreement.exchange(word, row))

    def leave(self, agreement: Agreement[Row], word: Word) -> None:
        """This rank makes no further step of this pass: its last rows go into its last votes."""
        if not agreement.left:
            rows = [self._rows.popleft() for _ in range(len(self._rows))]
            agreement.leave(word, rows)

    def drain(self, announced: int, ending: bool = False) -> None:
        """Pass on every row there is, waiting for it; all ranks at the same boundary.

        `ending`: this rank makes no further step, and others may.
        """
        agreement = self._p.agreement
        if agreement is not None and not agreement.broken:
            if ending:
                self.leave(agreement, Word(announced))
                self._sample_agreed(agreement.part())
            else:
                for _ in range(LAG):  # the same number on every rank
                    row = self._rows.popleft() if self._rows else None
                    self._sample_agreed(agreement.exchange(Word(announced), row))
                self._sample_agreed(agreement.drain())
        if agreement is not None and agreement.broken:
            self.go_on_apart(agreement, wait=True)
        while self._rows:
            row = self._rows.popleft()
            self._pass_on(row, row)

    def close(self) -> None:
        """The attempt ended."""
        if self._watch is not None:
            self._watch.close()
        if self._forward is not None:
            self._forward.close()

    def _sample_agreed(self, settled: list[Agreed[Row]]) -> list[Agreed[Row]]:
        for agreed in settled:
            if (row := agreed.row) is not None:
                self._pass_on(row, RanksDraft(row, agreed.values), agreed.reduced.worst_rank)
        return settled

    def _pass_on(self, row: Row, draft: Row | RanksDraft, worst_rank: int = 0) -> None:
        if self._forward is not None:
            self._forward.put(row.step, draft.read())
        if self._emergency is not None:
            self._emergency.see(row.step, draft.read())
        batches = self._p.batches
        if batches.on and batches.ring.on:
            batches.pass_on(row.step, worst_rank, self._p.collector.attentive)
        outbox = self._outbox
        if outbox is None:
            return
        doctor = self._p.doctor
        outbox.put(partial(doctor.seen, draft) if doctor.watches else draft, row.at)
        if self._watch is not None:
            self._watch.put(draft)
        if row.layers is not None:
            for detail in self._recorder.pass_on(row, self._p.collector.attentive):
                outbox.put(detail)


# ---- what has come from the server ---------------------------------------------------------------


REMEDY = "restart the job to have orders carried out and checkpoints written again"


class OrderPolling:
    """Between the inbox and what it is about."""

    def __init__(self, parts: Parts, reporter: Reporter, executor: Executor) -> None:
        self._p, self._reporter, self._executor = parts, reporter, executor
        self.ending = False  # a pass ended whose last steps are still to come
        self._lost_at: int | None = None  # the step at which the ranks agreed no more
        self._pinned: tuple[Pin, ...] = ()

    def alone(self) -> None:
        """In a job of one process: take up what the server said, and go on while it asks."""
        parts = self._p
        inbox = parts.inbox
        inbox.changed = False  # first: what comes from here on is looked at next time
        try:
            parts.collector.attentive = inbox.attentive
            if (snapshots := parts.recovery.snapshots) is not None:
                snapshots.protected = inbox.protected
            self._executor.finish_step()
            if inbox.orders or inbox.unreadable:
                self._executor.act_alone()
        finally:
            waits = inbox.orders or inbox.unreadable or self._executor.returning
            if waits or parts.collector.attentive:
                inbox.changed = True

    def together(self, agreement: Agreement[Row]) -> None:
        """The same where all ranks have to know it first."""
        returning = self._executor.returning
        if agreement.broken:
            self._executor.finish_step()
            self._go_on_apart(agreement)
            return
        with self._p.faults.shield("agreement"), in_step(self._p.world):
            voter, recovery = agreement.voter, self._p.recovery
            voter.snapshot_bytes = recovery.snapshots.bytes if recovery.snapshots is not None else 0
            voter.snapshot_interval = self._p.cadence.wanted()
            settled = self._reporter.deliver_together(agreement, self._word())
            for agreed in settled:
                self._apply(agreement, agreed)
            if returning:
                self._executor.finish_step()
            elif settled and not agreement.broken:
                self._executor.act_together(settled[-1].reduced.word.serial)
        if self.ending and not self._p.feed.held:
            self.leave(agreement)

    def _go_on_apart(self, agreement: Agreement[Row]) -> None:
        """In the place of the vote once the ranks agree no more; meets none of them.

        One of them waited for the others in vain, so no rank knows what the others do: nothing is
        carried out and no checkpoint is written. Rank 0 tells what it measures and refuses orders.
        """
        parts, inbox, reason = self._p, self._p.inbox, self._p.world.ties.reason
        if news := self._lost_at is None:
            self._lost_at = parts.progress.steps
        why = f"the ranks lost step at step {self._lost_at}"
        if news:
            if reason and parts.world.leads:
                log.warning("at step %d: %s", self._lost_at, reason)
            if not reason:
                parts.faults.note("lost_step", f"{why}: {REMEDY}")
            parts.facts = {**parts.facts, "ranks": reason or f"{why}; {REMEDY}"}
            self._reporter.report(introduction(parts, self._executor.capabilities()))
        self._reporter.go_on_apart(agreement)
        parts.collector.attentive = inbox.attentive
        if inbox.deliveries or inbox.unreadable:
            self._executor.refuse_all(f"{why}: {reason or REMEDY}")

    def leave(self, agreement: Agreement[Row]) -> None:
        """A pass over the data ended: all its steps are made, or the last ones are to come."""
        self.ending = bool(self._p.feed.held)
        if not self.ending and not agreement.broken:
            with self._p.faults.shield("agreement"):
                self._reporter.leave(agreement, self._word())

    def _word(self) -> Word:
        return Word(self._executor.announce(), self._p.inbox.attentive, self._pins())

    def _apply(self, agreement: Agreement[Row], agreed: Agreed[Row]) -> None:
        """What all ranks learn at this boundary."""
        parts, reduced, finding = self._p, agreed.reduced, agreed.finding
        word = reduced.word
        parts.collector.attentive = word.attentive
        parts.collector.compares &= agreement.replicas.compares
        if finding.said:
            parts.faults.note("replicas", finding.said)
        if agreement.replicas.unlike and parts.recovery.unlike():
            log.warning("[rank %d] %s", parts.world.rank, finding.said)
            if parts.recovery.snapshots is None and parts.rewind.answer is Answer.YES:
                parts.rewind = no_replicas()
            parts.feed.unusual = True
        if agreed.row is not None and (finding.equal is not None or finding.ranks):
            parts.recovery.compared(agreed.row.step, not finding.ranks)
        if reduced.other_data:
            self._executor.correct_rollback()
        if reduced.snapshot_bytes:
            parts.recovery.agree_on_size(reduced.snapshot_bytes)
        self.adapt(reduced.snapshot_interval)
        if word.pins != self._pinned:
            self._pinned, snapshots = word.pins, parts.recovery.snapshots
            if snapshots is not None:
                held = (t for t in snapshots.targets if (t.step, t.segment.number) in word.pins)
                snapshots.protected = frozenset(t.name for t in held)

    def adapt(self, interval: int) -> None:
        """Take snapshots at `interval` steps from here on, on all ranks; 0: as before."""
        if self._p.cadence.agree(interval):
            self._p.feed.unusual = True  # the table is to be told anew

    def _pins(self) -> tuple[Pin, ...]:
        """Of the snapshots that the server wants kept, known to every rank by step and segment."""
        wanted, snapshots = self._p.inbox.protected, self._p.recovery.snapshots
        if not wanted or snapshots is None:
            return ()
        return tuple((t.step, t.segment.number) for t in snapshots.targets if t.name in wanted)


GOOD_FOR_S = 600.0
_DROPPED, _SKIPPED = Signal.UPDATE_DROPPED.value, OptionalSignal.STEP_SKIPPED.value


class EmergencyRule:
    """The emergency rule: updates left out in a row lower the learning rate for a while.

    Off unless `Settings.emergency_drops` asks for it. Rank 0 counts what all ranks agreed on; what
    it decides goes the way of an order from there: within the job's limits, voted, journalled, at
    one step on all ranks, undone by `spikeguard journal --undo`. It needs no server.
    """

    def __init__(self, parts: Parts) -> None:
        self._settings, self._progress, self._run = (
            parts.settings,
            parts.progress,
            parts.journal.run,
        )
        self._rates, self._inbox = parts.rates, parts.inbox
        self._in_a_row = 0
        self._made_one = False  # an update since this attempt began
        self._quiet_until = 0  # step

    def see(self, step: int, values: Mapping[str, float]) -> None:
        """One step's values, in order. A loss scaler that still looks for its scale leaves updates
        out until the first that fits: those do not count."""
        by_scaler = values.get(_SKIPPED, 0.0) > 0.0
        if not by_scaler and not values.get(_DROPPED, 0.0) > 0.0:
            self._in_a_row, self._made_one = 0, True
        elif self._made_one or not by_scaler:
            self._in_a_row += 1
            if self._in_a_row >= self._settings.emergency_drops and not self._acting(step):
                self._order(step)

    def _acting(self, step: int) -> bool:
        """Whether the rate is lowered already, by this rule or by an order."""
        scale = self._rates.scale
        if self._quiet_until - self._settings.emergency_steps > step:
            self._quiet_until = 0  # the run went back since
        lowered = scale is not None and scale.at(self._progress.steps + 1) != 1.0
        return lowered or step < self._quiet_until or bool(self._inbox.own)

    def _order(self, step: int) -> None:
        settings, attempt = self._settings, self._progress.attempt
        action = ScaleLr(settings.emergency_factor, settings.emergency_steps)
        command = str(CommandId(IncidentId(self._run, RUN_ITSELF), OWN_RULE + step))
        self._in_a_row, self._quiet_until = 0, step + settings.emergency_steps
        order = Order(command, attempt, action, GOOD_FOR_S, None)
        self._inbox.own = (Delivery(order, time.monotonic()),)
        self._inbox.changed = True
