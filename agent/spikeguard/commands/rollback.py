"""A rollback: its target loaded, the data turned back, the state put back on all ranks, told.

A loop that fetches ahead holds items from before. It trains them first: what it fetches after them
is read from the target, and the state is put back at the boundary after the last of those steps,
the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spikeguard.commands.journal import Applying, Begun, Journal, Scaling
from spikeguard.commands.mitigations import Mitigations
from spikeguard.commands.orders import Inbox, Refusal, asked_by
from spikeguard.commands.recovery import Recovery, Report
from spikeguard.data.feed import DataFeed
from spikeguard.errors import AttemptAborted, RollbackByRestart
from spikeguard.faults import Faults, log
from spikeguard.optim.lr_scale import LrScale
from spikeguard.optim.optimizers import ScaledRates
from spikeguard.ranks.rank_group import World, all_agree, all_gather
from spikeguard.settings import Settings
from spikeguard.state.lineage import Abandonment, Progress, Target, Tree, abandoned_by_return
from spikeguard_protocol import (
    Ability,
    Order,
    ResultState,
    Rollback,
    SegmentReason,
    SegmentStarted,
    from_json,
)

WAITS = (
    "%s: the rollback to step %d is carried out after %d more step%s, which train what the loop "
    "has fetched; where the loop ends before, the next start carries it out"
)
ENDS = (
    "%s: the job ends at step %d with exit status 76, to be rolled back. Restart it as it was "
    "started, unless its launcher does: the new start goes on from %s%s"
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A verified rollback: nothing but the commit is left to do."""

    target: Target
    tree: Tree
    abandoned: tuple[Abandonment, ...]


def changes_by(
    order: Order, prepared: Prepared | None, progress: Progress, journal: Journal
) -> Begun:
    """What changes once `order` is carried out."""
    asked, command = asked_by(order.action), order.command
    lineage = prepared.target.lineage if prepared is not None else progress.lineage
    start, scaling, applying = lineage[-1].step, None, None
    if asked.lr_factor is not None:
        lowered = LrScale(asked.lr_factor, start, asked.lr_steps, asked.lr_cap)
        scaling = Scaling(command, lineage, lowered, asked=True)
    elif prepared is not None:
        saved = from_json(LrScale | None, prepared.tree["lr_scale"])
        scaling = Scaling(command, lineage, journal.accepted(saved), asked=False)
    if asked.apply is not None:
        applying = Applying(command, lineage, asked.apply, start, asked.apply_steps)
    abandoned = prepared.abandoned if prepared is not None else ()
    return Begun(command, progress.steps, asked.skip, abandoned, scaling, applying)


class Acting(Protocol):
    """The parts of one attempt that orders act on."""

    world: World
    settings: Settings
    progress: Progress
    feed: DataFeed
    rates: ScaledRates
    recovery: Recovery
    journal: Journal
    inbox: Inbox
    faults: Faults
    mitigations: Mitigations
    abilities: tuple[Ability, ...]


@dataclass(slots=True)
class _Return:
    """What is on its way: written down, and not carried out yet."""

    order: Order
    prepared: Prepared
    scale: LrScale | None  # of the learning rate, from the target on
    held: int  # steps that the loop was to make of items that it held
    steps: int  # of those, still to come


