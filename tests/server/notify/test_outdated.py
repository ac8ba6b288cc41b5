"""What was told long ago goes once an operator says so; what waits, and the audit, stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sql

from spikeguard_protocol import RunId
from spikeguard_server.ingest.decisions import approve
from spikeguard_server.jobs.housekeeping import forget, tidy
from spikeguard_server.settings import Settings
from spikeguard_server.store.links import make_link
from spikeguard_server.store.tables.core import FLEET, run_key
from tests.server.store.jobs import execute, rows, spiking, value

if TYPE_CHECKING:
    from tests.server.notify.conftest import Desk
    from tests.server.notify.listener import Listener

TABLES = ("deliveries", "conversations", "approval_links")
DAYS = 30


def counts(engine: sql.Engine) -> list[int]:
    return [value(engine, f"select count(*) from {table}") for table in TABLES]


def age(engine: sql.Engine, days: int) -> None:
    """Let everything that was told so far, and its incident, be so many days older."""
    ago = f"- interval '{days} days'"
    with engine.begin() as connection:
        for statement in (
            f"update deliveries set at = at {ago}",
            f"update conversations set told_at = told_at {ago}",
            f"update approval_links set expires_at = expires_at {ago}",
            f"update incidents set closed_at = closed_at {ago}",
        ):
            connection.execute(sql.text(statement))


def told(desk: Desk, listener: Listener) -> None:
    """A conversation about an incident that is open, and a link to decide it."""
    desk.webhook(listener)
    assert desk.tell() == 1
    with desk.engine.begin() as connection:
        make_link(
            connection, run_key(RunId("default", "gpt")), incident=1,
            command=desk.command.number, revision=desk.revision, channel="oncall", person=None,
            expires_at=datetime.now(UTC) + timedelta(hours=1),
        )  # fmt: skip


def close(desk: Desk) -> None:
    """A person says yes, the run does it, and the incident closes; everybody is told."""
    command = desk.command
    approve(desk.engine, command, desk.revision, "Ada")
    desk.job.train(561, 570, spiking(501))
    desk.job.roll_back(str(command), 300, at_step=570, position=300)
    desk.job.train(301, 700, segment=1, shift=20, batch=50)
    desk.later(121)
    desk.tell()
    assert value(desk.engine, "select state from incidents") == "closed"


def test_nothing_goes_unless_an_operator_says_so(desk: Desk, listener: Listener) -> None:
    told(desk, listener)
    age(desk.engine, 4000)
    before = counts(desk.engine)
    tidy(desk.engine, Settings())
    assert counts(desk.engine) == before


def test_what_is_over_and_old_goes_and_the_audit_says_so(desk: Desk, listener: Listener) -> None:
    told(desk, listener)
    close(desk)
    told_of = counts(desk.engine)
    assert told_of[1:] == [1, 1]
    forget(desk.engine, DAYS)
    assert counts(desk.engine) == told_of  # none of it is old
    age(desk.engine, DAYS + 2)
    written = value(desk.engine, f"select count(*) from audit where run_id <> '{FLEET}'")
    tidy(desk.engine, Settings(keep_deliveries_days=DAYS))
    assert counts(desk.engine) == [0, 0, 0]
    said = rows(desk.engine, f"select action, subject from audit where run_id = '{FLEET}'")
    assert said[-1] == (
        "drop",
        f"{told_of[0]} deliveries, 1 approval links, 1 conversations",
    )
    assert value(desk.engine, f"select count(*) from audit where run_id <> '{FLEET}'") == written
    assert value(desk.engine, "select decided_by from commands where verb = 'rollback'") == "Ada"
    forget(desk.engine, DAYS)
    assert rows(desk.engine, f"select action, subject from audit where run_id = '{FLEET}'") == said


def test_a_conversation_that_is_not_over_stays_however_old_it_is(
    desk: Desk, listener: Listener
) -> None:
    """Its key and its count go on, so that the pager sees one alert."""
    told(desk, listener)
    age(desk.engine, 4000)
    forget(desk.engine, DAYS)
    assert counts(desk.engine) == [0, 1, 0]
    close(desk)
    assert [request.json()["sequence"] for request in listener.received] == [1, 2]


def test_sessions_that_ended_go_and_tokens_stay(desk: Desk) -> None:
    execute(
        desk.engine,
        "insert into tokens (hash, role, created_at, created_by, expires_at, parent) "
        "values ('a', 'viewer', now(), 'x', now() - interval '40 days', null), "
        "('b', 'viewer', now(), 'x', now() - interval '40 days', 1), "
        "('c', 'viewer', now(), 'x', now() - interval '20 days', 1), "
        "('d', 'viewer', now(), 'x', null, 1)",
    )
    forget(desk.engine, DAYS)
    left = rows(desk.engine, "select convert_from(hash, 'UTF8') from tokens order by id")
    assert left == [("a",), ("c",), ("d",)]
