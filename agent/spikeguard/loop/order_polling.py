"""What the server said is taken up at a step boundary: at once, or once all ranks have heard it.

Law: meets other ranks in `together` alone, which reads what was said K steps ago and waits for
nobody. What a message changes in the loop (detail, what is protected, an order) changes here.
"""

from __future__ import annotations

from spikeguard.commands.executor import Executor
from spikeguard.faults import log
from spikeguard.loop.capabilities import no_replicas
from spikeguard.loop.context import Parts
from spikeguard.loop.reporter import Reporter
from spikeguard.loop.startup import introduction
from spikeguard.measure.readback import Row
from spikeguard.ranks.agreement import Agreed, Agreement
from spikeguard.ranks.rank_group import in_step
from spikeguard.ranks.vote import Pin, Word
from spikeguard_protocol import Answer

REMEDY = "restart the job to have orders carried out and checkpoints written again"


class LostStep:
    """Takes the place of the vote once the ranks agree no more.

    One of them waited for the others in vain. No rank can know what the others do, so nothing is
    carried out and no checkpoint is written. Rank 0 goes on telling what it measures itself, and
    refuses orders.
    """

    def __init__(self, parts: Parts, reporter: Reporter, executor: Executor) -> None:
        self._p, self._reporter, self._executor = parts, reporter, executor
        self._since: int | None = None  # the step at which this rank found out

    def go_on(self, agreement: Agreement[Row]) -> None:
        """At a step boundary, meeting no other rank."""
        if self._since is None:
            self._since = self._p.progress.steps
            self._tell()
        self._reporter.go_on_apart(agreement)
        inbox = self._p.inbox
        self._p.collector.attentive = inbox.attentive
        if inbox.deliveries or inbox.unreadable:
            self._executor.refuse_all(f"{self._why}: {self._p.world.ties.reason or REMEDY}")

    @property
    def _why(self) -> str:
        return f"the ranks lost step at step {self._since}"

    def _tell(self) -> None:
        parts = self._p
        reason = parts.world.ties.reason
        if reason and parts.world.leads:
            log.warning("at step %d: %s", self._since, reason)
        if not reason:
            parts.faults.note("lost_step", f"{self._why}: {REMEDY}")
        parts.facts = {**parts.facts, "ranks": reason or f"{self._why}; {REMEDY}"}
        self._reporter.report(introduction(parts, self._executor.capabilities()))


class OrderPolling:
    """Between the inbox and what it is about."""

    def __init__(self, parts: Parts, reporter: Reporter, executor: Executor) -> None:
        self._p, self._reporter, self._executor = parts, reporter, executor
        self.ending = False  # a pass ended whose last steps are still to come
        self._lost_step = LostStep(parts, reporter, executor)
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
            self._lost_step.go_on(agreement)
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
                self._executor.act_together(settled[-1].word.serial)
        if self.ending and not self._p.feed.held:
            self.leave(agreement)

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
        parts.collector.attentive = agreed.word.attentive
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
        if agreed.word.pins != self._pinned:
            self._protect_pins(agreed.word.pins)

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

    def _protect_pins(self, pins: tuple[Pin, ...]) -> None:
        self._pinned, snapshots = pins, self._p.recovery.snapshots
        if snapshots is not None:
            held = [t for t in snapshots.targets if (t.step, t.segment.number) in pins]
            snapshots.protected = frozenset(t.name for t in held)
