"""Bodies about incidents and their commands."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from spikeguard_core.lifecycle.precedents import Tally
from spikeguard_core.policy.finding import FirstMove
from spikeguard_core.policy.settings import PolicyScope
from spikeguard_protocol import (
    BatchDetail,
    Cause,
    CommandState,
    IncidentState,
    Kind,
    Outcome,
    Verb,
)
from spikeguard_server.access.person_names import LONGEST
from spikeguard_server.entities import ResponseRow, RevisionRow
from spikeguard_server.http.bodies.run_shapes import (
    Number,
    SegmentRef,
    Shape,
    TrendBody,
)

MAX_COMMENT = 2000  # characters


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
    proposed_at: datetime
    proposed_by: str | None = Field(description="the person who ordered it; null: the policy")
    decided_at: datetime | None
    decided_by: str | None
    decision_reason: str | None
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
    onset_step: int
    detected_step: int
    peak_step: int
    closed_step: int | None
    segment: SegmentRef
    signal: str = Field(description="that opened it; `first_signal` may have moved before")
    first_signal: FirstMove
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


class EvidenceBody(Shape):
    """How far each signal moved."""

    worst_z: dict[str, Number] = Field(
        description="by signal, in robust deviations; of norms in log space"
    )


class CauseBody(Shape):
    """What may have started it, how likely that is, and what speaks for and against it."""

    cause: Cause
    confidence: float
    reasons: list[str] = Field(description="sentences without their full stops")
    against: list[str] = Field(description="the same, of what speaks against it")


class IncidentDetail(IncidentBody):
    """An incident with its revisions, its evidence and every command."""

    revisions: list[RevisionRow] = Field(description="the first 500 and the newest 500")
    evidence: EvidenceBody
    causes: list[CauseBody] = Field(description="the likeliest first")
    commands: list[CommandBody]
    responses: list[ResponseRow] = Field(description="the newest 200, oldest first")
    precedents: list[Tally] = Field(
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


class AssigneeWanted(Shape):
    """Whose an incident is to be."""

    assignee: str | None = Field(
        min_length=1, max_length=LONGEST, description="a person's name; null: nobody's"
    )


class CommentWanted(Shape):
    """What a person says of an incident."""

    text: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_COMMENT)
    ] = Field(description="what was found, done or is to be done")


class BatchEvidence(Shape):
    """What lay in the batches near an onset, as far as the agent told of it."""

    onset_step: int
    segment: SegmentRef
    shown: int | None = Field(
        description="which of `batches` to look at first; null: there are none"
    )
    worst: str | None = Field(description="of that one the sequence that stands out, a sentence")
    contrast: str | None = Field(description="of that one how its tokens differ, a sentence")
    batches: list[BatchDetail] = Field(description="by step and rank")
