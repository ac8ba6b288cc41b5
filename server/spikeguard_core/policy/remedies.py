"""The table of remedies: for each cause the rollback, the skip, the rate, and their words.

`{fields}` are filled in by `finding.py`.

The practice behind the rows: PaLM (arXiv 2204.02311, section 5.1) went about 100 steps back and
skipped 200 to 500 batches without knowing why; 5 to 20 are enough for a batch that is known; a
learning rate that is too high is halved or cut to a third; where Adam's state is suspect, others go
1,000 steps back, to a checkpoint from before that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from spikeguard_protocol import Cause, Kind
from spikeguard_protocol.phrases import CAUSE_WORDS


class GoBack(StrEnum):
    """To which target a rollback goes."""

    NO = "no"  # there is nothing to undo
    BEFORE_CAUSE = "before_cause"  # the newest from before the cause struck
    HEALTHY = "healthy"  # the newest healthy one; before the cause where few steps did it
    BEFORE_STATE = "before_state"  # from before the optimizer's state was spoilt


class Skip(StrEnum):
    """Which batches a rollback leaves out."""

    NOTHING = "nothing"  # none
    SPAN = "span"  # those that stood out; about the onset where that is not known
    HEDGE = "hedge"  # those about the onset, although nothing points to the data


class Rate(StrEnum):
    """At which learning rate the run goes on."""

    KEEP = "keep"  # lower only after a spike that came back
    LOWER = "lower"  # past the steps whose rate was raised, or by the policy's first factor
    WARM_UP = "warm_up"  # low at first, until the optimizer's state is filled again


DATA = frozenset({Cause.BAD_BATCH, Cause.RARE_TOKENS})  # what lies in the batches
ACTING = (Kind.LINGERING, Kind.DIVERGENT)  # kinds that a command may mend


@dataclass(frozen=True, slots=True)
class Remedy:
    """One row: what a diagnosis calls for."""

    diagnosis: Cause
    sure: float = 0.6  # confidence in the cause from which this row holds
    back: GoBack = GoBack.HEALTHY
    skip: Skip = Skip.NOTHING
    rate: Rate = Rate.KEEP
    again: bool = True  # once it came back with the batches of its onset, they are skipped
    stop_after: int | None = None  # times it came back after which the run is stopped instead
    because: str = ""  # why this, for whoever decides
    at_stop: str = ""  # the same where the run is stopped
    checks: tuple[str, ...] = ()  # before approving
    follow_ups: tuple[str, ...] = ()  # for the next morning

    @property
    def title(self) -> str:
        """The diagnosis in words: a cause by the name that every view gives it."""
        return CAUSE_WORDS[self.diagnosis]


_DATA_RETURNS = (
    "Look at the data of {positions}: {title} is the likely cause. It returns in the "
    "next epoch and in every run on this data order, unless it is left out there too."
)
_SOURCE = (
    "Find the source of that data. If it is behind an earlier incident too, take it out of "
    "the data mix: a change of the job's data order, or a mitigation that the job registers."
)
_DATA_ON_PURPOSE = (
    "Is this data there on purpose (a new source, language or tokenizer)? Then reject: the loss "
    "will rise at its next part as well."
)
_DEVICE = (
    "Test the device and the host memory of {rank}: weights that change by no update are a "
    "hardware fault, code beside the optimizer that writes to them, or, on one rank, an optimizer "
    "that decided alone. Drain it until it passes."
)
_DEVICE_ERRORS = (
    "Read the error counters of {rank} (ECC, NVLink, dmesg): going back on a faulty device "
    "brings the fault back. Where it has errors, drain it instead, and restart the job from a "
    "checkpoint on disk from before the damage."
)
NOT_THE_DATA = "No batch is skipped: the data is not what is blamed."
WITH_ITS_BATCHES = (
    "It came back with the same batches, so they may be the cause: they are skipped now."
)

_BAD_BATCH = Remedy(
    Cause.BAD_BATCH,
    skip=Skip.SPAN,
    because="Trained on again, the same batches would do the same.",
    checks=(_DATA_ON_PURPOSE,),
    follow_ups=(_DATA_RETURNS, _SOURCE),
)
_LR_TOO_HIGH = Remedy(
    Cause.LR_TOO_HIGH,
    back=GoBack.BEFORE_CAUSE,
    rate=Rate.LOWER,
    because="A rate that the schedule raises is raised again at the same step.",
    checks=(
        "Compare the learning rate with the schedule that was meant. If the schedule is at fault, "
        "mend it: no command does.",
    ),
    follow_ups=(
        "Look at the learning rate's schedule{where_raised}: what it does at a step it does again "
        "after every restart and rollback over that step.",
        "If the schedule is as it was meant, the rate is too high for this run there: lower its "
        "peak, or lengthen the warm-up before the next stage.",
    ),
)
_STALE = Remedy(
    Cause.STALE_SECOND_MOMENT,
    back=GoBack.BEFORE_STATE,
    rate=Rate.WARM_UP,
    because="The optimizer's state there is from before that.",
    checks=(
        "Was the optimizer's state lost, reset or loaded in part shortly before? Then the target "
        "has to be from before that.",
    ),
    follow_ups=(
        "Look at beta2: with a smaller one (0.95) the second moment follows the gradients sooner.",
        "Check that the optimizer's state is saved and restored whole, on every rank.",
    ),
)
_WEIGHTS = Remedy(
    Cause.WEIGHT_CORRUPTION,
    back=GoBack.BEFORE_CAUSE,
    again=False,
    stop_after=1,
    because="No update explains the weights, as after a fault of the hardware.",
    at_stop=(
        "It came back after going back, as with a faulty device. Take out the one that holds these "
        "weights before more compute is spent."
    ),
    checks=(_DEVICE_ERRORS,),
    follow_ups=(_DEVICE,),
)
_NON_FINITE = Remedy(
    Cause.NON_FINITE_SOURCE,
    back=GoBack.BEFORE_CAUSE,
    because="Values became non-finite in the computation.",
    checks=("Does only one rank have values that are not finite? Then drain its device first.",),
    follow_ups=(
        "Find where the first value that was not finite comes from (step {first_step}): a layer, "
        "a kernel, a rank. Run that step again on another device.",
    ),
)
_LAYER = Remedy(
    Cause.LAYER_FAULT,
    back=GoBack.BEFORE_CAUSE,
    stop_after=2,
    because="One layer moved first and alone.",
    at_stop="It came back twice in one layer: look at that layer before more compute is spent.",
    checks=("Is the layer's precision, kernel or parallel layout new? Then restart without it.",),
    follow_ups=(
        "Look at {layer}: its kernel, its precision, the device that holds it, its gradients.",
    ),
)
_OVERFLOW = Remedy(
    Cause.LOSS_SCALE_OVERFLOW,
    back=GoBack.NO,
    again=False,
    because=(
        "No update was applied, so there is nothing to go back from: lower the loss scale or its "
        "growth, or compute in bf16, and start again from the newest checkpoint."
    ),
    follow_ups=(
        "Look at the loss scale from step {first_step} on: its first value, its growth interval, "
        "and which layer overflows first. In bf16 none is needed.",
    ),
)
_STALLED = Remedy(
    Cause.STALLED_WEIGHTS,
    back=GoBack.NO,
    again=False,
    because=(
        "Going back brings the same: keep fp32 weights for the optimizer, round stochastically, or "
        "raise the learning rate, from the newest checkpoint on."
    ),
    follow_ups=(
        "Keep fp32 master weights, or round stochastically: most of what would be learned is lost "
        "while nearly all parameters stay as they are.",
    ),
)
_APART = replace(
    _WEIGHTS,
    diagnosis=Cause.REPLICAS_APART,
    sure=0.0,
    because="Since they parted they train different models.",
)
_UNKNOWN = Remedy(
    Cause.UNKNOWN,
    sure=0.0,
    skip=Skip.HEDGE,
    because="It may come again.",
    checks=(
        "Was anything changed shortly before (data, schedule, code, nodes)? You may know more "
        "than was measured.",
    ),
    follow_ups=(
        "The cause is not known. Where the job does not send `update_norm`, `param_norm`, "
        "`adam_v_norm` and the statistics of the tokens yet, let it: they tell causes apart.",
    ),
)


_ROWS: Mapping[Cause, Remedy] = {
    row.diagnosis: row
    for row in (
        *(_BAD_BATCH, replace(_BAD_BATCH, diagnosis=Cause.RARE_TOKENS)),
        *(_LR_TOO_HIGH, _STALE, _WEIGHTS, _NON_FINITE, _LAYER, _OVERFLOW, _STALLED, _APART),
        _UNKNOWN,
    )
}


def remedy_of(diagnosis: Cause, kind: Kind) -> Remedy:
    """The row for an incident of `kind` that is put down to `diagnosis`: of one that needs no
    command only the next morning is left."""
    row = _ROWS[diagnosis]
    if kind not in ACTING:
        follow_ups = () if diagnosis is Cause.UNKNOWN else row.follow_ups
        return Remedy(diagnosis, row.sure, GoBack.NO, follow_ups=follow_ups)
    if diagnosis is Cause.LR_TOO_HIGH and kind is Kind.DIVERGENT:
        # Updates that push the loss up look so, and come again with their batches.
        return replace(row, skip=Skip.HEDGE)
    return row