class Rollbacks:
    """One at a time."""

    def __init__(
        self, parts: Acting, report: Report, answer: Callable[[Order, ResultState, str, int], None]
    ) -> None:
        """`answer` is told of an order, what became of it, how, and at which step."""
        self._answer, self._faults = answer, parts.faults
        self._world, self._progress, self._feed = parts.world, parts.progress, parts.feed
        self._rates, self._recovery = parts.rates, parts.recovery
        self._mitigations, self._report = parts.mitigations, report
        self._next_segment = parts.progress.segment + 1
        self._under_way: _Return | None = None
        self.newest: Order | None = None  # the data were as before, as far as is known

    @property
    def waits(self) -> bool:
        """Whether one waits for steps of what the loop holds: nothing else is done meanwhile."""
        return self._under_way is not None

    def load(self, action: Rollback) -> Prepared:
        """Read and check the target, and the data there; raises `Refusal`, changes nothing."""
        target = self._recovery.find(action.target)
        if target is None:
            raise Refusal(f"target {action.target} is gone")
        if self._recovery.abandoned(target):
            raise Refusal(f"target {action.target} was abandoned by an earlier rollback")
        if target.step != action.step:
            raise Refusal(f"target {action.target} is of step {target.step}, not {action.step}")
        tree = self._recovery.load(target)
        if not self._feed.restarts:
            reason = self._recovery.state.refusal(tree) or self._feed.refusal(tree["data"])
            reason = reason or self._feed.prepare(tree["data"], tree["random"])
            if reason is not None:
                raise Refusal(f"target {action.target} cannot be restored: {reason}")
        lost = abandoned_by_return(self._progress.lineage, target.lineage)
        return Prepared(target, tree, tuple(lost))

    def begin(self, order: Order, prepared: Prepared, scale: LrScale | None) -> None:
        """It is in the journal: carry it out now, or later where the loop holds items from before.

        Collective; raises `AttemptAborted`.
        """
        target, tree = prepared.target, prepared.tree
        if self._feed.restarts:
            if self._world.leads:
                skip = asked_by(order.action).skip
                left_out = f" and leaves out batches {skip}" if skip is not None else ""
                log.warning(ENDS, order.command, self._progress.steps, target.name, left_out)
            raise RollbackByRestart(f"back to {target.name} at the next start ({order.command})")
        self.newest = None
        with self._feed.counting:
            held = max(all_gather(self._world, self._feed.held))
            self._feed.go_back(tree["data"], tree["random"], held)
        self._under_way = _Return(order, prepared, scale, held, held)
        if not held:
            self._finish(self._under_way)
            return
        self._recovery.hold(target)
        if self._world.leads:
            log.info(WAITS, order.command, target.step, held, "" if held == 1 else "s")

    def finish_step(self, drain: Callable[[], None]) -> None:
        """One more step was made of what the loop held, on all ranks."""
        back = self._under_way
        if back is None:
            return
        if self._world.ties.broken:
            raise AttemptAborted(f"the ranks lost step before {back.order.command} was carried out")
        back.steps -= 1
        if back.steps:
            return
        try:
            drain()
            self._finish(back)
        except Exception as error:
            said = f"{back.order.command} could not be carried out: {error!r}"
            raise AttemptAborted(said) from error

    def _finish(self, back: _Return) -> None:
        before = self._progress.steps
        self._restore(back.prepared)
        self._under_way = None
        self._next_segment += 1
        problem = self._mitigations.take_up() if self._mitigations.registered else None
        self._rates.scale = back.scale
        with self._faults.shield("orders"):
            said = self._words(back, before, problem)
            self._answer(back.order, ResultState.APPLIED, said, before)
            self.newest, progress, position = back.order, self._progress, self._feed.position
            reason, parent = SegmentReason.ROLLBACK, progress.parent
            self._report(
                SegmentStarted(progress.segment, reason, parent, position, back.order.command)
            )
            self._recovery.forget_abandoned()

    def _restore(self, prepared: Prepared) -> None:
        """On every rank; raises `AttemptAborted` on all where one fails."""
        target, restored = prepared.target, False
        problem = "another rank could not restore the target"
        try:
            self._recovery.restore(target, prepared.tree, self._next_segment)
            restored = True
        except Exception as error:
            problem = f"restoring {target.name} failed half-way: {error!r}"
        try:
            restored = all_agree(self._world, restored)
        except Exception as error:
            restored, problem = False, f"the ranks could not agree on the restore: {error!r}"
        if not restored:
            raise AttemptAborted(problem)

    def _words(self, back: _Return, before: int, problem: str | None) -> str:
        asked = asked_by(back.order.action)
        left_out = f", leaving out {asked.skip.phrase}" if asked.skip else ""
        said = f"from step {before} back to {back.prepared.target.name}{left_out}"
        if asked.apply is not None:
            said += f", with {asked.apply}" if problem is None else f"; {problem}"
        if back.held:
            were = "step was" if back.held == 1 else "steps were"
            said += f"; {back.held} {were} made first of what the loop had fetched"
        return f"other data, {said}: {self._feed.other}" if self._feed.other else said
