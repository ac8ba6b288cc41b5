"""What the server said is taken up at a step boundary: at once, or once all ranks have heard it.

Law: meets other ranks in `together` alone, which reads what was said K steps ago and waits for
nobody. What a message changes in the loop (detail, what is protected, an order) changes here.
"""

from __future__ import annotations

from spikeguard.commands.executor import Executor
from spikeguard.loop.agreement import Agreement
from spikeguard.loop.context import Parts
from spikeguard.loop.desync import LostStep
from spikeguard.loop.reporter import Reporter
from spikeguard.loop.vote import Pin, Word
from spikeguard.topology.rank_group import in_step


class OrderPolling:
    """Between the inbox and what it is about."""

    def __init__(self, parts: Parts, reporter: Reporter, executor: Executor) -> None:
        self._p, self._reporter, self._executor = parts, reporter, executor
        self._lost_step = LostStep(parts, reporter, executor)
        self._pinned: tuple[Pin, ...] = ()

    def alone(self) -> None:
        """In a job of one process: take up what the server said, and go on while it asks."""
        parts = self._p
        inbox = parts.inbox
        inbox.stirred = False  # first: what comes from here on is looked at next time
        try:
            parts.collector.attentive = inbox.attentive
            self._protect(inbox.protected)
            if inbox.deliveries or inbox.unreadable:
                self._executor.act_alone()
        finally:
            if inbox.deliveries or inbox.unreadable or parts.collector.attentive:
                inbox.stirred = True

    def together(self, agreement: Agreement) -> None:
        """The same where all ranks have to know it first."""
        if agreement.broken:
            self._lost_step.go_on(agreement)
            return
        with self._p.faults.shield("agreement"), in_step(self._p.world):
            inbox = self._p.inbox
            word = Word(self._executor.announce(), inbox.attentive, self._pins())
            snapshots = self._p.recovery.snapshots
            agreement.tell_size(snapshots.bytes if snapshots is not None else 0)
            agreed = self._reporter.deliver_together(agreement, word)
            if agreed is None:
                return
            told = agreed.word
            self._p.collector.attentive = told.attentive
            self._p.collector.compares &= agreement.compares
            if agreed.apart and agreed.row is not None:
                self._tell_apart(agreed.apart, agreed.row.step)
            if agreed.compared and agreed.row is not None:
                self._p.recovery.compared(agreed.row.step, not agreed.apart)
            if agreed.tally.other_data:
                self._executor.correct_rollback()
            self._p.recovery.protected = inbox.protected
            if agreed.snapshot_bytes:
                self._p.recovery.agree_on_size(agreed.snapshot_bytes)
            if told.pins != self._pinned:
                self._protect_pins(told.pins)
            self._executor.act_together(told.serial)

    def _tell_apart(self, ranks: tuple[int, ...], step: int) -> None:
        named = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
        said = f"at step {step} the weights of rank {named} were not those of the other ranks"
        self._p.faults.note("replicas", said)

    def _protect(self, names: frozenset[str]) -> None:
        self._p.recovery.protected = names
        if self._p.recovery.snapshots is not None:
            self._p.recovery.snapshots.protected = names

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
