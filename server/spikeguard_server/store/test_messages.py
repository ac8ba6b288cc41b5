"""Uses of a channel's test button, in the delivery log; written before anything is sent.

Law: the row is what a press is claimed by; whoever is killed meanwhile leaves it as it stands, and
`LEASE` later the next may press.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from spikeguard_core.notification.delivery import Result
from spikeguard_core.notification.topics import Topic
from spikeguard_server.store.channels import lock_channels
from spikeguard_server.store.conversations import LEASE
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables.core import FLEET
from spikeguard_server.store.tables.notices import deliveries

UNDER_WAY = "the test is on its way"
_D = deliveries.c


@dataclass(frozen=True, slots=True)
class Pressed:
    """The newest press before this one, if there was any, and how many there were."""

    s_ago: float | None
    under_way: bool
    times: int


def lock_presses(connection: sql.Connection, project: str, channel: str) -> Pressed:
    """How it stands, for this transaction alone: nobody else presses until it ends."""
    lock_channels(connection, project)
    mine = (_D.run_id == FLEET) & (_D.project == project) & (_D.channel == channel)
    ago = sql.extract("epoch", sql.func.clock_timestamp() - _D.at)
    newest = sql.select(ago, _D.result).where(mine).order_by(_D.at.desc(), _D.id.desc()).limit(1)
    times = connection.execute(sql.select(sql.func.count()).where(mine)).scalar_one()
    row = connection.execute(newest).one_or_none()
    if row is None:
        return Pressed(None, False, times)
    s_ago = float(row[0])
    return Pressed(s_ago, row.result == Result.HELD and s_ago < LEASE.total_seconds(), times)


def begin_press(connection: sql.Connection, project: str, channel: str) -> int:
    """Write down that a test is on its way; the number of its row."""
    row: dict[str, Any] = {
        "run_id": FLEET, "at": sql.func.clock_timestamp(), "project": project, "channel": channel,
        "topics": [Topic.TEST.value], "result": Result.HELD.value, "reason": UNDER_WAY,
    }  # fmt: skip
    begun: int = connection.execute(
        sql.insert(deliveries).values(row).returning(_D.id)
    ).scalar_one()
    return begun


def end_press(
    connection: sql.Connection, number: int, result: Result, reason: str, took_ms: float
) -> None:
    """Write down what became of it."""
    connection.execute(
        sql.update(deliveries)
        .where(_D.run_id == FLEET, _D.id == number)
        .values(result=result.value, reason=storable(reason)[:500], took_ms=took_ms)
    )
