"""What closed incidents came to, added up by project for Prometheus.

Invariants: reads only, one narrow table. Projects are taken in the order in which they began, so
that those beyond `MAX_PROJECTS` stay the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sql

from spikeguard_server.incident_metrics import (
    HISTOGRAMS,
    MAX_PROJECTS,
    MONEY,
    OTHERS,
    SUMS,
    Distribution,
    IncidentHistogram,
    IncidentTotals,
)
from spikeguard_server.store.tables.core import projects
from spikeguard_server.store.tables.incident_figures import incident_figures

_F = incident_figures.c
_FIRST = (
    sql.select(projects.c.name)
    .order_by(projects.c.created_at, projects.c.name)
    .limit(MAX_PROJECTS)
    .subquery()
)
_PROJECT: Final[sql.ColumnElement[str]] = sql.func.coalesce(_FIRST.c.name, OTHERS)
_FIGURES = incident_figures.outerjoin(_FIRST, _FIRST.c.name == _F.project)


def read_totals(connection: sql.Connection) -> IncidentTotals:
    """Every histogram and sum; of a project without incidents 0, so that its first is seen as a
    rise."""
    first = connection.execute(sql.select(_FIRST.c.name)).scalars().all()
    return IncidentTotals(
        distributions={one.name: _distributions(connection, one, first) for one in HISTOGRAMS},
        sums=_sums(connection, first),
        money=_money(connection),
    )


def _distributions(
    connection: sql.Connection, measured: IncidentHistogram, first: Sequence[str]
) -> dict[tuple[str, ...], Distribution]:
    value = _F[measured.column]
    words: list[sql.ColumnElement[Any]] = [_PROJECT]
    if measured.label_column is not None:
        words.append(_F[measured.label_column])
    within = [sql.func.count().filter(value <= edge) for edge in measured.edges]
    found = connection.execute(
        sql.select(*words, sql.func.count(), sql.func.sum(value), *within)
        .select_from(_FIGURES)
        .where(value.is_not(None))
        .group_by(*words)
    )
    names = len(words)
    labels: list[tuple[str, ...]] = [(word,) for word in measured.label_values] or [()]
    none = {
        (project, *label): Distribution.empty(measured) for project in first for label in labels
    }
    return none | {
        tuple(row[:names]): Distribution(tuple(row[names + 2 :]), row[names], float(row[names + 1]))
        for row in found
    }


def _sums(connection: sql.Connection, first: Sequence[str]) -> dict[str, Mapping[str, float]]:
    columns = {name: column for name, (_, column) in SUMS.items()}
    sums = [sql.func.coalesce(sql.func.sum(_F[column]), 0) for column in columns.values()]
    found: dict[str, dict[str, float]] = {}
    for name in columns:
        found[name] = dict.fromkeys(first, 0.0)
    rows = connection.execute(sql.select(_PROJECT, *sums).select_from(_FIGURES).group_by(_PROJECT))
    for row in rows:
        for name, value in zip(columns, row[1:], strict=True):
            found[name][row[0]] = float(value)
    return {**found}


def _money(connection: sql.Connection) -> dict[str, Mapping[tuple[str, str], float]]:
    found: dict[str, Mapping[tuple[str, str], float]] = {}
    for name, (_, kind) in MONEY.items():
        value = _F[f"{kind}_money"]
        rows = connection.execute(
            sql.select(_PROJECT, _F.currency, sql.func.sum(value))
            .select_from(_FIGURES)
            .where(value.is_not(None))
            .group_by(_PROJECT, _F.currency)
        )
        found[name] = {(row[0], row[1]): float(row[2]) for row in rows}
    return found
