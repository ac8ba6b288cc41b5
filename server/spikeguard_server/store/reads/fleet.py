"""The fleet in numbers, for Prometheus; and the runs on which time alone has an effect.

Gauges are given for at most `MAX_RUNS` runs, those with an open incident first, then those that
fell silent, then the newest. Where there are more, the projects take turns, so that no project
takes the place of another. What is left out is counted. What grows with history is counted in
indexes alone (closed incidents, finished commands, dropped samples) or in a narrow table (what
deleted runs had counted), so that every replica tells the same at once.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.policy.settings import DAY_S, ApprovalMode
from spikeguard_protocol import CommandState, Verb
from spikeguard_server.metrics import MAX_RUNS, NOT_CARRIED_OUT, Fleet
from spikeguard_server.settings import Settings
from spikeguard_server.store.commands import IS_WAITING, UNFINISHED, late_answer
from spikeguard_server.store.deleted_runs import FINAL, read_totals
from spikeguard_server.store.engine import seconds
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.runs import ENDED, LIVE
from spikeguard_server.store.tables.core import (
    attempts,
    channels,
    commands,
    conversations,
    incidents,
    runs,
)
from spikeguard_server.store.tokens import expiring_agents

_R, _A, _C = runs.c, attempts.c, commands.c
_OPEN = incidents.c.state != "closed"
_ENDED = runs.c.state == "ended"
_SHOWN = runs.c.run_id.in_(  # a run that crashed of its spike has ended, and the spike is open
    sql.union(
        sql.select(runs.c.run_id).where(runs.c.state != "ended"),
        sql.select(incidents.c.run_id).where(_OPEN),
    )
)


def read_fleet(connection: sql.Connection) -> Fleet:
    """Counts over every run, and the runs that have not ended or whose spike is open."""
    c, k = commands.c, conversations.c
    oldest = sql.func.max(_age(c.proposed_at))
    waits = connection.execute(sql.select(sql.func.count(), oldest).where(IS_WAITING)).one()
    due = sql.select(_age(sql.func.min(k.due_at))).where(k.due_at <= sql.func.now())
    # Of a conversation the newest message, or what was given up since anything arrived there.
    failing = (k.due_at.is_not(None) & (k.failures > 0)) | k.given_up
    channel = (channels.c.project == k.project) & (channels.c.name == k.channel)
    told, kind = (
        conversations.outerjoin(channels, channel),
        sql.func.coalesce(channels.c.kind, "gone"),
    )
    live, totals = connection.execute(_LIVE).all(), read_totals(connection)
    return Fleet(
        runs=_counts(connection, runs, runs.c.state, where=sql.true()),
        open_incidents=_counts(connection, incidents, incidents.c.kind, where=_OPEN),
        closed_incidents=totals["closed"],
        unfinished=_counts(connection, commands, c.verb, c.state, where=c.state.not_in(FINAL)),
        finished={**NOT_CARRIED_OUT, **totals["finished"]},
        approvals_waiting=waits[0],
        oldest_approval_s=waits[1] or 0.0,
        dropped_samples=sum(totals["dropped"].values()),
        live=tuple(dict(row._mapping) for row in live),
        not_shown=live[0].to_show - len(live) if live else 0,
        budgets_spent=_budgets_spent(connection),
        oldest_notice_s=connection.scalar(due) or 0.0,
        failing=_counts(connection, told, kind, where=failing),
        agent_tokens_expiring=len(expiring_agents(connection)),
    )


def _budgets_spent(connection: sql.Connection) -> dict[tuple[str, str], int]:
    """(project, verb) -> unended runs whose automatic approvals of the last day are used up."""
    c = commands.c
    spent = connection.execute(
        sql.select(runs.c.run_id, runs.c.project, c.verb, sql.func.count())
        .join(runs, runs.c.run_id == c.run_id)
        .where(
            c.automatic,
            c.decided_at > sql.func.now() - timedelta(seconds=DAY_S),
            runs.c.state != "ended",
        )
        .group_by(runs.c.project, runs.c.run_id, c.verb)
    ).all()
    policies = {
        run_id: policy_of(connection, project, run_id)
        for run_id, project in {(row[0], row[1]) for row in spent}
    }
    found = Counter[tuple[str, str]]()
    for run_id, project, verb, count in spent:
        rule = policies[run_id].approval_of(Verb(verb))
        if rule.mode is ApprovalMode.AUTO and count >= rule.budget:
            found[project, verb] += 1
    return dict(found)


def _age(moment: sql.ColumnElement[Any]) -> sql.ColumnElement[float]:
    return seconds(sql.func.now() - moment)


def _counts(
    connection: sql.Connection, of: sql.FromClause, *words: sql.ColumnElement[Any], where: Any
) -> dict[Any, int]:
    """How many rows have each word, or each of several."""
    query = sql.select(*words, sql.func.count()).select_from(of).where(where).group_by(*words)
    found = connection.execute(query).all()
    return {row[0] if len(words) == 1 else tuple(row[:-1]): row[-1] for row in found}


_WAITED = sql.select(sql.func.max(_age(commands.c.proposed_at))).where(
    commands.c.run_id == runs.c.run_id, IS_WAITING
)
_KIND = sql.select(incidents.c.kind).where(
    incidents.c.run_id == runs.c.run_id, incidents.c.number == runs.c.open_incident
)
_SPIKES = runs.c.open_incident.is_not(None)
# By nothing that a message changes, so that each scrape names the same runs.
_ORDER = (runs.c.state != "silent", runs.c.created_at.desc(), runs.c.run_id)
_TURNS = (
    sql.select(
        runs.c.run_id,
        sql.func.row_number()
        .over(partition_by=(runs.c.project, _SPIKES), order_by=_ORDER)
        .label("turn"),
        sql.func.count().over().label("to_show"),
    )
    .where(_SHOWN)
    .subquery()
)
_LIVE = (
    sql.select(
        runs,
        sql.case((_ENDED, None), else_=_age(runs.c.last_message_at)).label("age_s"),
        _SPIKES.label("spikes"),
        _KIND.scalar_subquery().label("kind"),
        _WAITED.scalar_subquery().label("approval_age_s"),
        _TURNS.c.to_show,
    )
    .join(_TURNS, _TURNS.c.run_id == runs.c.run_id)
    .order_by(sql.not_(_SPIKES), _TURNS.c.turn, *_ORDER)
    .limit(MAX_RUNS)
)


AT_ONCE: Final = 1000  # runs of one list


def runs_due(
    connection: sql.Connection, settings: Settings, now: datetime, limit: int = AT_ONCE
) -> list[UUID]:
    """At most `limit` runs on which time has had an effect that nobody wrote down yet, the projects
    in turn; of each those first whose command waits, then those that were silent the longest."""
    unanswered = sql.select(_C.run_id).where(*late_answer(now))
    waiting = sql.union(_unfinished(settings, now), unanswered).subquery()
    silent_since, lost_since, over_since = (
        now - timedelta(seconds=seconds)
        for seconds in (settings.silent_after_s, settings.lost_after_s, settings.ended_after_s)
    )
    unfinished = sql.or_(
        _R.state != ENDED, _R.open_incident.is_not(None), _R.followed_to.is_not(None)
    )
    due = sql.union(
        sql.select(_R.run_id).where(_R.state == LIVE, _R.last_message_at <= silent_since),
        sql.select(_R.run_id).where(unfinished, _R.last_message_at <= over_since),
        sql.select(_A.run_id).where(
            _A.ended_at.is_(None), _A.lost.is_(False), _A.last_message_at <= lost_since
        ),
        sql.select(waiting.c.run_id),
    ).subquery()
    waits = _R.run_id.in_(sql.select(waiting.c.run_id))
    order = (sql.not_(waits), _R.last_message_at, _R.run_id)
    turn = sql.func.row_number().over(partition_by=_R.project, order_by=order)
    query = sql.select(_R.run_id).join(due, due.c.run_id == _R.run_id).order_by(turn, *order)
    return list(connection.execute(query.limit(limit)).scalars())


def _unfinished(settings: Settings, now: datetime) -> sql.Select[UUID]:
    """What is too late, or was approved and not fetched yet: the kill switch takes it back."""
    late = sql.or_(_C.expires_at <= now, _C.expires_at_step <= _R.last_step)
    overdue = _C.delivered_at <= now - timedelta(seconds=settings.lost_after_s)
    return (
        sql.select(_C.run_id)
        .join(runs, _R.run_id == _C.run_id)
        .where(UNFINISHED, late | (_C.state == CommandState.APPROVED.value))
        .where((_C.state != CommandState.DELIVERED.value) | overdue)
    )
