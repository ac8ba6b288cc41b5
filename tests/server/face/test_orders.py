"""Whoever waits for an order hears of it at once, from any replica, and costs no connection."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sql

from spikeguard.commands.inbox import Inbox
from spikeguard.faults import Faults
from spikeguard.settings import Settings as AgentSettings
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.sender import Sender
from spikeguard.uplink.transport import Transport
from spikeguard_protocol import CommandId, Role, RunId, Verb, encode, verb_of
from spikeguard_server.http.routes import orders
from spikeguard_server.ingest import order_waiters
from spikeguard_server.ingest.decisions import approve
from spikeguard_server.store.order_notifier import notified as heard
from tests.agent.wire import await_that

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live

WAIT_S = 60.0  # a wait that ends by itself says that nothing waits
WAITERS = 20  # more than the pool has connections


@pytest.fixture(autouse=True)
def _long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "LONGEST_S", WAIT_S)


def wait(live: Live, job: Job, wait_s: float = WAIT_S) -> bool:
    """Whether an order waits, or was told of."""
    with live.client(Role.AGENT) as client:
        answer = client.get(f"{job.path}/orders", params={"wait_s": wait_s})
    assert answer.status_code == 200, answer.text
    waiting: bool = answer.json()["waiting"]
    return waiting


def say_yes(live: Live, job: Job) -> None:
    """Approve what is proposed, as another replica would: only the database tells this one."""
    proposal = job.incident()["proposal"]
    approve(live.engine, CommandId.parse(proposal["id"]), proposal["revision"], "Ada")


def looks(
    monkeypatch: pytest.MonkeyPatch, failure: Exception | None = None
) -> tuple[threading.Event, threading.Event]:
    """What tells that a look failed, and that one succeeded after it; the first look
    fails with `failure`. Until it was found again no wait is longer than `UNTOLD_WAIT_S`."""
    failed, found, pending = threading.Event(), threading.Event(), [failure]

    def notified(connection: psycopg.Connection[Any]) -> list[UUID]:
        try:
            if (planned := pending.pop() if pending else None) is not None:
                raise planned
            runs = heard(connection)
        except Exception:
            failed.set()
            raise
        if failed.is_set():
            found.set()
        return runs

    monkeypatch.setattr(order_waiters, "notified", notified)
    return failed, found


def test_an_approval_wakes_everybody_who_waits_and_none_holds_a_connection(
    live: Live, job: Job
) -> None:
    job.spike()
    with ThreadPoolExecutor(WAITERS) as pool:
        waits = [pool.submit(wait, live, job) for _ in range(WAITERS)]
        time.sleep(1.0)
        assert not any(each.done() for each in waits)
        await_that(lambda: live.engine.pool.checkedout() <= 1)  # type: ignore[attr-defined]  # the ticker's
        say_yes(live, job)
        assert all(each.result(120) for each in waits)


def test_an_order_that_waits_already_is_told_of_at_once(live: Live, job: Job) -> None:
    """The approval may have come between the last acknowledgement and the wait. That there is
    something to wait for is said while a decision may come."""
    assert "spikeguard-wait" not in job.post(encode(job.message())).headers
    job.spike()
    assert float(job.post(encode(job.message())).headers["spikeguard-wait"]) > 0
    say_yes(live, job)
    assert wait(live, job, 0.0)


def test_a_wait_in_vain_ends_in_time(live: Live, job: Job) -> None:
    assert not wait(live, job, 0.3)


def test_a_bell_that_is_lost_is_found_again(
    live: Live, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.spike()
    failed, found = looks(monkeypatch)
    with live.engine.begin() as connection:
        ended = connection.execute(
            sql.text(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'spikeguard orders' and datname = current_database()"
            )
        ).all()
    assert ended
    assert failed.wait(120)
    assert found.wait(120)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(wait, live, job)
        time.sleep(0.5)
        say_yes(live, job)
        assert waiter.result(120)


def test_a_bell_that_fails_and_rings_for_no_run_is_heard_on(
    live: Live, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a way that nobody thought of; and anybody who may connect to the database may notify."""
    job.spike()
    failed, found = looks(monkeypatch, ValueError("nobody thought of this"))
    assert failed.wait(120)
    assert found.wait(120)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(wait, live, job)
        time.sleep(0.5)
        with live.engine.begin() as connection:
            connection.execute(sql.text("select pg_notify('spikeguard_commands', 'not a run')"))
        time.sleep(0.5)
        say_yes(live, job)
        assert waiter.result(120)


def test_an_agent_fetches_an_approved_order_without_waiting_for_its_interval(
    live: Live, job: Job
) -> None:
    job.spike()
    slow = AgentSettings(send_interval_s=600.0)
    outbox = Outbox(None, RunId("default", job.run), job.attempt, 2**20)
    outbox._open.sequence = job.sequence + 1
    inbox = Inbox()
    transport = Transport(live.url, live.tokens[Role.AGENT], 60.0)
    sender = Sender(transport, outbox, [], inbox, slow, Faults())
    sender.start()
    try:
        await_that(lambda: sender._listener is not None)
        say_yes(live, job)
        await_that(lambda: Verb.ROLLBACK in {verb_of(d.order.action) for d in inbox.deliveries})
    finally:
        sender.finish(2.0)
