"""A rollback: its target loaded, the data turned back, the state put back on all ranks, told.

A loop that fetches ahead holds items from before. It trains them first: what it fetches after them
is read from the target, and the state is put back at the boundary after the last of those steps,
the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from spikeguard.commands.journal import Journal
from spikeguard.commands.journal_lines import Applying, Scaling
from spikeguard.commands.mitigations import Mitigations
from spikeguard.commands.orders import Inbox
from spikeguard.commands.recovery import Recovery, Report
from spikeguard.data.feed import DataFeed
from spikeguard.errors import AttemptAborted, RollbackByRestart
from spikeguard.faults import Faults, log
from spikeguard.optim.learning_rate import ScaledRates
from spikeguard.optim.lr_scale import LrScale
from spikeguard.ranks.rank_group import World, all_agree, all_gather
from spikeguard.settings import Settings
from spikeguard.state.lineage import Abandonment, Progress, Target, Tree, abandoned_by_return
from spikeguard_protocol import (
    Ability,
    Apply,
    Order,
    Rollback,
    ScaleLr,
    SegmentReason,
    SegmentStarted,
    from_json,
)

MANY = 16  # steps to wait for: the server is told too
WAITS = (
    "%s: the rollback to step %d is carried out after %d more step%s, which train what the loop "
    "has fetched; where the loop ends before, the next start carries it out"
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A verified rollback: nothing but the commit is left to do."""

    target: Target
    tree: Tree
    abandoned: tuple[Abandonment, ...]


def scaling_of(
    order: Order, prepared: Prepared | None, progress: Progress, journal: Journal
) -> Scaling | None:
    """What the learning rate will be scaled by once `order` is carried out."""
    action = order.action
    if isinstance(action, ScaleLr):
        lowered = LrScale(action.factor, progress.steps, action.steps)
        return Scaling(order.command, progress.lineage, lowered, asked=True)
    if not isinstance(action, Rollback) or prepared is None:
        return None
    target, saved = prepared.target, prepared.tree["lr_scale"]
    if action.lr_factor is not None and action.lr_steps is not None:
        lowered = LrScale(action.lr_factor, target.step, action.lr_steps, action.lr_cap)
        return Scaling(order.command, target.lineage, lowered, asked=True)
    scale = journal.accepted(from_json(LrScale | None, saved))
    return Scaling(order.command, target.lineage, scale, asked=False)


def applying_of(order: Order, prepared: Prepared | None, progress: Progress) -> Applying | None:
    """The steps that will be made with a mitigation once `order` is carried out."""
    action, lineage = order.action, progress.lineage
    name: str | None = None
    steps: int | None = None
    if isinstance(action, Rollback) and prepared is not None:
        lineage = prepared.target.lineage
        name, steps = action.apply, action.apply_steps
    elif isinstance(action, Apply):
        name, steps = action.name, action.steps
    if name is None or steps is None:
        return None
    return Applying(order.command, lineage, name, lineage[-1].step, steps)


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


class Refusal(Exception):
    """Why an order is not carried out."""


class Done(NamedTuple):
    """A rollback that was carried out."""

    order: Order
    said: str
    before: int  # the step at which it was


@dataclass(slots=True)
class _Return:
    """What is on its way: written down, and not carried out yet."""

    order: Order
    action: Rollback
    prepared: Prepared
    held: int  # steps that the loop was to make of items that it held
    steps: int  # of those, still to come


class Rollbacks:
    """One at a time."""

    def __init__(self, parts: Acting, report: Report) -> None:
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
            reason = self._recovery.refusal(tree) or self._feed.refusal(tree["data"])
            reason = reason or self._feed.prepare(tree["data"], tree["random"])
            if reason is not None:
                raise Refusal(f"target {action.target} cannot be restored: {reason}")
        lost = abandoned_by_return(self._progress.lineage, target.lineage)
        return Prepared(target, tree, tuple(lost))

    def begin(self, order: Order, action: Rollback, prepared: Prepared) -> Done | None:
        """It is in the journal: carry it out now; None where the loop holds items from before.

        Collective; raises `AttemptAborted`.
        """
        target, tree = prepared.target, prepared.tree
        if self._feed.restarts:
            if self._world.leads:
                said = _restart_words(action, target.name, self._progress.steps)
                log.warning("%s: %s", order.command, said)
            raise RollbackByRestart(f"back to {target.name} at the next start ({order.command})")
        self.newest = None
        with self._feed.counting:
            held = max(all_gather(self._world, self._feed.held))
            self._feed.go_back(tree["data"], tree["random"], held)
        self._under_way = _Return(order, action, prepared, held, held)
        if held:
            self._say_waits(held if held >= MANY else 0)
            self._recovery.hold(target)
            if self._world.leads:
                log.info(WAITS, order.command, target.step, held, "" if held == 1 else "s")
            return None
        return self._finish(self._under_way)

    def finish_step(self, drain: Callable[[], None]) -> Done | None:
        """One more step was made of what the loop held, on all ranks; what is carried out now."""
        back = self._under_way
        if back is None:
            return None
        if self._world.ties.broken:
            raise AttemptAborted(f"the ranks lost step before {back.order.command} was carried out")
        back.steps -= 1
        if back.steps:
            return None
        try:
            drain()
            return self._finish(back)
        except Exception as error:
            said = f"{back.order.command} could not be carried out: {error!r}"
            raise AttemptAborted(said) from error

    def _finish(self, back: _Return) -> Done:
        before = self._progress.steps
        self._restore(back.prepared)
        self._under_way = None
        self._say_waits(0)
        self._next_segment += 1
        problem = self._mitigations.take_up() if self._mitigations.registered else None
        action = back.action
        if action.lr_factor is not None and action.lr_steps is not None:
            self._rates.scale = LrScale(
                action.lr_factor, self._progress.steps, action.lr_steps, action.lr_cap
            )
        return Done(back.order, self._words(back, before, problem), before)

    def _say_waits(self, steps: int) -> None:
        """In the table of what the job can do."""
        self._feed.unusual |= steps != self._feed.waits
        self._feed.waits = steps

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
        action = back.action
        left_out = f", leaving out {action.skip.phrase}" if action.skip else ""
        said = f"from step {before} back to {back.prepared.target.name}{left_out}"
        if action.apply is not None:
            said += f", then with {action.apply}" if problem is None else f"; {problem}"
        if back.held:
            were = "step was" if back.held == 1 else "steps were"
            said += f"; {back.held} {were} made first of what the loop had fetched"
        return f"other data, {said}: {self._feed.other}" if self._feed.other else said

    def told(self, order: Order) -> None:
        """Its result is told: tell of the segment that begins, and free what was left behind."""
        self.newest = order
        progress = self._progress
        reason, position = SegmentReason.ROLLBACK, self._feed.position
        self._report(
            SegmentStarted(progress.segment, reason, progress.parent, position, order.command)
        )
        self._recovery.forget_abandoned()


def _restart_words(action: Rollback, name: str, steps: int) -> str:
    """For the job's log: what happens and what somebody has to do."""
    left_out = (
        f" and leaves out batches [{action.skip.first}, {action.skip.end})" if action.skip else ""
    )
    return (
        f"the job ends at step {steps} with exit status 76, to be rolled back. Restart it as it "
        f"was started, unless its launcher does: the new start goes on from {name}{left_out}"
    )
