"""A database that stops taking writes, as after a failover, and what an error of it may tell."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
import sqlalchemy as sql

from spikeguard.uplink.transport import Advice, Transport
from spikeguard_protocol import Message, Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.settings import Settings
from tests.agent.wire import await_that
from tests.server.face.serving import serving
from tests.server.store.jobs import Job, columns, healthy, rows

KEY = "R0SECRETSECRET1SECRETSECRET2SECR"


@pytest.fixture
def url(database_url: str) -> Iterator[str]:
    """A server on a database of the test's own."""
    with serving(Settings(database_url=database_url)) as found:
        yield found


def bearer(engine: sql.Engine, role: Role) -> str:
    with engine.begin() as connection:
        return issue_token(connection, Grant(role), "test")[0]


def execute(postgres: str, *statements: str) -> None:
    """As an operator, outside the database that they are about."""
    engine = sql.create_engine(postgres, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(sql.text(statement))
    engine.dispose()


def demote(postgres: str, database: str) -> None:
    """Let every session end; those that begin now cannot write."""
    execute(
        postgres,
        f"alter database {database} set default_transaction_read_only = on",
        f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{database}'",
    )


def promote(postgres: str, database: str) -> None:
    """Sessions that begin now can write; those that there are still cannot."""
    execute(postgres, f"alter database {database} reset default_transaction_read_only")


def test_what_comes_while_the_database_takes_no_writes_is_kept_by_agents_and_stored_after(
    postgres: str, engine: sql.Engine, url: str
) -> None:
    database = engine.url.database
    assert database is not None
    job, line = Job(engine), Transport(url, bearer(engine, Role.AGENT), 10.0)
    assert line.send(job.message(*job.beginning())).advice is Advice.STORED
    demote(postgres, database)
    waiting = [job.message(columns([step], healthy)) for step in (1, 2, 3)]
    await_that(lambda: "takes no writes" in httpx.get(f"{url}/readyz", timeout=120).text)
    assert httpx.get(f"{url}/readyz", timeout=120).status_code == 503
    for _ in range(6):  # as often as there are sessions, or more
        refused = line.send(waiting[0])
        assert (refused.advice, refused.reason[:3]) == (Advice.BACK_OFF, "503"), refused
        assert refused.retry_after_s
    promote(postgres, database)
    for message in waiting:
        await_that(partial(stored, line, message))
    await_that(lambda: httpx.get(f"{url}/readyz", timeout=120).status_code == 200)
    line.close()
    engine.dispose()  # sessions that were ended while nobody used them
    assert rows(engine, "select last_sequence from attempts") == [(4,)]
    assert rows(engine, "select count(*) from samples") == [(3,)]


def stored(line: Transport, message: Message) -> bool:
    """Whether one more try stored it; it is refused for no other reason."""
    verdict = line.send(message)
    assert verdict.advice is Advice.STORED or "takes no writes" in verdict.reason, verdict
    return verdict.advice is Advice.STORED


def test_a_failure_of_the_database_puts_no_key_of_a_channel_into_the_log(
    engine: sql.Engine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with engine.begin() as connection:
        connection.execute(sql.text(_REFUSES))
    body = {"kind": "pagerduty", "target": {"routing_key": KEY}}
    headers = {"Authorization": f"Bearer {bearer(engine, Role.ADMIN)}"}
    with caplog.at_level(logging.WARNING):
        answer = httpx.put(
            f"{url}/v1/channels/default/oncall", json=body, headers=headers, timeout=120
        )
    assert answer.status_code == 500
    assert "INSERT INTO channels" in caplog.text
    assert KEY[:8] not in caplog.text


_REFUSES = """
    create function refuse() returns trigger language plpgsql as
        $$ begin raise exception 'there is no room'; end $$;
    create trigger refuse before insert on channels execute function refuse();
"""
