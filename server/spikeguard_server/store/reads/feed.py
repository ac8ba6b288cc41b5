"""Events of runs for followers: those of a run in their order, and none left out across runs.

Law: reads only. A run's entries are numbered without holes and become visible in that order: they
are written under its lock. Across runs only their times order them, and a transaction may commit
after a later one: so a place among them is a time and, for every run with entries shortly before
it, the number that was seen last.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.errors import Unprocessable
from spikeguard_server.store.tables.core import audit, runs
from spikeguard_server.store.tables.run_counts import deleted_runs

WINDOW = timedelta(seconds=75)  # longer than a transaction lives
MOST_RUNS = 100  # that a place names; of others an entry may come a second time
PAGE = 1000
_A, _D = audit.c, deleted_runs.c
_PROJECT = sql.func.coalesce(runs.c.project, _D.project).label("project")
_NAME = sql.func.coalesce(runs.c.name, _D.name)


@dataclass(frozen=True, slots=True)
class Happening:
    """One entry of the audit, with its run's name."""

    run_id: UUID
    project: str
    run: str
    number: int  # within the run, from 1, without holes
    at: datetime
    actor: str
    action: str
    subject: str
    incident: int | None
    command: int | None
    before: str | None
    after: str | None
    reason: str | None
    changes: Sequence[Mapping[str, Any]] = ()  # field, before, after
    actor_kind: str | None = None
    token: int | None = None
    session: int | None = None
    known_by: str | None = None

    @property
    def name(self) -> str:
        """`incident.open`, `command.approve`, `run.silent`, `attempt.lost`, `policy.written`."""
        if self.action.startswith(("attempt.", "policy.")):
            return self.action
        what = "run" if self.incident is None else "incident"
        what = what if self.command is None else "command"
        return f"{what}.{self.action.rpartition('.')[2]}"


@dataclass
class FeedPosition:
    """How far somebody has seen. Grows with every entry that is shown."""

    at: datetime | None = None  # None: nothing yet
    numbers: dict[UUID, tuple[int, datetime]] = field(default_factory=dict)
    _prune_at: int = MOST_RUNS

    def fresh(self, entry: Happening) -> bool:
        """Whether this was not seen yet; from now on it was."""
        number, _ = self.numbers.get(entry.run_id, (0, entry.at))
        if entry.number <= number:
            return False
        self.numbers[entry.run_id] = entry.number, entry.at
        self.at = entry.at if self.at is None else max(self.at, entry.at)
        if len(self.numbers) > self._prune_at:
            self.numbers = self._recent()
            self._prune_at = 2 * len(self.numbers) + MOST_RUNS
        return True

    def copy(self) -> FeedPosition:
        """The same place, to go on from by oneself."""
        return FeedPosition(self.at, dict(self.numbers), self._prune_at)

    def _recent(self) -> dict[UUID, tuple[int, datetime]]:
        """What may still be read a second time."""
        assert self.at is not None
        since = self.at - WINDOW
        return {run: kept for run, kept in self.numbers.items() if kept[1] > since}

    def write(self) -> str:
        """The place as text, for `Last-Event-ID`."""
        if self.at is None:
            return ""
        newest = sorted(self._recent().items(), key=lambda item: item[1][1])[-MOST_RUNS:]
        known = {run.hex: number for run, (number, _) in newest}
        plain = json.dumps([self.at.timestamp(), known], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(plain).decode().rstrip("=")


def read_seen(text: str) -> FeedPosition:
    """The place that `Seen.write` wrote; raise `Unprocessable` for anything else."""
    if not text:
        return FeedPosition()
    try:
        at_s, known = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        at = datetime.fromtimestamp(float(at_s), UTC)
        _ = at - WINDOW  # from there it is read
        numbers = {UUID(hex=run): (int(number), at) for run, number in known.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
        raise Unprocessable(
            "This place was not made by this stream",
            "Send the id of the last event as it came, or none",
            field="last_event_id",
        ) from None
    return FeedPosition(at, numbers)


def happened_since(
    connection: sql.Connection,
    since: datetime,
    *,
    project: str | None = None,
    run_id: UUID | None = None,
    until: datetime | None = None,
    after: tuple[datetime, UUID, int] | None = None,
    limit: int = PAGE,
) -> Sequence[Happening]:
    """At most `limit` entries between `since` and `until`, by time; `after`: the page before."""
    order = (_A.at, _A.run_id, _A.number)
    query = (
        sql.select(
            _A.run_id, _PROJECT, _NAME.label("run"), _A.number, _A.at, _A.actor,
            _A.action, _A.subject, _A.incident, _A.command, _A.before, _A.after, _A.reason,
            _A.changes, _A.actor_kind, _A.token, _A.session, _A.known_by,
        )
        .outerjoin(runs, runs.c.run_id == _A.run_id)
        .outerjoin(deleted_runs, deleted_runs.c.run_id == _A.run_id)
        .where(_A.at > since, _NAME.is_not(None))
        .order_by(*order)
        .limit(limit)
    )  # fmt: skip
    if project is not None:
        query = query.where(_PROJECT.element == project)
    if run_id is not None:
        query = query.where(_A.run_id == run_id)
    if until is not None:
        query = query.where(_A.at < until)
    if after is not None:
        query = query.where(sql.tuple_(*order) > after)
    return [_happening(row._mapping) for row in connection.execute(query)]


def _happening(row: Mapping[Any, Any]) -> Happening:
    return Happening(**dict(row))


def read_now(connection: sql.Connection) -> datetime:
    """The database's clock."""
    now: datetime = connection.execute(sql.select(sql.func.clock_timestamp())).scalar_one()
    return now
