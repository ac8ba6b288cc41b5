"""The list of runs: which ones, in which order, page by page.

Law: reads only. A page begins behind the last run of the one before, by the key that sorts them, so
that no page costs more than the first. What was not measured comes last in either direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol.identity import MAX_STEP, NAME_PATTERN
from spikeguard_server.store.reads.history import PageWanted, Reader, Row, write_cursor
from spikeguard_server.store.reads.runs import open_of_row, shown_runs
from spikeguard_server.store.run_tags import has_tag
from spikeguard_server.store.runs import ENDED, LIVE, SILENT
from spikeguard_server.store.tables.core import incidents, runs

MOST_COUNTED: Final = 10_000  # runs
ANY: Final = "any"  # in place of a kind: of whatever kind


@dataclass(frozen=True, slots=True)
class RunsWanted:
    """Which runs are asked for."""

    project: str | None = None  # None = every one
    state: str | None = None  # live, silent, ended
    archived: bool = False  # those alone; else those that are not
    search: str = ""  # stands somewhere in project/name, whatever the case
    tags: tuple[str, ...] = ()  # all of them
    open_kind: str | None = None  # of the open incident; `ANY`: whatever it is


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


@dataclass(frozen=True, slots=True)
class RunListOrder:
    """How a list is sorted. Runs of equal rank are sorted by their key."""

    by: RunSort = RunSort.CREATED
    descending: bool = True


NEWEST: Final = RunListOrder()
_C = runs.c
_URGENCY: Final = sql.case((_C.open_incident.is_not(None), 2), (_C.state != ENDED, 1), else_=0)


def _whole(most: int) -> Reader:
    """Reads a whole number of a cursor; raises `ValueError` for one that no row can have."""

    def read(text: str) -> int:
        number = int(text)
        if not 0 <= number <= most:
            raise ValueError(text)
        return number

    return read


def _name(text: str) -> str:
    if not NAME_PATTERN.fullmatch(text):
        raise ValueError(text)
    return text


_KEYS: Final[Mapping[RunSort, tuple[tuple[Any, Reader], ...]]] = {
    RunSort.URGENCY: ((_URGENCY, _whole(2)), (_C.created_at, datetime.fromisoformat)),
    RunSort.CREATED: ((_C.created_at, datetime.fromisoformat),),
    RunSort.NAME: ((_C.project, _name), (_C.name, _name)),
    RunSort.HEARD: ((_C.last_message_at, datetime.fromisoformat),),
    RunSort.STEP: ((_C.last_step, _whole(MAX_STEP)),),
    RunSort.LOSS: ((_C.last_loss, float),),
    RunSort.GRAD_NORM: ((_C.last_grad_norm, float),),
    RunSort.TOKENS: ((_C.tokens_per_second, float),),
    RunSort.INCIDENTS: ((_C.incidents, _whole(2**31 - 1)),),
}


def _key(order: RunListOrder) -> list[tuple[Any, Reader]]:
    """The columns that sort, with what reads each from a cursor; all in one direction."""
    found: list[tuple[Any, Reader]] = []
    for column, reader in _KEYS[order.by]:
        if getattr(column, "nullable", False):
            last = column.is_not(None) if order.descending else column.is_(None)
            found += [
                (sql.cast(last, sql.Integer), _whole(1)),
                (sql.func.coalesce(column, 0), reader),
            ]
        else:
            found.append((column, reader))
    return [*found, (_C.run_id, UUID)]


def cursor_readers(order: RunListOrder) -> list[Callable[[str], Any]]:
    """What reads a cursor of a list in this order."""
    return [reader for _, reader in _key(order)]


def list_runs(
    connection: sql.Connection,
    wanted: RunsWanted,
    page: PageWanted,
    silent_after: timedelta,
    order: RunListOrder = NEWEST,
) -> tuple[Sequence[Row], str | None]:
    """Runs in `order`, and the cursor of the next page."""
    columns = [column for column, _ in _key(order)]
    place = sql.tuple_(*columns)
    keys = [column.label(f"key_{at}") for at, column in enumerate(columns)]
    query = shown_runs(silent_after).add_columns(*keys).where(*_wanted(wanted, silent_after))
    if page.after is not None:
        after = sql.tuple_(*page.after, types=[column.type for column in columns])
        query = query.where(place < after if order.descending else place > after)
    query = query.order_by(
        *(column.desc() if order.descending else column.asc() for column in columns)
    )
    found = connection.execute(query.limit(page.limit + 1)).all()
    if len(found) <= page.limit:
        return found, None
    last = found[page.limit - 1]._mapping
    return found[: page.limit], write_cursor([last[key.name] for key in keys])


def count_runs(connection: sql.Connection, wanted: RunsWanted, silent_after: timedelta) -> int:
    """How many there are; no more than `MOST_COUNTED` are counted."""
    some = sql.select(_C.run_id).select_from(runs.outerjoin(incidents, open_of_row()))
    some = some.where(*_wanted(wanted, silent_after)).limit(MOST_COUNTED)
    return connection.scalar(sql.select(sql.func.count()).select_from(some.subquery())) or 0


def list_runs_by_attention(
    connection: sql.Connection, wanted: RunsWanted, limit: int, silent_after: timedelta
) -> Sequence[Row]:
    """The runs that need somebody first: those with an open incident, then those that have not
    ended, the newest first and the projects in turn; then those that ended, the newest first."""
    spiked, ended = runs.c.open_incident.is_not(None), runs.c.state == ENDED
    newest = (runs.c.created_at.desc(), runs.c.run_id)
    turn = sql.func.row_number().over(partition_by=(runs.c.project, spiked), order_by=newest)
    some = shown_runs(silent_after).where(*_wanted(wanted, silent_after))
    going_on = some.where(spiked | ~ended).order_by(sql.not_(spiked), turn, *newest).limit(limit)
    found = connection.execute(going_on).all()
    over = some.where(ended, ~spiked).order_by(*newest).limit(limit - len(found))
    return [*found, *connection.execute(over)]


def _wanted(wanted: RunsWanted, silent_after: timedelta) -> list[sql.ColumnElement[bool]]:
    archived = runs.c.archived_at
    conditions: list[sql.ColumnElement[bool]] = [
        archived.is_not(None) if wanted.archived else archived.is_(None),
        *map(has_tag, wanted.tags),
    ]
    if wanted.project is not None:
        conditions.append(runs.c.project == wanted.project)
    if wanted.state is not None:
        conditions.append(_state(silent_after) == wanted.state)
    if wanted.search:
        full = runs.c.project + "/" + runs.c.name
        conditions.append(full.icontains(wanted.search, autoescape=True))
    if wanted.open_kind == ANY:
        conditions.append(runs.c.open_incident.is_not(None))
    elif wanted.open_kind is not None:
        conditions.append(incidents.c.kind == wanted.open_kind)
    return conditions


def _state(silent_after: timedelta) -> sql.ColumnElement[str]:
    """Silence is reckoned here: it must show even where no ticker runs."""
    quiet = runs.c.last_message_at < sql.func.now() - silent_after
    fell_silent = sql.and_(runs.c.state == LIVE, quiet)
    return sql.case((fell_silent, SILENT), else_=runs.c.state)
