"""Failures that no signal's baseline shows: updates dropped in a row, overflows of fp16, ranks that
no longer hold the same weights. They are judged against limits, not against what was usual.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spikeguard_core.detection.loss_test import Suspect
from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.evidence import REPLICA_APART, REPLICAS_APART, Trace, Traces
from spikeguard_core.events import Judgement
from spikeguard_protocol import BatchRange, Kind, OptionalSignal, Signal

LOSS = Signal.LOSS.value

# What no level is accepted with: a run that cannot learn any more.
_VITAL = (
    *(LOSS, Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value, Signal.PARAM_NORM.value),
    *(Signal.UPDATE_NORM.value, Signal.ADAM_V_NORM.value),
)


def is_destroyed(traces: Traces, before: Mapping[str, Trace]) -> bool:
    """Whether the newest value of a vital signal is not finite, or a gradient is 0 that was not
    0 throughout `before` the onset."""
    newest = {name: traces.of[name].values[-1] for name in _VITAL if traces.of[name].values}
    still = (name for name in GRAD_NORMS if newest.get(name) == 0.0)
    stopped = any(any(before[name].values) for name in still if name in before)
    return stopped or not all(map(math.isfinite, newest.values()))


# Updates dropped one after another: stuck from `DetectionSettings.drop_limit` in a row on.


def stuck_judgement(drops: int) -> Judgement:
    """What a run is held to be whose last `drops` updates were dropped."""
    reason = f"stuck: {drops} updates in a row had to be dropped, the weights stand still"
    return Judgement(Kind.DIVERGENT, 0.95, reason)


def first_dropped(newest: Suspect, drops: int, traces: Traces) -> Suspect:
    """The first of `drops` rows that end with `newest`, as far back as rows are kept."""
    known = set(traces.of[LOSS].steps) | set(traces.of[_SKIPPED].steps)
    steps = sorted(step for step in known if step <= newest.step)
    if not steps or steps[-1] != newest.step:
        return newest
    step = steps[-min(drops, len(steps))]
    return replace(newest, step=step, batches=batches_before(newest.batches, newest.step - step))


def batches_before(batches: BatchRange | None, steps: int) -> BatchRange | None:
    """What was consumed so many steps before, at the same pace."""
    if batches is None or batches.first < steps * len(batches):
        return None
    back = steps * len(batches)
    return BatchRange(batches.first - back, batches.end - back)


SHARE_ROWS = 200  # newest rows; a search for a loss scale skips at most some 30


@dataclass(slots=True)
class SkippedRows:
    """Which of the newest rows had their update dropped or skipped."""

    rows: int = 0  # so far
    newest: list[int] = field(default_factory=list)  # numbers of those

    def take(self, skipped: bool) -> float:
        """Take one more row; returns the share of the newest `SHARE_ROWS`, where those before the
        run's first count as trained."""
        self.rows += 1
        past = bisect_right(self.newest, self.rows - SHARE_ROWS)
        if skipped:
            self.newest, past = [*self.newest[past:], self.rows], 0
        return (len(self.newest) - past) / SHARE_ROWS


# Steps that the loop's gradient scaler kept out: an overflow of fp16, which it finds its scale by.
# One is a dropped update and nothing else: its gradients and the update that was not made enter no
# baseline and open nothing. A loss that is not finite is never one of these.

GRAD_NORMS = (Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value)
_SKIPPED = OptionalSignal.STEP_SKIPPED.value
_OF_THE_UPDATE = (
    *(*GRAD_NORMS, Signal.UPDATE_NORM.value, Signal.UPDATE_NORM_SAMPLED.value),
    OptionalSignal.UNCHANGED_PARAMETERS.value,
)


def is_overflow(sample: Sample) -> bool:
    """Whether a gradient scaler skipped the step of `sample`, whose loss is sound."""
    values = sample.values
    if not values.get(_SKIPPED, 0.0) >= 1.0 or not math.isfinite(values.get(LOSS, 0.0)):
        return False
    norms = [values[name] for name in GRAD_NORMS if name in values]
    return not norms or not all(map(math.isfinite, norms))


def without_update(sample: Sample) -> Sample:
    """What is left of `sample` without its gradients and its update."""
    kept = {name: value for name, value in sample.values.items() if name not in _OF_THE_UPDATE}
    return replace(sample, values=kept)


# Ranks that no longer hold the same weights. They are compared to the bit, so one comparison is
# enough, and only the newest counts: a rollback makes the ranks equal again.


@dataclass(frozen=True, slots=True)
class Apart:
    """What the newest comparison said, where it found ranks apart."""

    step: int  # of that comparison
    ranks: int  # whose weights are not those of the most
    rank: int | None  # the lowest of them
    equal_step: int | None  # of the last comparison in which all were equal, if any is known

    @property
    def judgement(self) -> Judgement:
        """What such a run is held to be, whatever its loss does."""
        one = self.ranks == 1
        ranks, hold = ("1 rank", "holds") if one else (f"{self.ranks} ranks", "hold")
        lowest = "" if one else "the lowest is "
        named = "" if self.rank is None else f" ({lowest}rank {self.rank})"
        equal = "" if self.equal_step is None else f"; all were equal at step {self.equal_step}"
        found = f"apart: {ranks}{named} no longer {hold} the weights of the others"
        return Judgement(Kind.DIVERGENT, 0.95, f"{found} at step {self.step}{equal}")


def apart_in(traces: Traces, after: int = -1) -> Apart | None:
    """What the newest comparison later than step `after` found; None where all were equal."""
    rows = traces.of[REPLICAS_APART]
    if not rows.steps or rows.steps[-1] <= after or not rows.values[-1] >= 1.0:
        return None
    step, which = rows.steps[-1], traces.of[REPLICA_APART].at(rows.steps[-1])
    equal = [at for at, ranks in rows.rows() if ranks < 1.0]
    rank = None if which is None else int(which)
    return Apart(step, int(rows.values[-1]), rank, equal[-1] if equal else None)


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
