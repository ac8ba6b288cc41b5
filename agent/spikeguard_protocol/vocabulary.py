"""The closed sets of words that travel on the wire and stand in every other package, each defined
once in the spelling that the API, the database and the UI show. The moves between states live with
their owners (the server's domain), never here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What a spike turns out to be; provisional until its incident closes."""

    RECOVERABLE = "recoverable"  # returns to the extrapolated pre-spike trend and stays
    LINGERING = "lingering"  # settles above that trend
    DIVERGENT = "divergent"  # climbs, oscillates without settling, or goes non-finite
    OUTLIER_BATCH = "outlier_batch"  # one batch stood out, the model did not move


class Cause(StrEnum):
    """What may have started a spike; `unknown` is an answer."""

    BAD_BATCH = "bad_batch"  # the data of its first steps
    RARE_TOKENS = "rare_tokens"  # ordinary data with tokens hardly seen before
    STALE_SECOND_MOMENT = "stale_second_moment"  # Adam's, too small for the gradients that came
    LR_TOO_HIGH = "lr_too_high"
    LAYER_FAULT = "layer_fault"  # a numeric fault in one layer
    NON_FINITE_SOURCE = "non_finite_source"  # a NaN or infinity that was computed
    WEIGHT_CORRUPTION = "weight_corruption"  # weights changed by no update, as hardware faults do
    LOSS_SCALE_OVERFLOW = "loss_scale_overflow"  # fp16: no loss scale fits the gradients
    STALLED_WEIGHTS = "stalled_weights"  # bf16: updates round to nothing
    REPLICAS_APART = "replicas_apart"  # ranks hold different weights; certain, so never ranked
    UNKNOWN = "unknown"  # what was measured does not tell


class IncidentState(StrEnum):
    """Where an incident stands."""

    OPEN = "open"  # being watched, or waiting for a decision
    RECOVERING = "recovering"  # a command, or a restart from before it, is being judged
    CLOSED = "closed"  # over


class Outcome(StrEnum):
    """How an incident ended."""

    HEALED = "healed"  # came back to trend by itself
    RECOVERED = "recovered"  # came back to trend after a command, the emergency rule or a restart
    LEVEL_ACCEPTED = "level_accepted"  # the new level became the baseline
    OUTLIER = "outlier"  # one batch stood out
    WITHDRAWN = "withdrawn"  # opened on evidence that did not hold
    RUN_ENDED = "run_ended"  # the run stopped before it was settled


OUTCOME_WORDS: Mapping[Outcome, str] = {
    Outcome.HEALED: "healed by itself",
    Outcome.RECOVERED: "recovered",
    Outcome.LEVEL_ACCEPTED: "new level accepted",
    Outcome.OUTLIER: "no harm done",
    Outcome.WITHDRAWN: "withdrawn",
    Outcome.RUN_ENDED: "run ended",
}  # as every page says it


class Verb(StrEnum):
    """What a command can order."""

    ROLLBACK = "rollback"  # go back to a checkpoint or snapshot, and leave out batches then
    SKIP_BATCHES = "skip_batches"  # leave out batches that were not read yet
    SCALE_LR = "scale_lr"  # multiply every learning rate for some steps, then ramp back
    APPLY = "apply"  # switch on something that the job has registered, for some steps
    WATCH = "watch"  # do nothing, and look again later
    CHECKPOINT_NOW = "checkpoint_now"  # save a checkpoint at the next step boundary
    STOP = "stop"  # end the attempt on all ranks; its checkpoints stay


class CommandState(StrEnum):
    """Where a command stands."""

    PROPOSED = "proposed"
    SUPERSEDED = "superseded"  # another proposal took its place
    REJECTED = "rejected"  # a person said no
    EXPIRED = "expired"  # nobody answered while it was valid
    WITHDRAWN_HEALED = "withdrawn_healed"  # the spike heals, or healed, by itself
    WITHDRAWN = "withdrawn"  # what it was proposed for holds no longer
    RUN_ENDED = "run_ended"  # the run was over first
    VOID = "void"  # the attempt that it was meant for was gone first
    APPROVED = "approved"
    UNDELIVERED = "undelivered"  # approved, and the job did not fetch it while it was valid
    HALTED = "halted"  # approved by somebody, and taken back by the kill switch
    DELIVERED = "delivered"
    REFUSED = "refused"  # the agent checked the order and would not do it
    APPLIED = "applied"
    FAILED = "failed"
    UNKNOWN = "unknown"  # the attempt ended without a result
    JUDGED = "judged"  # applied, and its effect on the loss was established


COMMAND_STATE_WORDS: Mapping[CommandState, str] = {
    CommandState.PROPOSED: "waiting for a decision",
    CommandState.SUPERSEDED: "replaced by another proposal",
    CommandState.REJECTED: "rejected",
    CommandState.EXPIRED: "expired: nobody answered in time",
    CommandState.WITHDRAWN_HEALED: "withdrawn: it was healing",
    CommandState.WITHDRAWN: "withdrawn: its reason no longer holds",
    CommandState.RUN_ENDED: "void: the run ended first",
    CommandState.VOID: "void: the attempt that it was meant for is gone",
    CommandState.APPROVED: "approved, not yet fetched by the job",
    CommandState.UNDELIVERED: "approved, but the job did not fetch it in time",
    CommandState.HALTED: "approved, but taken back by the kill switch",
    CommandState.DELIVERED: "the job has it",
    CommandState.REFUSED: "refused by the job",
    CommandState.APPLIED: "carried out, not judged yet",
    CommandState.FAILED: "failed in the job",
    CommandState.UNKNOWN: "the attempt ended without a result",
    CommandState.JUDGED: "carried out",
}  # as every page, terminal, message and document says it


