"""Bodies about incidents and their commands."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from spikeguard_core.policy.finding import Symptom
from spikeguard_core.policy.remedies import Diagnosis
from spikeguard_core.policy.settings import PolicyScope
from spikeguard_protocol import (
    Cause,
    CommandState,
    IncidentState,
    Kind,
    Outcome,
    ResponseAction,
    Verb,
)
from spikeguard_server.http.bodies.run_shapes import (
    Number,
    SegmentRef,
    Shape,
    TrendBody,
)


def _pair(value: Any) -> Any:
    return (value.first, value.end) if hasattr(value, "end") else value


Range = Annotated[tuple[int, int], BeforeValidator(_pair)]  # half-open positions [a, b)


class CostBody(Shape):
    """What approving would cost, reckoned at the moment of reading."""

    steps: int
    seconds: float | None
    tokens: int | None
    money: float | None = Field(description="null until a price per hour is set")
    currency: str | None = Field(description="of `money`; null where that is")
    step_time_s: float | None = Field(description="the pace that it is reckoned at")
    step_time_of: int = Field(description="steps before the onset that the pace is the median of")
    waiting_steps: int | None = Field(
        description="more of `steps` for every minute of waiting; null: not known"
    )
    waiting_money: float | None = Field(description="more of `money` for every minute of waiting")


class CommandRevision(Shape):
    """What the proposal said before."""

    number: int
    at: datetime
    verb: Verb
    arguments: dict[str, Any]
    reason: str


class CommandBody(Shape):
    """A command from proposal to judgement."""

    id: str
    number: int
    incident: str | None = Field(description="null: a person ordered it of the run itself")
    verb: Verb
    arguments: dict[str, Any]
    state: CommandState
    revision: int
    reason: str
    policy_version: int | None
    policy_scope: PolicyScope = Field(description="whose policy: the run's own, its project's")
    checks: list[str] = Field(description="to look at before approving, while it waits")
    cost: CostBody | None = Field(
        description="null: of the run itself, or in the answer to a decision"
    )
    attempt: str | None
    expires_in_s: float | None
    expires_at_step: int | None
    proposed_at: datetime
    proposed_by: str | None = Field(description="the person who ordered it; null: the policy")
    decided_at: datetime | None
    decided_by: str | None
    decision_reason: str | None
    delivered_at: datetime | None
    finished_at: datetime | None
    applied_step: int | None
    result: str | None
    end_reason: str | None = Field(description="why it ended without reaching the job")
    judgement: str | None
    effect: str | None = Field(
        description="on the loss, in words: of a rollback against the branch that it undid"
    )
    revisions: list[CommandRevision] = Field(description="the newest 20")


class CommandList(Shape):
    """Commands of a run itself, newest first."""

    items: list[CommandBody]
    next_cursor: str | None


class FirstMoveBody(Shape):
    """The first signal to move, and the step at which it did."""

    signal: str
    step: int


class IncidentBody(Shape):
    """One spike, from onset to close."""

    id: str
    run: str
    project: str
    number: int
    state: IncidentState
    kind: Kind
    confidence: float = Field(description="probability that `kind` is right, 0 to 1")
    reason: str
    settled: bool = Field(description="`kind` changes with new evidence only")
    onset_step: int
    detected_step: int
    peak_step: int
    closed_step: int | None
    onset_batches: Range | None = Field(description="positions in the data order, half-open")
    segment: SegmentRef
    signal: str = Field(description="that opened it; `first_signal` may have moved before")
    first_signal: FirstMoveBody
    symptom: Symptom
    title: str = Field(description="what every view calls it")
    summary: str = Field(description="what happened, in a sentence without its full stop")
    loss_rose: bool = Field(description="whether the loss itself stood out of its trend")
    pre_loss: Number | None = Field(description="the trend just before the onset, nats")
    peak_loss: Number | None = Field(description="nats")
    excess: Number | None = Field(description="of the loss over the trend at `newest_step`, nats")
    height: str | None = Field(description="`excess` in words, with its error where that matters")
    newest_step: int = Field(description="the newest that was judged")
    dropped: bool = Field(description="whether the agent kept the onset's update out")
    stuck: bool = Field(
        description="whether updates were dropped in a row, so that weights stand still"
    )
    apart: bool = Field(description="whether ranks were found to hold different weights")
    recurrences: int = Field(description="times it was there again after a command or a restart")
    outcome: Outcome | None
    opened_at: datetime
    closed_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None = Field(description="who looks at it; null: nobody has said so")
    assignee: str | None = Field(description="whose it is; null: nobody's")
    trend: TrendBody | None
    proposal: CommandBody | None


class IncidentRevision(Shape):
    """How the incident was classified, and from when."""

    number: int
    step: int
    at: datetime
    kind: Kind
    confidence: float
    reason: str


class PrecursorBody(Shape):
    """A leading signal that left its baseline before the loss moved."""

    step: int
    signal: str
    value: Number
    z: Number


class EvidenceBody(Shape):
    """Which signal moved when, and how far."""

    first_moves: dict[str, int] = Field(description="step by signal")
    worst_z: dict[str, Number] = Field(
        description="by signal, in robust deviations; of norms in log space"
    )
    peaks: dict[str, Number] = Field(description="by signal, in its own unit")
    precursors: list[PrecursorBody]


class CauseBody(Shape):
    """What may have started it, how likely that is, and what speaks for and against it."""

    cause: Cause
    confidence: float
    reasons: list[str] = Field(description="sentences without their full stops")
    against: list[str] = Field(description="the same, of what speaks against it")


class RemedyBody(Shape):
    """What the incident is taken for when its remedy is chosen, and what that asks for."""

    diagnosis: Diagnosis
    known: bool = Field(description="whether a cause is sure enough to act on")
    title: str
    sentence: str = Field(description="the cause, how sure it is, and what speaks for it")
    follow_ups: list[str] = Field(description="for the next morning")


class FirstLayerBody(Shape):
    """The layer that moved first, where norms by layer are sent."""

    signal: str
    layer: str
    step: int
    ratio: Number = Field(description="to its usual norm; inf where it was not finite")
    moved: int = Field(description="layers that moved at that step")
    known: int = Field(description="layers that could have")


class ResponseBody(Shape):
    """What a person did about an incident, beside deciding on its commands."""

    number: int = Field(description="from 1, within the incident")
    at: datetime
    person: str
    action: ResponseAction
    assignee: str | None = Field(description="whom it was given to, or taken from")
    text: str | None = Field(description="of a comment")


class ActionTally(Shape):
    """What one way of acting came to."""

    verb: Verb | None = Field(description="the last that was carried out; null: nothing was done")
    count: int
    words: str


class IncidentDetail(IncidentBody):
    """An incident with its revisions, its evidence and every command."""

    revisions: list[IncidentRevision] = Field(description="the first 500 and the newest 500")
    evidence: EvidenceBody
    causes: list[CauseBody] = Field(description="the likeliest first")
    remedy: RemedyBody
    first_layer: FirstLayerBody | None
    commands: list[CommandBody]
    own_acts: list[str] = Field(description="what the job did by its emergency rule")
    assigned_at: datetime | None
    assigned_by: str | None
    responses: list[ResponseBody] = Field(description="the newest 200, oldest first")
    precedents: list[ActionTally] = Field(
        description="what was done about earlier ones of this kind and likeliest cause"
    )
    has_postmortem: bool


class IncidentList(Shape):
    """Incidents, newest first."""

    items: list[IncidentBody]
    next_cursor: str | None


class Approval(Shape):
    """Which revision of the proposal is approved: the one that was seen."""

    revision: int = Field(ge=1, strict=True)


class Rejection(Shape):
    """Which revision is rejected, and why; the record keeps the reason."""

    revision: int = Field(ge=1, strict=True)
    reason: str = Field(min_length=1, max_length=2000)
