"""Whether the ranks that should be alike are, judged from each step's vote.

Where ranks are known to hold the same weights and to step by the same gradients, the vote of every
step tells whether all of them made the update and saw the same gradient norm. Now and then it also
tells whether the bits of their weights are the same (`topology.replicas` says at which steps).
All ranks read the same numbers, so all come to the same conclusion at the same boundary. Only where
they differ a gather says which rank it is: all ranks wait for it, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from spikeguard.ranks.rank_group import World, gather_numbers
from spikeguard.ranks.replicas import ranks_apart
from spikeguard.ranks.vote import Own, Reduced

STREAK: Final = 3  # steps in a row with different gradient norms: these ranks are no replicas
QUIET: Final = 10  # steps between two gathers because of an update that some ranks left out
NAMED: Final = 16  # ranks in a sentence
NOT_ALIKE: Final = (
    "the gradients of the ranks differ in each step although the model is in a "
    "DistributedDataParallel or Ranks(replicated=True) was given: these ranks are no replicas "
    "(no_sync() in each step, local SGD, a hook). Say ranks=Ranks(replicated=False), so that each "
    "rank keeps and gets back its own state. Until then no rollback is carried out, and a "
    "checkpoint holds one copy of what differs"
)


class Finding(NamedTuple):
    """What one step's vote says of the replicas."""

    equal: bool | None = None  # the bits of the weights; None where they were not compared
    ranks: tuple[int, ...] = ()  # that are not like the most
    said: str = ""  # what differs, for the log


class ReplicaCheck:
    """The same on every rank."""

    def __init__(
        self,
        world: World,
        known: bool = False,
        same_as: Sequence[int] = (),
        compares: bool = True,
    ) -> None:
        """`known`: whether ranks are said to be replicas, or parts whose norms add up.

        Where that is not known the first comparison of weights tells: ranks that differ then are
        no replicas. `compares`: whether anything is to be compared.
        """
        self._world, self._same_as = world, same_as
        self.compares = compares and len(set(same_as) or {0}) < world.size  # weights
        self._replicated, self._norms = known, known and compares
        self.unlike = False  # known replicas turned out to be none
        self._streak = 0
        self._skips_at: float | None = None  # the newest step of which skips were gathered

    def judge(self, reduced: Reduced, own: Own) -> Finding:
        """At the same boundary on all ranks; `own`: what this rank voted."""
        equal = self._compared(reduced)
        if equal is False:
            ranks = self._gathered_bits(own)
            said = f"at step {own.step:.0f} the weights of {_named(ranks)} were not those of the "
            return Finding(False, ranks, f"{said}other ranks")
        if not self._norms:
            return Finding(equal)
        if reduced.skips_differ:
            return self._skips(own)._replace(equal=equal)
        if not reduced.norms_differ:
            self._streak = 0
            return Finding(equal)
        return self._differing_norms(own)._replace(equal=equal)

    def _compared(self, reduced: Reduced) -> bool | None:
        if not (self.compares and reduced.compared):
            return None
        if reduced.bits_differ and not self._replicated:  # they were never equal
            self.compares = False
            return None
        self._replicated = True
        return not reduced.bits_differ

    def _gathered(self, own: Own) -> list[Own]:
        return [Own(*each) for each in gather_numbers(self._world, own, self._world.last_patience)]

    def _gathered_bits(self, own: Own) -> tuple[int, ...]:
        ranks = self._gathered(own)
        bits, steps = [each.bits for each in ranks], [each.step for each in ranks]
        return ranks_apart(bits, steps, self._same_as) or ()

    def _skips(self, own: Own) -> Finding:
        since = self._skips_at
        if since is not None and 0 <= own.step - since < QUIET:
            return Finding()
        self._skips_at = own.step
        out = [each.skipped > 0.0 or each.norm == float("inf") for each in self._gathered(own)]
        skipped = tuple(rank for rank, left_out in enumerate(out) if left_out)
        others = tuple(rank for rank, left_out in enumerate(out) if not left_out)
        apart = others if len(others) < len(skipped) else skipped
        said = f"at step {own.step:.0f} the update was left out or not finite on {_named(skipped)} "
        return Finding(None, apart, f"{said}and made on {_named(others)}: they hold other weights")

    def _differing_norms(self, own: Own) -> Finding:
        self._streak += 1
        if self._streak == STREAK:
            self.unlike, self._norms, self.compares = True, False, False
            return Finding(None, (), NOT_ALIKE)
        if self._streak > 1:
            return Finding()
        norms = [each.norm for each in self._gathered(own)]
        usual, _ = Counter(norms).most_common(1)[0]  # the lowest rank's among as many
        apart = tuple(rank for rank, norm in enumerate(norms) if norm != usual)
        said = f"at step {own.step:.0f} the gradient norm of {_named(apart)} was not that of the "
        return Finding(None, apart, f"{said}other ranks: their updates differ")


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:NAMED])) + (", ..." if len(ranks) > NAMED else "")
    return f"rank {shown}"
