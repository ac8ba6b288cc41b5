"""From rows to the bodies of incidents and commands, with the cost as of now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import EXECUTED, IN_FLIGHT, WAITING
from spikeguard_core.lifecycle.damage import rose
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.precedents import tallied
from spikeguard_core.policy.cost import Cost, can_wait_s, cost_of, cost_of_steps
from spikeguard_core.policy.evidence_order import EVIDENCE_ORDER
from spikeguard_core.policy.finding import (
    checks_of,
    diagnose,
    first_move_of,
    follow_ups_of,
    symptom_of,
)
from spikeguard_core.policy.settings import Policy
from spikeguard_core.suspicion import worth_showing
from spikeguard_protocol import (
    CommandId,
    CommandState,
    IncidentId,
    Rollback,
    RunId,
    Verb,
)
from spikeguard_server.http.bodies.incident_shapes import (
    ActionTally,
    CauseBody,
    CommandBody,
    CommandRevision,
    CostBody,
    EvidenceBody,
    FirstLayerBody,
    FirstMoveBody,
    IncidentBody,
    IncidentDetail,
    IncidentRevision,
    PrecursorBody,
    RemedyBody,
    ResponseBody,
)
from spikeguard_server.http.bodies.run_shapes import SegmentRef, TrendBody
from spikeguard_server.report.heading import heading_of, summary_of
from spikeguard_server.store.causes import first_layer_of, ranking_of
from spikeguard_server.store.commands import action_of
from spikeguard_server.store.effects import effects_of, is_measured, outcome_words
from spikeguard_server.store.incidents import attempts_of_runs, incident_of
from spikeguard_server.store.reads.costs import Pace, read_pace
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.reads.incidents import (
    CommandFacts,
    EvidenceRows,
    read_commands,
    read_evidence,
)
from spikeguard_server.store.reads.precedents import read_precedents
from spikeguard_server.store.reads.responses import read_responses

_MEASURED = (
    "number", "state", "kind", "confidence", "reason", "settled", "onset_step", "detected_step",
    "peak_step", "closed_step", "signal", "pre_loss", "peak_loss", "excess", "newest_step",
    "dropped", "recurrences", "outcome", "opened_at", "closed_at", "project",
    "acknowledged_at", "acknowledged_by", "assignee",
)  # fmt: skip
_TOLD = (
    "number", "verb", "state", "revision", "reason", "policy_version", "policy_scope",
    "expires_at_step",
    "proposed_at", "proposed_by",
    "decided_at", "decided_by", "decision_reason", "delivered_at", "finished_at",
    "applied_step", "result", "end_reason", "judgement",
)  # fmt: skip


def incident_bodies(connection: sql.Connection, rows: Sequence[Row]) -> list[IncidentBody]:
    """Incidents of a list, each with what it proposes now."""
    keys = [(row.run_id, row.number) for row in rows]
    waiting = read_commands(connection, keys, waiting_only=True)
    ids = attempts_of_runs(connection, {row.run_id for row in rows})
    return [
        IncidentBody(
            **_facts(row, incident_of(row, ids[row.run_id])),
            proposal=_proposal(connection, row, waiting),
        )
        for row in rows
    ]


def incident_detail(connection: sql.Connection, row: Row) -> IncidentDetail:
    """One incident with everything known about it."""
    key = (row.run_id, row.number)
    known = read_commands(connection, [key]).get(key, [])
    waiting = read_commands(connection, [key], waiting_only=True)
    evidence = read_evidence(connection, row)
    pace = read_pace(connection, row)
    return IncidentDetail(
        **_facts(row, pace.incident),
        proposal=_proposal(connection, row, waiting),
        revisions=[IncidentRevision(**_pick(r, _REVISED)) for r in evidence.revisions],
        evidence=_evidence(row, evidence),
        causes=_causes(row),
        remedy=_remedy(pace, known),
        first_layer=_first_layer(row),
        commands=_commands(connection, known, pace),
        assigned_at=row.assigned_at,
        assigned_by=row.assigned_by,
        responses=[response_body(r) for r in read_responses(connection, *key)],
        precedents=[
            ActionTally.model_validate(t) for t in tallied(read_precedents(connection, row))
        ],
        has_postmortem=evidence.has_report,
    )


_MOVED = ("step", "signal", "value", "z")
_RESPONDED = ("number", "at", "person", "action", "assignee", "text")
_REVISED = ("number", "step", "at", "kind", "confidence", "reason")


def response_body(row: Row) -> ResponseBody:
    """What a person did or said."""
    return ResponseBody(**_pick(row, _RESPONDED))


def _commands(
    connection: sql.Connection, known: Sequence[CommandFacts], pace: Pace
) -> list[CommandBody]:
    """The commands of one incident, with what each did to the loss where that was measured."""
    bodies = [command_body(facts, pace) for facts in known]
    done = [body.id for body in bodies if body.state in EXECUTED]
    effects = effects_of(connection, known[0].row.run_id, done) if done else {}
    for body in bodies:
        row = effects.get(body.id)
        body.effect = None if row is None or not is_measured(row) else outcome_words(row)
    return bodies


def command_body(facts: CommandFacts, pace: Pace) -> CommandBody:
    """A command, its cost as of now or, once it was carried out, as it was."""
    row = facts.row
    incident = IncidentId(RunId(row.project, row.name), row.incident)
    return CommandBody(
        **_pick(row, _TOLD),
        id=str(CommandId(incident, row.number)),
        incident=str(incident),
        arguments=plain_arguments(row.arguments),
        checks=_checks(row, pace),
        cost=_cost_body(row, pace),
        attempt=row.attempt_id,
        expires_in_s=_left_s(row, pace),
        revisions=[_revision(revision) for revision in facts.revisions],
    )


def _left_s(row: Row, pace: Pace) -> float | None:
    """Until the earliest deadline of what is not over."""
    if not _pending(row):
        return None
    return can_wait_s(row.expires_in_s, row.expires_at_step, pace.situation())


def plain_arguments(stored: Any) -> dict[str, Any]:
    """An action's fields without the protocol's tags; ranges as `[a, b]`."""
    return {name: _plain(value) for name, value in stored.items() if name != "type"}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping) and value.keys() >= {"first", "end"}:
        return [value["first"], value["end"]]
    return value


def cost_body(cost: Cost, policy: Policy) -> CostBody:
    """A price as it is told."""
    currency = None if cost.money is None else policy.currency
    return CostBody(
        steps=cost.steps, seconds=cost.seconds, tokens=cost.tokens, money=cost.money,
        currency=currency, step_time_s=cost.pace.seconds, step_time_of=cost.pace.of_steps,
        waiting_steps=cost.waiting_steps, waiting_money=cost.waiting_money,
    )  # fmt: skip


def _checks(row: Row, pace: Pace) -> list[str]:
    waits = CommandState(row.state) in WAITING and row.verb != Verb.WATCH
    return list(checks_of(pace.incident, pace.policy, pace.data)) if waits else []


def _remedy(pace: Pace, known: Sequence[CommandFacts]) -> RemedyBody:
    finding = diagnose(pace.incident, pace.policy)
    executed = [facts.row for facts in known if CommandState(facts.row.state) in EXECUTED]
    skips = tuple(
        action.skip
        for action in (action_of(row.arguments) for row in executed)
        if isinstance(action, Rollback) and action.skip is not None
    )
    return RemedyBody(
        diagnosis=finding.remedy.diagnosis,
        known=finding.known,
        title=finding.remedy.title,
        sentence=finding.advice,
        follow_ups=list(follow_ups_of(pace.incident, pace.policy, skips, pace.data)),
        evidence=list(EVIDENCE_ORDER[finding.remedy.diagnosis]),
    )


def _pending(row: Row) -> bool:
    return CommandState(row.state) in WAITING | IN_FLIGHT


def _cost_body(row: Row, pace: Pace) -> CostBody:
    return cost_body(_cost(row, pace), pace.policy)


def _cost(row: Row, pace: Pace) -> Cost:
    """What it would cost now, what it did cost, or nothing where it never came to that."""
    state, action = CommandState(row.state), action_of(row.arguments)
    if state in EXECUTED:
        return cost_of(action, pace.situation(row.applied_step), pace.policy)
    if _pending(row) or state is CommandState.UNKNOWN:
        return cost_of(action, pace.situation(), pace.policy)
    return cost_of_steps(0, pace.situation(), pace.policy)


def _revision(row: Row) -> CommandRevision:
    return CommandRevision(
        number=row.number,
        at=row.at,
        verb=row.verb,
        arguments=plain_arguments(row.arguments),
        reason=row.reason,
    )


def _proposal(
    connection: sql.Connection, row: Row, waiting: Mapping[Any, list[CommandFacts]]
) -> CommandBody | None:
    found = waiting.get((row.run_id, row.number))
    return command_body(found[-1], read_pace(connection, row)) if found else None


def _facts(row: Row, incident: Incident) -> dict[str, Any]:
    run = RunId(row.project, row.name)
    batches = None if row.onset_first is None else (row.onset_first, row.onset_end)
    return {
        **_pick(row, _MEASURED),
        "id": str(IncidentId(run, row.number)),
        "run": row.name,
        "onset_batches": batches,
        "first_signal": FirstMoveBody(**asdict(first_move_of(incident))),
        "symptom": symptom_of(incident),
        "title": heading_of(incident),
        "summary": summary_of(incident),
        "loss_rose": rose(incident),
        "stuck": incident.stuck,
        "apart": incident.apart,
        "segment": SegmentRef(attempt=row.attempt_id, number=row.segment),
        "trend": trend_body(row),
    }


def trend_body(row: Row) -> TrendBody | None:
    """Where the loss was heading before an incident."""
    if row.trend_step is None:
        return None
    return TrendBody(
        step=row.trend_step,
        level=row.trend_level,
        slope=row.trend_slope,
        scale=row.trend_scale,
        band=row.trend_band,
    )


def series_body(series: Mapping[str, Any], row: Row | None) -> dict[str, Any]:
    """Curves with the trend of the incident that they are looked at for."""
    trend = None if row is None else trend_body(row)
    return {**series, "trend": None if trend is None else trend.model_dump()}


def _evidence(row: Row, evidence: EvidenceRows) -> EvidenceBody:
    return EvidenceBody(
        first_moves=dict(zip(row.move_names, row.move_steps, strict=True)),
        worst_z=dict(zip(row.z_names, row.z_values, strict=True)),
        peaks=dict(evidence.peaks),
        precursors=[PrecursorBody(**_pick(r, _MOVED)) for r in evidence.precursors],
    )


def _causes(row: Row) -> list[CauseBody]:
    return [
        CauseBody(
            cause=one.cause,
            confidence=one.confidence,
            reasons=list(one.reasons),
            against=list(one.against),
        )
        for one in worth_showing(ranking_of(row))
    ]


def _first_layer(row: Row) -> FirstLayerBody | None:
    first = first_layer_of(row)
    if first is None:
        return None
    return FirstLayerBody(
        signal=first.signal, layer=first.layer, step=first.step, ratio=first.ratio,
        layers_moved=first.moved, layers_known=first.known,
    )  # fmt: skip


def _pick(row: Row, names: Sequence[str]) -> dict[str, Any]:
    return {name: row._mapping[name] for name in names}
