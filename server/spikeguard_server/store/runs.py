"""Runs, their attempts and segments, as they stand in the database.

Whoever changes anything of a run holds the lock that `lock_run` takes, and gives it back by ending
the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.diagnosis.lineage import Lineage, lineage_of
from spikeguard_protocol import (
    AttemptStarted,
    RunId,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
)
from spikeguard_server.errors import NotFound
from spikeguard_server.store.engine import Prepared, Statement, row_as
from spikeguard_server.store.tables import core as tables

_A, _G, _R = tables.attempts.c, tables.segments.c, tables.runs.c
LIVE, SILENT, ENDED = "live", "silent", "ended"


@dataclass(slots=True)
class RunRow:
    """A locked run. Changed in place, written back once by `update_of_both`."""

    run_id: UUID
    project: str
    name: str
    state: str
    attempts: int
    incidents: int
    open_incident: int | None
    last_message_at: datetime
    current_attempt: int | None
    current_segment: int | None
    last_step: int | None
    position: int | None
    last_loss: float | None
    last_grad_norm: float | None
    last_z: float | None  # deviations of `last_loss` above its trend
    own_z: str | None  # the same of the user's own signals, as JSON, by name
    own_names: str | None  # of all of these that came so far, as JSON
    tokens_per_second: float | None
    followed_to: int | None  # the last step that a closed incident still waits for

    @property
    def id(self) -> RunId:
        return RunId(self.project, self.name)


@dataclass(slots=True)
class AttemptRow:
    """One start of the run's processes. Changed in place, written back by `update_of_both`."""

    number: int
    id: str
    started_at: datetime
    last_message_at: datetime
    alive_at: datetime
    ended_at: datetime | None
    end_reason: str | None
    lost: bool
    last_sequence: int
    capabilities: Sequence[str]
    tokens_per_step: int | None
    dropped_samples: int

    @property
    def name(self) -> str:
        """As the audit calls it."""
        return f"attempt {self.number}"


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """An unbroken stretch of steps."""

    id: SegmentId
    attempt: int  # number of the attempt within the run
    reason: SegmentReason
    parent: SegmentPoint | None
    position: int
    first_step: int | None
    last_step: int | None
    command: str | None  # the id of the one that opened it


@dataclass(frozen=True, slots=True)
class Place:
    """A step of a segment, by the numbers of the database."""

    attempt: int
    segment: int
    step: int


def _assigned(columns: Iterable[str]) -> str:
    return ", ".join(f"{name} = %s" for name in columns)


_RUN = [tables.runs.c[name] for name in RunRow.__dataclass_fields__]
_ATTEMPT = [tables.attempts.c[name] for name in AttemptRow.__dataclass_fields__]
_READ = sql.select(*_RUN).where(_R.run_id == sql.bindparam("key"))
_LOCK = _READ.with_for_update(key_share=True)


def lock_run(connection: sql.Connection, run_id: UUID) -> RunRow | None:
    """Lock the run until the transaction ends; None when there is none."""
    row = connection.execute(_LOCK, {"key": run_id}).one_or_none()
    return None if row is None else RunRow(*row)


def run_row(connection: sql.Connection, run_id: UUID) -> RunRow | None:
    """The run as it is now, for whoever changes nothing of it; None when there is none."""
    row = connection.execute(_READ, {"key": run_id}).one_or_none()
    return None if row is None else RunRow(*row)


def run_named(connection: sql.Connection, run: RunId, *, locked: bool = False) -> RunRow:
    """A run that exists, `locked` until the transaction ends; raise `NotFound` otherwise."""
    query = _LOCK if locked else _READ
    row = connection.execute(query, {"key": tables.run_key(run)}).one_or_none()
    if row is None:
        raise NotFound(f"There is no run {run}", "`spikeguard runs` lists those there are")
    return RunRow(*row)


def keep_run(connection: sql.Connection, run_id: UUID) -> bool:
    """Whether there is the run, which nobody deletes until the transaction ends: for whoever writes
    of it without its lock, before all else. Waits for a deletion alone."""
    query = sql.select(_R.run_id).where(_R.run_id == run_id)
    kept = query.with_for_update(read=True, key_share=True)
    return connection.execute(kept).one_or_none() is not None


