"""How many runs a token and a project began within a day, for their quotas.

Invariants: one row a run, in a reference table, so that counting them reaches no run's shard and
locks nobody. Runs that begin at the same moment may each be the last one that fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_server.errors import RunQuota
from spikeguard_server.settings import Settings
from spikeguard_server.store.clock import database_now
from spikeguard_server.store.tables.run_counts import new_runs

WINDOW: Final = timedelta(hours=24)
LONGEST_WAIT_S: Final = 60  # somebody may archive runs or raise the limit meanwhile
_N = new_runs.c


@dataclass(frozen=True, slots=True)
class _Quota:
    """One limit, and the runs that count against it."""

    whose: str
    limit: int
    setting: str
    mine: sql.ColumnElement[bool]


def check_quota(
    connection: sql.Connection, settings: Settings, project: str, token: int | None, now: datetime
) -> None:
    """Raise `RunQuota` where `token` or `project` began as many runs lately as it may."""
    quotas = [
        _Quota(
            f"Project {project}", settings.new_runs_per_project,
            "SPIKEGUARD_NEW_RUNS_PER_PROJECT", _N.project == project,
        )
    ]  # fmt: skip
    if token is not None:
        quotas.append(
            _Quota(
                f"Token {token}", settings.new_runs_per_token,
                "SPIKEGUARD_NEW_RUNS_PER_TOKEN", _N.token_id == token,
            )
        )  # fmt: skip
    for quota in quotas:
        _check(connection, quota, now)


def _check(connection: sql.Connection, quota: _Quota, now: datetime) -> None:
    lately = sql.select(sql.func.count(), sql.func.min(_N.began_at)).where(
        quota.mine, _N.began_at > now - WINDOW
    )
    count, oldest = connection.execute(lately).one()
    if count < quota.limit:
        return
    wait_s = math.ceil((oldest + WINDOW - now).total_seconds())
    raise RunQuota(
        quota.whose, quota.limit, quota.setting,
        retry_after_s=min(max(1, wait_s), LONGEST_WAIT_S),
    )  # fmt: skip


def note_new_run(
    connection: sql.Connection, run_id: UUID, project: str, token: int | None, now: datetime
) -> None:
    """Count a run that begins."""
    row = {"project": project, "token_id": token, "began_at": now}
    connection.execute(
        insert(new_runs)
        .values(run_id=run_id, **row)
        .on_conflict_do_update(index_elements=["run_id"], set_=row)
    )


def forget_new_run(connection: sql.Connection, run_id: UUID) -> None:
    """Count a run no longer."""
    connection.execute(sql.delete(new_runs).where(_N.run_id == run_id))


def drop_counted(connection: sql.Connection) -> None:
    """Delete rows that no quota counts any more."""
    before = database_now(connection) - WINDOW
    connection.execute(sql.delete(new_runs).where(_N.began_at <= before))