class ResultState(StrEnum):
    """What an agent may report of a command it was given."""

    REFUSED = "refused"  # checked, and not done
    APPLIED = "applied"  # done
    FAILED = "failed"  # tried, and not done


class ResponseAction(StrEnum):
    """What a person did about an incident, beside deciding on its commands."""

    ACKNOWLEDGED = "acknowledged"  # looks at it
    UNACKNOWLEDGED = "unacknowledged"  # took that back
    ASSIGNED = "assigned"  # made it somebody's
    UNASSIGNED = "unassigned"  # made it nobody's
    COMMENTED = "commented"


class Answer(StrEnum):
    """Whether something can be done in a job."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "not known yet"


class Medium(StrEnum):
    """Where a rollback target lies."""

    DISK = "disk"  # a checkpoint
    MEMORY = "memory"  # a snapshot on the job's hosts


class Health(StrEnum):
    """Whether a checkpoint may be named as a rollback target."""

    PENDING = "pending"  # not enough calm steps have followed it
    SUSPECT = "suspect"  # taken while an incident was open, or on a branch that was given up
    DAMAGED = "damaged"  # a weight or a moment in it is damaged; it is never proposed
    HEALTHY = "healthy"  # enough calm steps have followed it


class SegmentReason(StrEnum):
    """Why an unbroken stretch of steps began."""

    START = "start"  # a fresh run
    RESUME = "resume"  # a new attempt continued from a checkpoint
    ROLLBACK = "rollback"  # a command took the run back


class Role(StrEnum):
    """What the bearer of a token may do."""

    AGENT = "agent"  # a training job: sends messages, fetches orders
    VIEWER = "viewer"  # reads
    OPERATOR = "operator"  # reads, decides, silences
    ADMIN = "admin"  # the same, and policies, channels, tokens, deleting runs
    METRICS = "metrics"  # scrapes /metrics and /metrics/fleet


class Signal(StrEnum):
    """The standard signals, named as in every chart and column. Users may add their own."""

    LOSS = "loss"  # nats per token, token-weighted mean over ranks and micro-batches
    LOSS_RANK_MAX = "loss_rank_max"  # nats per token, the worst rank's mean
    GRAD_NORM = "grad_norm"  # global L2 before clipping
    GRAD_NORM_AT_STEP = "grad_norm_at_step"  # global L2 as seen by the step pre-hook
    PARAM_NORM = "param_norm"  # global L2
    ADAM_V_NORM = "adam_v_norm"  # L2 of Adam's second moment
    UPDATE_NORM = "update_norm"  # L2 of (theta after - theta before) / lr
    UPDATE_NORM_SAMPLED = "update_norm_sampled"  # the same over a fixed sample of matrices
    LR = "lr"  # learning rate, of the first parameter group
    TOKENS_PER_SECOND = "tokens_per_second"  # `tokens_per_step` over the time of the step
    STEP_TIME = "step_time"  # seconds
    UPDATE_DROPPED = "update_dropped"  # 1.0 where the agent kept this step's update out


# Learning rates of the parameter groups after group 0, each where it is not group 0's.
RATES_OF_GROUPS: Final = tuple(f"lr_group_{number}" for number in range(1, 8))


class OptionalSignal(StrEnum):
    """Signals of some runs, most of them where asked for."""

    TOKEN_ENTROPY = "token_entropy"  # nats, of the histogram of the step's tokens
    UNSEEN_TOKENS = "unseen_tokens"  # share of the step's tokens that no step before held
    UNCHANGED_PARAMETERS = "unchanged_parameters"  # share of a sample that the step left alike
    STEP_SKIPPED = "step_skipped"  # 1.0 where the loop's gradient scaler kept the update out
    LOSS_SEQUENCE_MAX = "loss_sequence_max"  # nats per token, the worst sequence's mean
    LOSS_SCALE = "loss_scale"  # of the gradient scaler, after the step
    ADAM_BETA2 = "adam_beta2"  # the smallest of the job's groups, beside `adam_v_norm`
    ATTENTION_LOGIT_MAX = "attention_logit_max"  # before the softmax
    ACTIVATION_NORM_MAX = "activation_norm_max"  # L2, of the layer where that is most
    ACTIVATION_OUTLIER_MAX = "activation_outlier_max"  # largest over RMS of a layer's output


STANDARD_SIGNALS: tuple[str, ...] = tuple(signal.value for signal in Signal)
OPTIONAL_SIGNALS: tuple[str, ...] = tuple(signal.value for signal in OptionalSignal)


# Signals in which a cause shows, the most telling first: what a picture has beside the loss.
SPEAKS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    Cause.BAD_BATCH: (
        OptionalSignal.LOSS_SEQUENCE_MAX.value,
        Signal.LOSS_RANK_MAX.value,
        OptionalSignal.TOKEN_ENTROPY.value,
        OptionalSignal.UNSEEN_TOKENS.value,
    ),
    Cause.RARE_TOKENS: (OptionalSignal.UNSEEN_TOKENS.value, OptionalSignal.TOKEN_ENTROPY.value),
    Cause.STALE_SECOND_MOMENT: (Signal.ADAM_V_NORM.value, Signal.UPDATE_NORM.value),
    Cause.LR_TOO_HIGH: (Signal.LR.value, *RATES_OF_GROUPS),
    Cause.WEIGHT_CORRUPTION: (Signal.PARAM_NORM.value,),
    Cause.LOSS_SCALE_OVERFLOW: (
        OptionalSignal.STEP_SKIPPED.value,
        OptionalSignal.LOSS_SCALE.value,
    ),
    Cause.STALLED_WEIGHTS: (OptionalSignal.UNCHANGED_PARAMETERS.value,),
}
