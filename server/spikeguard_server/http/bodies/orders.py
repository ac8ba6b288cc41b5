"""Bodies about what a person orders, and what they may order."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_core.policy.cost import cost_of
from spikeguard_core.policy.orders import TAKES, OrderRequest, out_of_reach, why_not
from spikeguard_core.policy.situation import RunSituation, Target
from spikeguard_protocol import BatchRange, Health, Medium, Rollback, Verb
from spikeguard_protocol.identity import MAX_STEP, TARGET_PATTERN
from spikeguard_protocol.orders import MITIGATION_PATTERN
from spikeguard_server.http.bodies.incident_shapes import CostBody
from spikeguard_server.http.bodies.incidents import cost_body
from spikeguard_server.http.bodies.run_shapes import Shape
from spikeguard_server.ingest.orders import OF_INCIDENT, OF_RUN, Ordered, SeenProposal
from spikeguard_server.store.reads.costs import Options

SHORTEST_S: Final = 5.0
LONGEST_S: Final = 86_400.0
MAX_WHY: Final = 2000  # characters
Why = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_WHY)
]  # fmt: skip
CommandNumber = Annotated[int, Field(ge=0, le=2**31 - 1)]
Position = Annotated[int, Field(ge=0, le=MAX_STEP)]


def _some(batches: list[int]) -> list[int]:
    if batches[0] >= batches[1]:
        raise ValueError(f"[{batches[0]}, {batches[1]}) holds no batch")
    return batches


Batches = Annotated[
    list[Position],
    Field(min_length=2, max_length=2, description="[first, end) in the data order"),
    AfterValidator(_some),
]


class OrderShape(Shape):
    """What every order may say, whatever it is ordered of."""

    target: str | None = Field(
        None, pattern=f"^{TARGET_PATTERN.pattern}$", description="rollback: its name"
    )
    skip: Batches | None = Field(
        None, description="skip_batches: those; rollback: those left out behind the target"
    )
    factor: float | None = Field(
        None, gt=0.0, le=1.0, allow_inf_nan=False,
        description="scale_lr, rollback: of every learning rate",
    )  # fmt: skip
    cap: float | None = Field(
        None, gt=0.0, allow_inf_nan=False,
        description="rollback: the factor lowers the learning rate no further than to this",
    )  # fmt: skip
    steps: int | None = Field(
        None,
        ge=1,
        le=MAX_STEP,
        description="at that rate, or with the mitigation; watch: until the policy looks again",
    )
    mitigation: str | None = Field(
        None, pattern=f"^{MITIGATION_PATTERN.pattern}$",
        description="apply: its name; rollback: with which the run goes on",
    )  # fmt: skip
    reason: Why
    expires_in_s: float = Field(
        600.0, ge=SHORTEST_S, le=LONGEST_S, allow_inf_nan=False,
        description="void if the job has not fetched it by then",
    )  # fmt: skip
    expect: ExpectedEffect | None = Field(None, description="of the loss, against its trend")
    expect_size: float | None = Field(
        None, gt=0.0, lt=1e6, allow_inf_nan=False, description="by how much, nats"
    )

    def ordered(self, verb: Verb) -> Ordered:
        """The order as it is judged."""
        skip = None if self.skip is None else BatchRange(*self.skip)
        wanted = OrderRequest(
            verb, self.target, skip, self.factor, self.steps, self.mitigation, self.cap
        )
        return Ordered(wanted, self.reason, self.expires_in_s, self.expect, self.expect_size)


class RunOrder(OrderShape):
    """What a person orders of a run, and why; the record keeps the reason."""

    verb: Literal["rollback", "skip_batches", "scale_lr", "apply", "checkpoint_now", "stop"]


class IncidentOrder(OrderShape):
    """What a person orders in place of the proposal that they have seen."""

    verb: Literal["rollback", "skip_batches", "scale_lr", "apply", "watch", "stop"]
    command: int | None = Field(
        None, ge=1, le=2**31 - 1, strict=True,
        description="number of the proposal that it replaces; null: none was waiting",
    )  # fmt: skip
    revision: int | None = Field(None, ge=1, le=2**31 - 1, strict=True, description="of it")

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.command is None) != (self.revision is None):
            raise ValueError("command and revision go together")
        return self

    @property
    def seen(self) -> SeenProposal | None:
        """The proposal that it is given in place of."""
        if self.command is None or self.revision is None:
            return None
        return SeenProposal(self.command, self.revision)


class VerbOption(Shape):
    """Whether a verb can be ordered now; if not, why, and what helps."""

    verb: Verb
    possible: bool
    reason: str = Field(description="why not; empty where it is possible")
    remedy: str


class TargetOption(Shape):
    """What the run can go back to, and what that would cost now."""

    name: str
    step: int
    position: int = Field(description="the next batch in the data order")
    medium: Medium
    health: Health
    damage: str | None = Field(description="what lies in its tensors; null: nothing was found")
    age_s: float
    reachable: bool = Field(description="false: further back than the job's own limit")
    cost: CostBody


class LimitsBody(Shape):
    """The job's own limits, from its settings; null: it told none."""

    lr_factor_least: float | None = None
    lr_steps_most: float | None = None
    apply_steps_most: float | None = None
    skip_batches_most: float | None = None
    rollback_steps_most: float | None = None


class OptionsBody(Shape):
    """What a person may order of a run now."""

    step: int
    position: int | None
    incident: int | None = Field(description="number of the open one")
    command: int | None = Field(description="number of what it proposes, which an order replaces")
    revision: int | None
    verbs: list[VerbOption]
    targets: list[TargetOption] = Field(description="newest first, at most 1000")
    limits: LimitsBody
    mitigations: dict[str, str] = Field(description="what the job can switch on: name to cost")


def options_body(options: Options) -> OptionsBody:
    """What can be ordered, newest target first; nothing can where no attempt trains."""
    situation, waiting = options.situation, options.waiting
    return OptionsBody(
        step=options.run.last_step or 0,
        position=options.run.position,
        incident=options.incident,
        command=None if waiting is None else waiting.number,
        revision=None if waiting is None else waiting.revision,
        verbs=_verbs(options),
        targets=[] if situation is None else [
            _target(target, situation, options) for target in reversed(situation.targets)
        ],
        limits=LimitsBody.of(*(() if situation is None else (situation.limits,))),
        mitigations={} if situation is None else dict(situation.mitigations),
    )  # fmt: skip


def _verbs(options: Options) -> list[VerbOption]:
    known = OF_RUN if options.incident is None else OF_RUN | OF_INCIDENT
    found = []
    if options.situation is None or not options.situation.mitigations:
        known -= {Verb.APPLY}
    for verb in (verb for verb in TAKES if verb in known):
        if options.situation is None:
            told = ("The run has no attempt that trains", "Start the job again first")
        elif options.policy.halted:
            told = ("The kill switch of the project is on", "An admin lifts it")
        elif (refusal := why_not(verb, options.situation)) is not None:
            told = (refusal.message, refusal.remedy)
        else:
            told = ("", "")
        found.append(VerbOption(verb=verb, possible=not told[0], reason=told[0], remedy=told[1]))
    return found


def _target(target: Target, situation: RunSituation, options: Options) -> TargetOption:
    cost = cost_of(Rollback(target.name, target.step), situation, options.policy)
    return TargetOption.of(
        target,
        age_s=max(0.0, (options.now - options.saved_at[target.name]).total_seconds()),
        reachable=not out_of_reach(target, situation),
        cost=cost_body(cost, options.policy),
    )
