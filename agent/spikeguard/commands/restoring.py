"""Going back on all ranks: at once, and once more where the loop still holds items.

A loop that fetches ahead makes steps of items from before the rollback. They are made, and when the
last of them is, the state is put back a second time.
Invariants: all ranks restore or all end. What such a step measured is told to nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from spikeguard.commands.recovery import Recovery
from spikeguard.data.feed import DataFeed
from spikeguard.errors import AttemptAborted
from spikeguard.faults import Faults
from spikeguard.measure.collector import Collector
from spikeguard.optim.learning_rate import ScaledRates
from spikeguard.state.targets import Target, Tree
from spikeguard.topology.rank_group import World, all_agree, share_each
from spikeguard_protocol import Rollback


def restore_on_all(world: World, target: Target, restore: Callable[[], None]) -> None:
    """Do it on every rank; raises `AttemptAborted` on all where one fails."""
    problem = "another rank could not restore the target"
    restored = False
    try:
        restore()
        restored = True
    except Exception as error:
        problem = f"restoring {target.name} failed half-way: {error!r}"
    try:
        restored = all_agree(world, restored)
    except Exception as error:
        restored, problem = False, f"the ranks could not agree on the restore: {error!r}"
    if not restored:
        raise AttemptAborted(problem)


class HeldSteps:
    """The steps to come that the loop makes of what it had fetched before a rollback."""

    def __init__(
        self,
        world: World,
        feed: DataFeed,
        rates: ScaledRates,
        collector: Collector,
        recovery: Recovery,
        faults: Faults,
    ) -> None:
        self._world, self._feed, self._rates = world, feed, rates
        self._collector, self._recovery, self._faults = collector, recovery, faults
        self._back: tuple[Target, Tree] | None = None

    def begin(self, target: Target, tree: Tree) -> None:
        """The run went back to `target`: they are undone where all ranks hold as much."""
        feed = self._feed
        try:
            held = share_each(self._world, str(feed.undoing))
        except Exception as error:
            problem = f"the ranks could not agree on what they hold: {error!r}"
            raise AttemptAborted(problem) from error
        if len(set(held)) > 1:
            feed.let_stale_stand()
        self._back = (target, tree) if feed.undoing else None

    def finish_step(self) -> None:
        """One of them was made. Raises `AttemptAborted` where going back once more fails."""
        with self._faults.shield("collect"):
            self._rates.after_step()
            self._collector.reset()
        if not self._feed.undo_step() or self._back is None:
            return
        (target, tree), self._back = self._back, None
        restore = self._recovery.restore_training
        restore_on_all(self._world, target, lambda: restore(target, tree))


def restart_words(action: Rollback, name: str, steps: int) -> str:
    """For the job's log: what happens and what somebody has to do."""
    left_out = (
        f" and leaves out batches [{action.skip.first}, {action.skip.end})" if action.skip else ""
    )
    return (
        f"the job ends at step {steps} with exit status 76, to be rolled back. Restart it as it "
        f"was started, unless its launcher does: the new start goes on from {name}{left_out}"
    )
