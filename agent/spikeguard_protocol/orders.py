"""What the server tells an agent: orders with their arguments, and the acknowledgement.

An order says everything that its execution needs; the agent adds nothing but its own checks.
Validity travels as durations and steps, never as a wall-clock deadline.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields

from spikeguard_protocol.errors import ProtocolError
from spikeguard_protocol.identity import (
    TARGET_PATTERN,
    BatchRange,
    CommandId,
    check_attempt,
    check_count,
)
from spikeguard_protocol.vocabulary import Verb

MAX_ORDERS = 32  # of an acknowledgement: an agent reads no more of them at a time
MAX_PROTECTED = 64  # the same of the names to keep
MITIGATION_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,31}")


def check_factor(field: str, value: float) -> float:
    """Return `value` if it may multiply a learning rate, in (0, 1]."""
    if not 0.0 < value <= 1.0:
        raise ProtocolError(field, "lies in (0, 1]", f"Got {value}")
    return value


def check_mitigation(field: str, name: str) -> str:
    """Return `name` if it may be that of something that a job switches on for a while."""
    if not MITIGATION_PATTERN.fullmatch(name):
        raise ProtocolError(field, "takes 1 to 32 of a-z, 0-9 and -", f"Got {name[:80]!r}")
    return name


@dataclass(frozen=True, slots=True)
class SkipBatches:
    """Leave out positions that were not read yet. Void once the first of them has been read."""

    batches: BatchRange


@dataclass(frozen=True, slots=True)
class Rollback:
    """Return to `target`, then leave out `skip` when its positions come round.

    `lr_factor` and `lr_steps` lower the learning rate as part of the same act: after a spike that
    came back, going back alone only repeats it. `lr_cap`: a rate that jumped is lowered to it and
    no further, so that steps whose rate was as usual train as usual. `apply`, `apply_steps`: from
    the target on with that mitigation.
    """

    target: str  # name of a checkpoint or memory snapshot, as the agent reported it
    step: int  # the step after which the target was taken
    skip: BatchRange | None = None
    lr_factor: float | None = None
    lr_steps: int | None = None
    lr_cap: float | None = None  # of the first group
    apply: str | None = None
    apply_steps: int | None = None

    def __post_init__(self) -> None:
        if not TARGET_PATTERN.fullmatch(self.target):
            raise ProtocolError("target", "takes 1 to 128 safe characters", f"Got {self.target!r}")
        check_count("step", self.step)
        if (self.lr_factor is None) != (self.lr_steps is None):
            raise ProtocolError("lr_factor", "goes together with lr_steps", "Give both or neither")
        if self.lr_factor is not None and self.lr_steps is not None:
            check_factor("lr_factor", self.lr_factor)
            check_count("lr_steps", self.lr_steps, least=1)
        if self.lr_cap is not None and (self.lr_factor is None or not 0.0 < self.lr_cap < math.inf):
            raise ProtocolError("lr_cap", "is above 0 and goes with lr_factor", "Give both")
        if (self.apply is None) != (self.apply_steps is None):
            raise ProtocolError("apply", "goes together with apply_steps", "Give both or neither")
        if self.apply is not None and self.apply_steps is not None:
            check_mitigation("apply", self.apply)
            check_count("apply_steps", self.apply_steps, least=1)


@dataclass(frozen=True, slots=True)
class ScaleLr:
    """Multiply every learning rate by `factor` for `steps` steps, then ramp back."""

    factor: float
    steps: int

    def __post_init__(self) -> None:
        check_factor("factor", self.factor)
        check_count("steps", self.steps, least=1)


@dataclass(frozen=True, slots=True)
class Apply:
    """Switch on the mitigation `name`, which the job has registered, for `steps` steps."""

    name: str
    steps: int

    def __post_init__(self) -> None:
        check_mitigation("name", self.name)
        check_count("steps", self.steps, least=1)


@dataclass(frozen=True, slots=True)
class CheckpointNow:
    """Save a checkpoint at the next step boundary."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Do nothing, and look again after `steps` steps."""

    steps: int

    def __post_init__(self) -> None:
        check_count("steps", self.steps, least=1)


@dataclass(frozen=True, slots=True)
class Stop:
    """End the attempt on all ranks, leaving the checkpoints as they are."""


type_of_verb: dict[Verb, type] = {
    Verb.SKIP_BATCHES: SkipBatches,
    Verb.ROLLBACK: Rollback,
    Verb.SCALE_LR: ScaleLr,
    Verb.APPLY: Apply,
    Verb.CHECKPOINT_NOW: CheckpointNow,
    Verb.WATCH: Watch,
    Verb.STOP: Stop,
}
_VERB_OF = {kind: verb for verb, kind in type_of_verb.items()}
Action = SkipBatches | Rollback | ScaleLr | Apply | CheckpointNow | Watch | Stop


def verb_of(action: Action) -> Verb:
    """The word for what `action` orders."""
    return _VERB_OF[type(action)]


def action_words(action: Action) -> str:
    """`scale_lr(factor=0.5, steps=100)`, for a line of a log; what is not given is left out."""
    given = {f.name: getattr(action, f.name) for f in fields(action)}
    said = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
    return f"{verb_of(action)}({said})"


@dataclass(frozen=True, slots=True)
class Order:
    """An approved command on its way to the agent; repeated until its result arrives."""

    command: str  # public id, `run#3.1`
    attempt: str  # fence: only this attempt may execute it
    action: Action
    expires_in_s: float  # counted from when the message went out that it answers
    expires_at_step: int | None  # void once this step has been trained

    def __post_init__(self) -> None:
        CommandId.parse(self.command)
        check_attempt("attempt", self.attempt)
        if self.expires_at_step is not None:
            check_count("expires_at_step", self.expires_at_step)


@dataclass(frozen=True, slots=True)
class UnreadableOrder:
    """An order that breaks the protocol, or that a newer release invented: refused by its name."""

    command: str
    problem: str


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to a message: what is stored, and what there is to do."""

    sequence: int  # the highest sequence stored for this attempt
    orders: tuple[Order, ...] = ()
    attentive: bool = False  # measure the slow signals at every step
    protected: tuple[str, ...] = ()  # targets that must be kept while an incident is open
    live_attempts: int = 1  # above 1 nobody gets orders
