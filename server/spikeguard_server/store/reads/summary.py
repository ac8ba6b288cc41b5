"""What the incidents of some weeks came to, added up by the database.

Invariants: reads only, a fixed number of statements, each with a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import IncidentState
from spikeguard_server.domain.lifecycle.incident_figures import PERSON
from spikeguard_server.domain.lifecycle.incident_summary import (
    CauseFact,
    Figures,
    OpenFollowup,
    RunFact,
    Summary,
    WeekFact,
)
from spikeguard_server.store.followups import open_followups
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.tables.core import incidents, runs
from spikeguard_server.store.tables.incident_figures import incident_figures

MAX_WEEKS: Final = 53
MAX_RUNS: Final = 50
MAX_CAUSES: Final = 50
MAX_FOLLOWUPS: Final = 50
_I, _R, _F = incidents.c, runs.c, incident_figures.c
_WEEK: Final[sql.ColumnElement[Any]] = sql.func.date_trunc("week", _I.opened_at, "UTC")


@dataclass(frozen=True, slots=True)
class SummaryWanted:
    """Which incidents are added up."""

    ends: datetime
    weeks: int
    project: str | None = None
    run_id: UUID | None = None
    scope: str = "all runs"

    @property
    def begins(self) -> datetime:
        """Monday 0:00 UTC of the first week."""
        monday = (self.ends - timedelta(days=self.ends.weekday())).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        return monday - timedelta(weeks=self.weeks - 1)


def read_summary(connection: sql.Connection, wanted: SummaryWanted) -> Summary:
    """Everything that a summary says."""
    by_run, runs_count = _runs(connection, wanted)
    todo, todo_count = open_followups(connection, wanted.project, wanted.run_id, MAX_FOLLOWUPS)
    return Summary(
        begins=_text(wanted.begins),
        ends=_text(wanted.ends),
        scope=wanted.scope,
        total=_figures(connection, wanted).get((), Figures()),
        weeks=_weeks(connection, wanted),
        runs=by_run,
        runs_count=runs_count,
        causes=_causes(connection, wanted),
        followups=[_followup(row) for row in todo],
        followups_count=todo_count,
    )


def _weeks(connection: sql.Connection, wanted: SummaryWanted) -> list[WeekFact]:
    found = {key[0]: figures for key, figures in _figures(connection, wanted, _WEEK).items()}
    begins = [wanted.begins + timedelta(weeks=i) for i in range(wanted.weeks)]
    return [
        WeekFact(f"{begin:%G-W%V}", _text(begin), found.get(begin, Figures())) for begin in begins
    ]


def _runs(connection: sql.Connection, wanted: SummaryWanted) -> tuple[list[RunFact], int]:
    keys = (_R.project, _R.name)
    found = _figures(connection, wanted, *keys, limit=MAX_RUNS)
    distinct = sql.select(sql.func.count(sql.distinct(_I.run_id)))
    number = connection.execute(_within(distinct, wanted)).scalar_one()
    return [RunFact(key[0], key[1], figures) for key, figures in found.items()], int(number)


def _figures(
    connection: sql.Connection, wanted: SummaryWanted, *keys: sql.ColumnElement[Any],
    limit: int | None = None,
) -> dict[tuple[Any, ...], Figures]:  # fmt: skip
    """By `keys`; with a `limit` those that lost most first."""
    lost = sql.func.coalesce(sql.func.sum(_F.lost_s), 0.0)
    query: sql.Select[Any] = sql.select(
        *keys,
        sql.func.count().label("incidents"),
        sql.func.count().filter(_I.state != IncidentState.CLOSED.value).label("still_open"),
        _median(_F.detection_s).label("detect_s"),
        _median(_F.decision_s, _F.decided_by == PERSON).label("decide_s"),
        _median(_F.recovery_s).label("recover_s"),
        sql.func.coalesce(sql.func.sum(_F.lost_steps), 0).label("lost_steps"),
        lost.label("lost_s"),
        sql.func.coalesce(sql.func.sum(_F.saved_steps), 0).label("saved_steps"),
        sql.func.coalesce(sql.func.sum(_F.saved_s), 0.0).label("saved_s"),
    )
    query = _within(query, wanted).group_by(*keys)
    if limit is not None:
        query = query.order_by(lost.desc(), *keys).limit(limit)
    width = len(keys)
    found = {tuple(row[:width]): _of(row[width:]) for row in connection.execute(query)}
    return _with_money(connection, wanted, keys, found)


def _of(values: Sequence[Any]) -> Figures:
    counted, still_open, detect, decide, recover, lost, lost_s, saved, saved_s = values
    return Figures(
        counted, still_open, detect, decide, recover, int(lost), float(lost_s), int(saved),
        float(saved_s),
    )  # fmt: skip


def _with_money(
    connection: sql.Connection, wanted: SummaryWanted, keys: Sequence[sql.ColumnElement[Any]],
    found: dict[tuple[Any, ...], Figures],
) -> dict[tuple[Any, ...], Figures]:  # fmt: skip
    priced = _F.lost_money.is_not(None) | _F.saved_money.is_not(None)
    sums = (sql.func.sum(_F.lost_money), sql.func.sum(_F.saved_money))
    query = _within(sql.select(*keys, _F.currency, *sums), wanted).where(priced)
    width = len(keys)
    for row in connection.execute(query.group_by(*keys, _F.currency)):
        key, (currency, lost, saved) = tuple(row[:width]), row[width:]
        if (old := found.get(key)) is not None:
            found[key] = replace(
                old,
                lost_money=_added(old.lost_money, currency, lost),
                saved_money=_added(old.saved_money, currency, saved),
            )
    return found


def _added(money: Mapping[str, float], currency: str, more: float | None) -> dict[str, float]:
    return {**money, **({currency: float(more)} if more else {})}


def _causes(connection: sql.Connection, wanted: SummaryWanted) -> list[CauseFact]:
    cause, counted = _I.cause_names[1], sql.func.count()
    lost = sql.func.coalesce(sql.func.sum(_F.lost_steps), 0)
    query = sql.select(_I.kind, cause, counted, sql.func.count(sql.distinct(_I.run_id)), lost)
    query = _within(query, wanted).group_by(_I.kind, cause)
    rows = connection.execute(query.order_by(counted.desc(), _I.kind, cause).limit(MAX_CAUSES))
    return [CauseFact(row[0], row[1], row[2], row[3], int(row[4])) for row in rows]


def _median(
    column: sql.ColumnElement[Any], only: sql.ColumnElement[bool] | None = None
) -> sql.ColumnElement[Any]:
    found = sql.func.percentile_cont(0.5).within_group(column)
    return found if only is None else found.filter(only)


def _within(query: sql.Select[Any], wanted: SummaryWanted) -> sql.Select[Any]:
    """Of the incidents that opened in these weeks, in this scope, with their figures."""
    of_incident = (_F.run_id == _I.run_id) & (_F.incident == _I.number)
    query = (
        query.select_from(incidents)
        .join(runs, _R.run_id == _I.run_id)
        .outerjoin(incident_figures, of_incident)
        .where(_I.opened_at >= wanted.begins, _I.opened_at <= wanted.ends)
    )
    if wanted.project is not None:
        query = query.where(_R.project == wanted.project)
    return query if wanted.run_id is None else query.where(_I.run_id == wanted.run_id)


def _followup(row: Row) -> OpenFollowup:
    return OpenFollowup(
        row.project,
        row.name,
        row.incident,
        row.number,
        row.text,
        row.owner,
        _text(row.created_at),
    )


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