def make_run(
    connection: sql.Connection, run: RunId, now: datetime, attempts: int, incidents: int
) -> None:
    """Make the run, unless another replica is faster, which is waited for. `attempts` and
    `incidents` that a deleted run of its name had: it counts on from there."""
    connection.execute(
        insert(tables.projects).values(name=run.project, created_at=now).on_conflict_do_nothing()
    )
    connection.execute(
        insert(tables.runs)
        .values(
            run_id=tables.run_key(run), project=run.project, name=run.name, created_at=now,
            last_message_at=now, state=LIVE, attempts=attempts, incidents=incidents,
        )
        .on_conflict_do_nothing()
    )  # fmt: skip


def attempts_of(connection: sql.Connection, run_id: UUID) -> list[AttemptRow]:
    """Every attempt, in the order of registration."""
    found = sql.select(*_ATTEMPT).where(_A.run_id == run_id)
    rows = connection.execute(found.order_by(_A.number))
    return [AttemptRow(*row) for row in rows]


def find_attempt(connection: sql.Connection, run_id: UUID, number: int | None) -> AttemptRow | None:
    """One attempt; None if there is none of this number."""
    mine = sql.select(*_ATTEMPT).where(_A.run_id == run_id, _A.number == number)
    row = connection.execute(mine).one_or_none()
    return None if row is None else AttemptRow(*row)


def attempts_named(
    connection: sql.Connection, run_id: UUID, numbers: Collection[int]
) -> Sequence[sql.Row[Any]]:
    """The attempts of these numbers with all that they said, oldest first."""
    mine = sql.select(tables.attempts).where(_A.run_id == run_id, _A.number.in_(numbers))
    return connection.execute(mine.order_by(_A.number)).all()


def training_attempt(connection: sql.Connection, run: RunRow) -> AttemptRow | None:
    """The attempt that trains now; None where none does."""
    found = find_attempt(connection, run.run_id, run.current_attempt)
    over = found is None or found.ended_at is not None or found.lost
    return None if over else found


def make_attempt(
    connection: sql.Connection, run: RunRow, attempt: str, now: datetime, started_at: datetime
) -> AttemptRow:
    """Register an attempt under the run's next number."""
    run.attempts += 1
    made = sql.insert(tables.attempts).values(
        run_id=run.run_id, number=run.attempts, id=attempt, started_at=started_at,
        last_message_at=now, alive_at=started_at,
    )  # fmt: skip
    return AttemptRow(*connection.execute(made.returning(*_ATTEMPT)).one())


def introduce_attempt(
    connection: sql.Connection, run_id: UUID, attempt: AttemptRow, started: AttemptStarted
) -> None:
    """Keep what an attempt says of itself."""
    tokens = started.tokens_per_step or 0  # nothing bounds it on the wire
    attempt.tokens_per_step = tokens if 0 < tokens < 2**53 else None
    attempt.capabilities = [*started.capabilities]
    which = (_A.run_id == run_id) & (_A.number == attempt.number)
    said = {
        "capabilities": attempt.capabilities, "tokens_per_step": attempt.tokens_per_step,
        "world_size": started.world_size, "agent_version": started.agent_version[:200],
        "settings": dict(started.settings), "links": dict(started.links),
        **_point_columns(started.parent),
    }  # fmt: skip
    connection.execute(sql.update(tables.attempts).where(which).values(said))


def attempt_settings(connection: sql.Connection, run_id: UUID, attempt: int) -> dict[str, str]:
    """What an attempt said of itself, as text."""
    found = _SETTINGS.rows(connection, key=run_id, of=attempt)
    return dict(found[0].settings) if found else {}


_SETTINGS = Prepared(
    sql.select(_A.settings)
    .where(_A.run_id == sql.bindparam("key"))
    .where(_A.number == sql.bindparam("of"))
)  # fmt: skip


_SAVED_OF_RUN = [
    name for name in RunRow.__dataclass_fields__ if name not in {"run_id", "project", "name"}
]
_SAVED_OF_ATTEMPT = (
    "last_message_at", "alive_at", "ended_at", "end_reason", "lost", "last_sequence",
    "dropped_samples",
)  # fmt: skip
_values_of_run = attrgetter(*_SAVED_OF_RUN, "run_id")
_values_of_attempt = attrgetter(*_SAVED_OF_ATTEMPT, "number")
_SAVE_BOTH = f"""
WITH attempt AS (
    UPDATE attempts SET {_assigned(_SAVED_OF_ATTEMPT)} WHERE number = %s AND run_id = %s
)
UPDATE runs SET {_assigned(_SAVED_OF_RUN)} WHERE run_id = %s
"""


def update_of_both(run: RunRow, attempt: AttemptRow) -> Statement:
    """The statement that writes what stands in `run` and its `attempt` now."""
    return _SAVE_BOTH, (*_values_of_attempt(attempt), run.run_id, *_values_of_run(run))


