"""Runs as the API shows them: one with its history, its targets, what was done to it and its
audit; and the list of them.

Reads only. What time does to a run (age, silence) is reckoned against the database's clock at the
moment of reading, so that a dead ticker can't make anything look alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import aggregate_order_by

from spikeguard_core.lifecycle.job_end import look_at_job
from spikeguard_core.policy.settings import Policy, PolicyScope
from spikeguard_core.policy.situation import Target
from spikeguard_protocol import RunId
from spikeguard_server.entities import CommandRow
from spikeguard_server.store.commands import (
    COMMANDS,
    RUN_WAITS,
    command_rows,
    unfinished_commands,
)
from spikeguard_server.store.engine import row_as, seconds
from spikeguard_server.store.incidents import open_incident
from spikeguard_server.store.notes import effects_of
from spikeguard_server.store.paging import PageWanted, Row, read_page
from spikeguard_server.store.runs import ENDED, LIVE, SILENT, RunRow, run_named
from spikeguard_server.store.situations import kept_targets, targets_of, targets_with_health
from spikeguard_server.store.tables.core import (
    FLEET,
    Names,
    attempts,
    audit,
    commands,
    deleted_runs,
    incidents,
    notes,
    policies,
    precursors,
    run_key,
    run_tags,
    runs,
)

MAX_SEGMENTS = 1000  # of a run, that are shown
MAX_WARNINGS = 20
MAX_ATTEMPTS = 100  # of a run, that are shown with it


def _live_attempts(silent_after: timedelta) -> sql.ScalarSelect[int]:
    """How many attempts are thought to run now; `store.runs.live_attempts` as SQL."""
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


_TAG = run_tags.c.tag
_TAGS = sql.func.array_agg(aggregate_order_by(_TAG, _TAG), type_=Names)
_OF_ROW = (  # the tags of a row of `runs`, in order
    sql.select(sql.func.coalesce(_TAGS, sql.cast([], Names)))
    .where(run_tags.c.run_id == runs.c.run_id)
    .correlate(runs)
    .scalar_subquery()
)
# Whether a row of `incidents` is what a row of `runs` has open.
_IS_OPEN = (incidents.c.run_id == runs.c.run_id) & (incidents.c.number == runs.c.open_incident)


def shown_runs(silent_after: timedelta) -> sql.Select[Any]:
    """Runs with what is told of each in a list."""
    last = attempts.alias("last")
    of_run = (last.c.run_id == runs.c.run_id) & (last.c.number == runs.c.current_attempt)
    return sql.select(
        runs,
        seconds(sql.func.now() - runs.c.last_message_at).label("age_s"),
        _state(silent_after).label("shown_state"),
        RUN_WAITS.label("waiting_approval"),
        _live_attempts(silent_after).label("live_attempts"),
        last.c.ended_at,
        last.c.end_reason,
        incidents.c.kind.label("open_kind"),
        _OF_ROW.label("tags"),
    ).select_from(runs.outerjoin(last, of_run).outerjoin(incidents, _IS_OPEN))


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
    query = sql.select(audit).where(audit.c.run_id == run_id)
    return read_page(connection, query, (audit.c.number,), page)


def job_of(row: Row, state: str) -> str | None:
    """What to look at where the job of a run in this state may have died."""
    return None if state == LIVE else look_at_job(row.current_attempt, row.end_reason)


def read_policy_row(
    connection: sql.Connection, policy: Policy, project: str, run_id: UUID | None
) -> Any:
    """When and by whom a policy in force was written; None for the built-in one."""
    c, whose = policies.c, run_id if policy.scope is PolicyScope.RUN else FLEET
    query = sql.select(c.at, c.actor).where(
        c.project == project, c.run_id == whose, c.version == policy.version
    )
    row: Any = connection.execute(query).one_or_none()
    return row


MOST_COUNTED: Final = 10_000  # runs
ANY: Final = "any"  # in place of a kind: of whatever kind


class RunSort(StrEnum):
    """By what a list of runs is sorted."""

    URGENCY = "urgency"  # open incidents, then runs that go on, then those that ended
    CREATED = "created"
    NAME = "name"
    HEARD = "heard"  # when the last message came
    STEP = "step"
    LOSS = "loss"
    GRAD_NORM = "grad_norm"
    TOKENS = "tokens_per_second"
    INCIDENTS = "incidents"


_C = runs.c
_URGENCY: Final = sql.case((_C.open_incident.is_not(None), 2), (_C.state != ENDED, 1), else_=0)


_SORTED_BY: Final[Mapping[RunSort, Sequence[sql.ColumnElement[Any]]]] = {
    RunSort.URGENCY: (_URGENCY, _C.created_at),
    RunSort.CREATED: (_C.created_at,),
    RunSort.NAME: (_C.project, _C.name),
    RunSort.HEARD: (_C.last_message_at,),
    RunSort.STEP: (_C.last_step,),
    RunSort.LOSS: (_C.last_loss,),
    RunSort.GRAD_NORM: (_C.last_grad_norm,),
    RunSort.TOKENS: (_C.tokens_per_second,),
    RunSort.INCIDENTS: (_C.incidents,),
}


def _key(by: RunSort, descending: bool) -> list[sql.ColumnElement[Any]]:
    """The columns that sort, all in one direction; runs without a value come last, those of equal
    rank by their key."""
    found = list[sql.ColumnElement[Any]]()
    for column in _SORTED_BY[by]:
        if getattr(column, "nullable", False):
            last = column.is_not(None) if descending else column.is_(None)
            found += [sql.cast(last, sql.Integer), sql.func.coalesce(column, 0)]
        else:
            found.append(column)
    return [*found, _C.run_id]


def list_runs(
    connection: sql.Connection,
    wanted: Sequence[sql.ColumnElement[bool]],
    page: PageWanted,
    silent_after: timedelta,
    by: RunSort,
    descending: bool,
) -> tuple[Sequence[Row], str | None]:
    """Runs sorted `by` something, and the cursor of the next page; `wanted`: `runs_wanted`."""
    query = shown_runs(silent_after).where(*wanted)
    return read_page(connection, query, _key(by, descending), page, descending=descending)


def count_runs(connection: sql.Connection, wanted: Sequence[sql.ColumnElement[bool]]) -> int:
    """How many there are; no more than `MOST_COUNTED` are counted."""
    some = sql.select(_C.run_id).select_from(runs.outerjoin(incidents, _IS_OPEN))
    some = some.where(*wanted).limit(MOST_COUNTED)
    return connection.scalar(sql.select(sql.func.count()).select_from(some.subquery())) or 0


def runs_wanted(
    silent_after: timedelta, *, project: str | None, state: str | None, search: str,
    tags: Sequence[str], open_kind: str | None,
) -> list[sql.ColumnElement[bool]]:  # fmt: skip
    """Of which runs all of this holds. `search`: stands somewhere in project/name, whatever the
    case; `open_kind`: of the open incident, `ANY`: whatever it is."""
    mine = run_tags.c.run_id == runs.c.run_id
    conditions: list[sql.ColumnElement[bool]]
    conditions = [sql.exists().where(mine, run_tags.c.tag == tag) for tag in tags]
    if project is not None:
        conditions.append(runs.c.project == project)
    if state is not None:
        conditions.append(_state(silent_after) == state)
    if search:
        full = runs.c.project + "/" + runs.c.name
        conditions.append(full.icontains(search, autoescape=True))
    if open_kind == ANY:
        conditions.append(runs.c.open_incident.is_not(None))
    elif open_kind is not None:
        conditions.append(incidents.c.kind == open_kind)
    return conditions


def _state(silent_after: timedelta) -> sql.ColumnElement[str]:
    """Silence is reckoned here: it must show even where no ticker runs."""
    quiet = runs.c.last_message_at < sql.func.now() - silent_after
    fell_silent = sql.and_(runs.c.state == LIVE, quiet)
    return sql.case((fell_silent, SILENT), else_=runs.c.state)


HISTORY_AFTER_S: Final = 600.0  # samples that are older propose nothing and page nobody


@dataclass(frozen=True, slots=True)
class NotifiedRun:
    """The run that a message is about."""

    project: str
    name: str
    state: str
    history: bool  # what it sends is older than what may page anybody
    job: str | None  # what to look at where its job may have died
    age_s: float  # of its newest message
    last_step: int | None
    last_loss: float | None
    open_incident: int | None
    waits: bool  # whether somebody has to decide


def read_told(connection: sql.Connection, run_id: UUID) -> NotifiedRun:
    """The run as it stands now."""
    current = (attempts.c.run_id == runs.c.run_id) & (attempts.c.number == runs.c.current_attempt)
    lag = seconds(runs.c.last_message_at - attempts.c.alive_at)
    age = seconds(sql.func.now() - runs.c.last_message_at)
    query = sql.select(
        runs, attempts.c.ended_at, attempts.c.end_reason, lag.label("lag_s"), age.label("age_s"),
        RUN_WAITS.label("waits"),
    ).outerjoin(attempts, current)  # fmt: skip
    row: Row = connection.execute(query.where(runs.c.run_id == run_id)).one()
    history = (row.lag_s or 0.0) > HISTORY_AFTER_S
    return row_as(NotifiedRun, row, history=history, job=job_of(row, row.state))


def recorded_run(connection: sql.Connection, run: RunId) -> UUID:
    """The key of a run that exists or was deleted; raise `NotFound` otherwise."""
    key = run_key(run)
    deleted = sql.select(deleted_runs.c.run_id).where(deleted_runs.c.run_id == key)
    if connection.scalar(deleted) is not None:
        return key
    return run_named(connection, run).run_id


@dataclass(frozen=True, slots=True)
class ShownTarget:
    """Something that the run can go back to, with what is held of it."""

    row: Target
    protected: bool  # agents keep it: a decision may still want it
    on_line: bool  # whether the present weights descend from it


def read_targets(connection: sql.Connection, run: RunRow) -> list[ShownTarget]:
    """The targets of a run that exist, newest first. One off the line that is trained now can never
    be named, and is suspect."""
    if run.current_attempt is None:
        return []
    judged = targets_with_health(connection, run, run.current_attempt)
    on_line = {target.name: target for target in judged}
    row = open_incident(connection, run.run_id)
    incident = None if row is None else row.incident
    unfinished = unfinished_commands(connection, run.run_id)
    kept = kept_targets(connection, run, judged, incident, unfinished)  # as jobs are told
    found = [
        on_line.get(t.name, t) for t in targets_of(connection, run.run_id, run.current_attempt)
    ]
    return [ShownTarget(t, t.name in kept, t.name in on_line) for t in reversed(found)]


GIVEN: Final = ("approved", "delivered", "applied", "judged", "refused", "failed", "unknown")
_G, _N = commands.c, notes.c
_AT = sql.func.coalesce(_G.decided_at, _G.proposed_at).label("at")


@dataclass(frozen=True, slots=True)
class Intervention:
    """A command or a note, with what it did to the loss where that is kept."""

    command: CommandRow | None
    note: Row | None  # of a command: what was expected of it, and what came


def read_interventions(
    connection: sql.Connection, run_id: UUID, page: PageWanted
) -> tuple[Sequence[Intervention], str | None]:
    """The newest first, and the cursor of the next page."""
    ordered = sql.select(_AT, _G.incident, _G.number, sql.literal(0).label("note")).where(
        _G.run_id == run_id, _G.state.in_(GIVEN), _G.verb != "watch"
    )
    # Told in the same instant a note comes before the command.
    told = sql.select(_N.at, sql.literal(2**31 - 1), sql.literal(0), _N.number)
    both = sql.union_all(ordered, told.where(_N.run_id == run_id, _N.shown)).subquery()
    found, more = read_page(connection, sql.select(both), tuple(both.c), page)
    keys = [(row.incident, row.number) for row in found if not row.note]
    mine = COMMANDS.where(_G.run_id == run_id, sql.tuple_(_G.incident, _G.number).in_(keys))
    given = {row.key: row for row in command_rows(connection, mine)}
    effects = effects_of(connection, run_id, [str(one.id) for one in given.values()])
    here = sql.select(notes).where(_N.run_id == run_id, _N.number.in_([r.note for r in found]))
    outside = {row.number: row for row in connection.execute(here)}
    interventions = []
    for row in found:
        command = None if row.note else given[row.incident, row.number]
        note = outside[row.note] if command is None else effects.get(str(command.id))
        interventions.append(Intervention(command, note))
    return interventions, more
