"""Runs as the API shows them: one run with its history, its audit. `run_list` lists them.

Law: reads only. What time does to a run (age, silence, a proposal's expiry) is reckoned against
the database's clock at the moment of reading, so that a dead ticker can't make anything look alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import WAITING
from spikeguard_core.lifecycle.job_end import QUIET, look_at_job
from spikeguard_core.policy.settings import Policy, PolicyScope
from spikeguard_protocol import RunId
from spikeguard_server.store.reads.history import PageWanted, Row, write_cursor
from spikeguard_server.store.run_tags import tags_of_row
from spikeguard_server.store.tables.core import (
    attempts,
    audit,
    commands,
    incidents,
    precursors,
    runs,
)
from spikeguard_server.store.tables.policies import policies, run_policies

MAX_WARNINGS = 20
MAX_ATTEMPTS = 100  # of a run, that are shown with it


def waiting(table: Any = commands) -> sql.ColumnElement[bool]:
    """Whether a command still waits for somebody's decision, apart from the steps it may wait."""
    columns = table.c
    return sql.and_(
        columns.state.in_([state.value for state in WAITING]), columns.expires_at > sql.func.now()
    )


def waits_of_run() -> sql.ColumnElement[bool]:
    """Whether a row of `runs` has a command that waits for somebody's decision."""
    in_time = commands.c.expires_at_step.is_(None) | (
        commands.c.expires_at_step > sql.func.coalesce(runs.c.last_step, 0)
    )
    return sql.exists().where(commands.c.run_id == runs.c.run_id, waiting(), in_time)


def _live_attempts(silent_after: timedelta) -> sql.ScalarSelect[int]:
    """How many attempts are thought to run now; `repository.runs.is_live` as SQL."""
    newest = attempts.alias("newest")
    # By itself a select correlates with the one around it, not with that one's surroundings.
    began = (
        sql.select(newest.c.started_at)
        .where(newest.c.run_id == runs.c.run_id, newest.c.number == runs.c.current_attempt)
        .correlate(runs)
    )
    return (
        sql.select(sql.func.count())
        .where(
            attempts.c.run_id == runs.c.run_id,
            attempts.c.ended_at.is_(None),
            sql.not_(attempts.c.lost),
            attempts.c.alive_at > sql.func.now() - silent_after,
            (attempts.c.number == runs.c.current_attempt)
            | (attempts.c.alive_at > began.scalar_subquery()),
        )
        .scalar_subquery()
    )


def shown_runs(silent_after: timedelta) -> sql.Select[Any]:
    """Runs with what is told of each in a list."""
    age = sql.cast(sql.extract("epoch", sql.func.now() - runs.c.last_message_at), sql.Double)
    last = attempts.alias("last")
    of_run = (last.c.run_id == runs.c.run_id) & (last.c.number == runs.c.current_attempt)
    return sql.select(
        runs,
        age.label("age_s"),
        waits_of_run().label("waiting_approval"),
        _live_attempts(silent_after).label("live_attempts"),
        last.c.ended_at,
        last.c.end_reason,
        incidents.c.kind.label("open_kind"),
        tags_of_row().label("tags"),
    ).select_from(runs.outerjoin(last, of_run).outerjoin(incidents, open_of_row()))


def open_of_row() -> sql.ColumnElement[bool]:
    """Whether a row of `incidents` is what a row of `runs` has open."""
    return (incidents.c.run_id == runs.c.run_id) & (incidents.c.number == runs.c.open_incident)


def read_run(connection: sql.Connection, run_id: UUID, silent_after: timedelta) -> Row:
    """One run that exists."""
    return connection.execute(shown_runs(silent_after).where(runs.c.run_id == run_id)).one()


def read_attempts(connection: sql.Connection, run_id: UUID) -> Sequence[Row]:
    """The newest attempts of a run, newest first. Each may say 128 kB of itself."""
    query = sql.select(attempts).where(attempts.c.run_id == run_id)
    newest = query.order_by(attempts.c.number.desc()).limit(MAX_ATTEMPTS)
    return connection.execute(newest).all()


def read_warnings(connection: sql.Connection, run_id: UUID) -> Sequence[Row]:
    """The newest precursors that no incident followed, newest first."""
    c = precursors.c
    query = sql.select(precursors).where(c.run_id == run_id, c.incident.is_(None))
    newest = query.order_by(c.at.desc(), c.step.desc(), c.signal).limit(MAX_WARNINGS)
    return connection.execute(newest).all()


def read_audit(
    connection: sql.Connection, run_id: UUID, page: PageWanted
) -> tuple[Sequence[Row], str | None]:
    """What happened to a run, newest first, and the cursor of the next page."""
    query = sql.select(audit).where(audit.c.run_id == run_id).order_by(audit.c.number.desc())
    if page.after is not None:
        query = query.where(audit.c.number < page.after[0])
    found = connection.execute(query.limit(page.limit + 1)).all()
    return cut(found, page.limit, lambda row: (row.number,))


def cut(found: Sequence[Row], limit: int, key: Any) -> tuple[Sequence[Row], str | None]:
    """The page itself, and the cursor if there is more behind it."""
    if len(found) <= limit:
        return found, None
    return found[:limit], write_cursor(key(found[limit - 1]))


def job_of(row: Row, state: str) -> str | None:
    """What to look at where the job of a run in this state may have died."""
    if state not in QUIET:
        return None
    ended = row.ended_at is not None
    return look_at_job(row.current_attempt, ended=ended, reason=row.end_reason)


def run_id_of(row: Row) -> RunId:
    """The name of a row's run."""
    return RunId(row.project, row.name)


def read_policy_row(
    connection: sql.Connection, policy: Policy, project: str, run_id: UUID | None
) -> Any:
    """When and by whom a policy in force was written; None for the built-in one."""
    c, own = policies.c, run_policies.c
    query = sql.select(c.at, c.actor).where(c.project == project, c.version == policy.version)
    if policy.scope is PolicyScope.RUN:
        query = sql.select(own.at, own.actor).where(
            own.run_id == run_id, own.version == policy.version
        )
    row: Any = connection.execute(query).one_or_none()
    return row