def live_attempts(
    attempts: Sequence[AttemptRow], run: RunRow, now: datetime, silent_after: timedelta
) -> list[AttemptRow]:
    """Those of the run's `attempts` whose processes are thought to run now.

    A job killed and started again is not two: an attempt that made nothing since the newest one
    started is over.
    """
    current = next((each for each in attempts if each.number == run.current_attempt), None)
    return [
        each
        for each in attempts
        if each.ended_at is None and not each.lost and each.alive_at > now - silent_after
        and (current is None or each is current or each.alive_at > current.started_at)
    ]  # fmt: skip


def open_segment(
    connection: sql.Connection, run_id: UUID, attempt: int, started: SegmentStarted
) -> bool:
    """Write the segment; False when it was there already."""
    done = connection.execute(
        insert(tables.segments)
        .values(
            run_id=run_id, attempt=attempt, segment=started.segment, reason=started.reason.value,
            **_point_columns(started.parent), position=started.position,
            command=started.command and started.command[:200],
        )
        .on_conflict_do_nothing()
        .returning(tables.segments.c.segment)
    )  # fmt: skip
    return done.one_or_none() is not None


def segments_of(
    connection: sql.Connection,
    run_id: UUID,
    *,
    places: Collection[tuple[int, int]] | None = None,
    newest: int | None = None,
) -> list[SegmentRow]:
    """The run's tree of history, oldest first: all, those of these attempts and numbers, or so many
    of the newest."""
    query = _TREE.where(_G.run_id == run_id).limit(newest)
    if places is not None:
        query = query.where(sql.tuple_(_G.attempt, _G.segment).in_(places))
    return [
        row_as(
            SegmentRow, r, id=SegmentId(r.id, r.segment), reason=SegmentReason(r.reason),
            parent=read_point(r),
        )
        for r in reversed(connection.execute(query).all())
    ]  # fmt: skip


_TREE: sql.Select[Any] = (
    sql.select(tables.segments, _A.id)
    .join(tables.attempts, (_A.run_id == _G.run_id) & (_A.number == _G.attempt))
    .order_by(_G.attempt.desc(), _G.segment.desc())
)


def current_line(
    run: RunRow | None, segments: Iterable[SegmentRow], instead: SegmentId | None = None
) -> Lineage:
    """The path from the root to the segment that is trained now, or to `instead` if none is: an
    attempt that has taken over may not have said yet, or never say, what it trains."""
    here = None if run is None else (run.current_attempt, run.current_segment)
    parents, current = dict[SegmentId, SegmentPoint | None](), instead
    for each in segments:
        parents[each.id] = each.parent
        if (each.attempt, each.id.number) == here:
            current = each.id
    return Lineage({}) if current is None else lineage_of(parents, current)


def stretches(
    lineage: Lineage, segments: Iterable[SegmentRow], first: int, last: int
) -> Iterator[tuple[SegmentRow, int, int]]:
    """Of each segment of the line that has any of steps [first, last], the first and last of
    them."""
    for row in segments:
        if (
            row.id in lineage.last_steps
            and row.first_step is not None
            and row.last_step is not None
        ):
            end = lineage.last_steps[row.id]
            stop = min(last, row.last_step if end is None else min(end, row.last_step))
            if max(first, row.first_step) <= stop:
                yield row, max(first, row.first_step), stop


def _point_columns(point: SegmentPoint | None) -> dict[str, Any]:
    if point is None:
        return {"parent_attempt": None, "parent_segment": None, "parent_step": None}
    return {
        "parent_attempt": point.segment.attempt,
        "parent_segment": point.segment.number,
        "parent_step": point.step,
    }


def read_point(row: Any) -> SegmentPoint | None:
    """The parent that a row of attempts or segments names."""
    if row.parent_attempt is None:
        return None
    return SegmentPoint(SegmentId(row.parent_attempt, row.parent_segment), row.parent_step)


def read_tags(connection: sql.Connection, run_id: UUID) -> list[str]:
    """The tags of a run, in order."""
    c = tables.run_tags.c
    query = sql.select(c.tag).where(c.run_id == run_id).order_by(c.tag)
    return list(connection.execute(query).scalars())


def write_tags(connection: sql.Connection, run_id: UUID, add: Collection[str]) -> None:
    """Give a run some tags, one at least."""
    rows = [{"run_id": run_id, "tag": tag} for tag in sorted(add)]
    connection.execute(insert(tables.run_tags).values(rows).on_conflict_do_nothing())
