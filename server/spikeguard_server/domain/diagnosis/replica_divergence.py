"""Ranks that no longer hold the same weights: they train apart, while the loss may look calm.

Law: pure and exact. Weights are compared to the bit, so one comparison is enough, and only the
newest counts: a rollback makes the ranks equal again.
"""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard_protocol import Kind, Signal
from spikeguard_server.domain.detection.signal_detector import Suspect
from spikeguard_server.domain.diagnosis.evidence import REPLICA_APART, REPLICAS_APART, Trace, Traces
from spikeguard_server.domain.diagnosis.skipped_updates import batches_before
from spikeguard_server.domain.events import Judgement

LOSS = Signal.LOSS.value


@dataclass(frozen=True, slots=True)
class Apart:
    """What the newest comparison said, where it found ranks apart."""

    step: int  # of that comparison
    ranks: int  # whose weights are not those of the most
    rank: int | None  # the lowest of them
    equal_step: int | None  # of the last comparison in which all were equal, if any is known

    @property
    def reason(self) -> str:
        """In words, for a person."""
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        named = "" if self.rank is None else f" ({_lowest(self.ranks)}rank {self.rank})"
        equal = "" if self.equal_step is None else f"; all were equal at step {self.equal_step}"
        found = "no longer hold" + ("s" if self.ranks == 1 else "")
        return f"apart: {ranks}{named} {found} the weights of the others at step {self.step}{equal}"

    @property
    def judgement(self) -> Judgement:
        """What such a run is held to be, whatever its loss does."""
        return Judgement(Kind.DIVERGENT, 0.95, self.reason)


def apart_in(traces: Traces, after: int = -1) -> Apart | None:
    """What the newest comparison later than step `after` found; None where all were equal."""
    rows = traces.of[REPLICAS_APART]
    if not rows.steps or rows.steps[-1] <= after or not rows.values[-1] >= 1.0:
        return None
    step, which = rows.steps[-1], traces.of[REPLICA_APART].at(rows.steps[-1])
    rank = None if which is None else int(which)
    return Apart(step, int(rows.values[-1]), rank, _last_equal(rows))


def equal_since(traces: Traces, step: int) -> bool:
    """Whether the ranks were compared at `step` or later and all were equal the last time."""
    rows = traces.of[REPLICAS_APART]
    return bool(rows.steps) and rows.steps[-1] >= step and rows.values[-1] < 1.0


def first_apart(newest: Suspect, apart: Apart, traces: Traces) -> Suspect:
    """The first step whose update may have parted them; as far back as losses are kept, where
    they were never seen equal."""
    known = [step for step in traces.of[LOSS].steps if step <= newest.step]
    step = min(known, default=newest.step)
    if apart.equal_step is not None:
        step = min(apart.equal_step + 1, newest.step)
    return Suspect(step, newest.value, newest.z, batches_before(newest.batches, newest.step - step))


def _last_equal(rows: Trace) -> int | None:
    equal = [step for step, ranks in zip(rows.steps, rows.values, strict=True) if ranks < 1.0]
    return equal[-1] if equal else None


def _lowest(ranks: int) -> str:
    return "" if ranks == 1 else "the lowest is "
