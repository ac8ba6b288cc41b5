"""Bodies about incidents and their commands, made of rows, with the cost as of now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sql
from pydantic import Field

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_core.events import Trend
from spikeguard_core.lifecycle.command_life import EXECUTED, IN_FLIGHT, WAITING
from spikeguard_core.lifecycle.command_outcome import Tally, tallied
from spikeguard_core.policy.cost import Cost, can_wait_s, cost_of
from spikeguard_core.policy.finding import FirstMove, checks_of, diagnose, first_move_of
from spikeguard_core.policy.settings import PolicyScope
from spikeguard_core.suspicion import worth_showing
from spikeguard_protocol import (
    Cause,
    CommandState,
    IncidentState,
    Kind,
    Outcome,
    RunId,
    Verb,
    to_json,
)
from spikeguard_protocol.phrases import order_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow, IncidentRow, ResponseRow, RevisionRow
from spikeguard_server.http.bodies.run_shapes import Number, SegmentRef, Shape, Told
from spikeguard_server.report.wording import heading_of, summary_of
from spikeguard_server.store.commands import command_revisions_of, commands_of, commands_waiting
from spikeguard_server.store.incidents import read_responses, revisions_of
from spikeguard_server.store.notes import outcome_words, with_effects
from spikeguard_server.store.paging import Row
from spikeguard_server.store.reads.incidents import read_precedents
from spikeguard_server.store.reads.runs import Intervention
from spikeguard_server.store.situations import Pace, read_pace


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
    cost: Cost | None = Field(description="null: of the run itself, or in the answer to a decision")
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
    trend: Trend | None
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
    cause: str = Field(
        description="the likely one with its best reason, or that it is not known; empty where "
        "the title says it"
    )
    causes: list[CauseBody] = Field(description="the likeliest first")
    commands: list[CommandBody]
    responses: list[ResponseRow] = Field(description="the newest 200, oldest first")
    precedents: list[Tally] = Field(
        description="what was done about earlier ones of this kind and likeliest cause"
    )
    has_postmortem: bool


class Approval(Shape):
    """Which revision of the proposal is decided on: the one that was seen."""

    revision: int = Field(ge=1, strict=True)


class Rejection(Approval):
    """Which revision is rejected, and why; the record keeps the reason."""

    reason: Told


def incident_bodies(connection: sql.Connection, rows: Sequence[IncidentRow]) -> list[IncidentBody]:
    """Incidents of a list, each with what it proposes now."""
    waiting = commands_waiting(connection, [row.key for row in rows])
    before = command_revisions_of(connection, list(waiting.values()))
    found = []
    for row in rows:
        asked = waiting.get(row.key)
        proposal = None
        if asked is not None:
            proposal = command_body(asked, before, read_pace(connection, row))
        found.append(IncidentBody.of(row.incident, row, **_facts(row), proposal=proposal))
    return found


def incident_detail(connection: sql.Connection, row: IncidentRow) -> IncidentDetail:
    """One incident with everything known about it."""
    pace, incident = read_pace(connection, row), row.incident
    bodies = command_bodies(
        connection, with_effects(connection, commands_of(connection, *row.key)), pace
    )
    asked = commands_waiting(connection, [row.key]).get(row.key)
    return IncidentDetail.of(
        incident,
        row,
        **_facts(row),
        proposal=None if asked is None else next(b for b in bodies if b.number == asked.number),
        revisions=revisions_of(connection, row),
        evidence=EvidenceBody(worst_z=dict(incident.worst_z)),
        cause=diagnose(incident).advice,
        causes=worth_showing(incident.causes),
        commands=bodies,
        responses=read_responses(connection, *row.key),
        precedents=tallied(read_precedents(connection, row)),
        has_postmortem=row.reported_at is not None,
    )


def command_bodies(
    connection: sql.Connection, rows: Sequence[CommandRow], pace: Pace | None
) -> list[CommandBody]:
    """Commands, each with what it said before; `pace` of their incident, where they have one."""
    before = command_revisions_of(connection, rows)
    return [command_body(row, before, pace) for row in rows]


def command_body(
    row: CommandRow, before: Mapping[tuple[UUID, int, int], Sequence[Row]], pace: Pace | None
) -> CommandBody:
    """A command; with a `pace` its cost as of now or, once it was carried out, as it was."""
    waits = row.state in WAITING and row.verb is not Verb.WATCH
    checks: Sequence[str] = ()
    if waits and pace is not None:
        checks = checks_of(pace.situation.incident)
    return CommandBody.of(
        row,
        id=str(row.id),
        incident=None if row.id.of_run else str(row.id.incident),
        arguments=plain_arguments(to_json(row.action)),
        checks=checks,
        cost=None if pace is None else _cost(row, pace),
        attempt=row.attempt_id,
        expires_in_s=_left_s(row, pace),
        effect=row.effect if row.effect_known else None,
        revisions=[
            CommandRevision.of(one, arguments=plain_arguments(one.arguments))
            for one in before.get((row.run_id, *row.key), ())
        ],
    )


def _left_s(row: CommandRow, pace: Pace | None) -> float | None:
    """Until the earliest deadline of what is not over."""
    if row.state not in WAITING | IN_FLIGHT:
        return None
    if pace is None:
        return max(0.0, row.expires_in_s)
    return can_wait_s(row.expires_in_s, row.expires_at_step, pace.situation)


def plain_arguments(stored: Any) -> dict[str, Any]:
    """An action's fields without the protocol's tags; ranges as `[a, b]`."""
    found = dict(stored)
    found.pop("type", None)
    for name, value in found.items():
        if isinstance(value, Mapping) and value.keys() >= {"first", "end"}:
            found[name] = [value["first"], value["end"]]
    return found


def _cost(row: CommandRow, pace: Pace) -> Cost:
    """What it would cost now, what it did cost, or nothing where it never came to that."""
    situation = pace.situation
    if row.state not in EXECUTED | WAITING | IN_FLIGHT | {CommandState.UNKNOWN}:
        return cost_of(None, situation, pace.policy)
    if row.state in EXECUTED and row.applied_step is not None:
        situation = replace(situation, step=row.applied_step)
    return cost_of(row.action, situation, pace.policy)


def _facts(row: IncidentRow) -> dict[str, Any]:
    incident = row.incident
    return {
        "id": str(row.id),
        "run": row.run.name,
        "project": row.run.project,
        "first_signal": first_move_of(incident),
        "title": heading_of(incident),
        "summary": summary_of(incident),
    }


def trend_body(row: IncidentRow) -> dict[str, Any] | None:
    """The trend that an incident left, for the curves that are looked at for it."""
    trend = row.incident.trend
    return None if trend is None else asdict(trend)


class InterventionBody(Shape):
    """One thing that was done to a run: a command of the job, or a change made outside."""

    id: str = Field(description="of a command its id, of a note `RUN/note-NUMBER`")
    source: Literal["command", "person", "attempt"] = Field(
        description="command: ordered here; person: told of; attempt: found where one began"
    )
    at: datetime
    by: str = Field(description="who ordered or told it; of a proposal the policy")
    approved_by: str | None
    step: int | None = Field(description="it was carried out at; null: not, or not yet")
    what: str
    why: str | None
    state: str | None = Field(description="of a command")
    expect: ExpectedEffect | None
    expect_size: float | None = Field(description="nats")
    effect: Number | None = Field(description="of the loss above its earlier trend, nats")
    effect_error: Number | None = Field(description="half width of its 95 % interval, nats")
    outcome: str = Field(description="the effect, or why there is none, in words")
    judgement: str | None = Field(description="of a command: what became of it")


def intervention_body(one: Intervention, run: RunId) -> InterventionBody:
    """What is told of it."""
    row, note = one.command, one.note
    if row is None:
        assert note is not None
        return InterventionBody(
            id=f"{run}/note-{note.number}", source=note.source, at=note.at, by=note.actor,
            approved_by=None, step=note.step, what=note.text,
            why=note.reason, state=None, judgement=None, outcome=outcome_words(note),
            **_effect(note),
        )  # fmt: skip
    if row.state not in EXECUTED:
        outcome = COMMAND_STATE_WORDS[row.state]
    elif note is None:
        outcome = "it changes nothing that the loss could tell of"
    else:
        outcome = outcome_words(note)
    return InterventionBody(
        id=str(row.id), source="command", at=row.decided_at or row.proposed_at,
        by=row.proposed_by or f"policy {row.policy_version}", approved_by=row.decided_by,
        step=row.applied_step,
        what=order_phrase(row.verb, plain_arguments(to_json(row.action))), why=row.reason,
        state=row.state, judgement=row.judgement, outcome=outcome, **_effect(note),
    )  # fmt: skip


def _effect(row: Row | None) -> dict[str, Any]:
    told = {} if row is None else row._mapping
    return {
        "expect": told.get("expected"), "expect_size": told.get("expected_size"),
        **{name: told.get(name) for name in ("effect", "effect_error")},
    }  # fmt: skip
