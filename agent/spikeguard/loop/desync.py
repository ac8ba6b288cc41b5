"""What is left to do in a job whose ranks agree no more.

One of them waited for the others in vain, or failed where all have to act together. From there on
no rank can know what the others do, so nothing is carried out and no checkpoint is written: that
takes a vote. Law: nothing grows and nobody waits. Rank 0 goes on telling what it measures itself,
says that it takes no orders any more, and refuses those that come; a restart is the remedy.
"""

from __future__ import annotations

from spikeguard.commands.executor import Executor
from spikeguard.faults import log
from spikeguard.loop.agreement import Agreement
from spikeguard.loop.context import Parts
from spikeguard.loop.reporter import Reporter
from spikeguard.loop.startup import introduction

REMEDY = "restart the job to have orders carried out and checkpoints written again"


class LostStep:
    """Takes the place of the vote at each step."""

    def __init__(self, parts: Parts, reporter: Reporter, executor: Executor) -> None:
        self._p, self._reporter, self._executor = parts, reporter, executor
        self._since: int | None = None  # the step at which this rank found out

    def go_on(self, agreement: Agreement) -> None:
        """At a step boundary, meeting no other rank."""
        if self._since is None:
            self._since = self._p.progress.steps
            self._tell()
        self._reporter.go_on_apart(agreement)
        inbox = self._p.inbox
        self._p.collector.attentive = inbox.attentive
        self._p.recovery.protected = inbox.protected
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
