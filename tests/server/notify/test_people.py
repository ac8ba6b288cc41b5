"""Escalation, quiet hours and the kill switch, on a real database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spikeguard_core.setting_fields import SettingError
from spikeguard_protocol import IncidentId, RunId
from spikeguard_server.access.grants import put_policy, throw_switch
from spikeguard_server.errors import Conflict, WrongState
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.ingest.decisions import decide
from spikeguard_server.ingest.responses import acknowledge, take_back_acknowledgement
from spikeguard_server.store import audit
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.tables.core import run_key
from tests.server.notify.conftest import Desk
from tests.server.notify.listener import Listener
from tests.server.store.jobs import rows, spiking, value
from tests.server.store.test_commands import ONSET
from tests.server.store.test_housekeeping import pass_time

GPT = IncidentId(RunId("default", "gpt"), 1)
ADA = Actor("Ada", ActorKind.PERSON)


def policy(desk: Desk, **plain: Any) -> None:
    with desk.engine.begin() as connection:
        put_policy(connection, "default", plain, "Ada")


def halt(desk: Desk, *, halted: bool = True) -> None:
    with desk.engine.begin() as connection:
        throw_switch(connection, "default", halted=halted, reason="we look first", by="Ada")


def spike(desk: Desk) -> None:
    """The same spike as ever, under whatever policy is in force."""
    desk.job.start()
    desk.job.train(1, 400, batch=100)
    desk.job.train(401, 560, spiking(ONSET), batch=40)


def acknowledged(desk: Desk) -> None:
    with desk.engine.begin() as connection:
        acknowledge(connection, GPT, ADA)


def told(desk: Desk) -> list[str]:
    """The channels that were told of the incident, message by message."""
    found = "select channel from deliveries where result = 'sent' and incident = 1 order by id"
    return [str(row[0]) for row in rows(desk.engine, found)]


def test_nobody_answers_and_the_next_level_is_told(calm: Desk, listener: Listener) -> None:
    calm.webhook(listener, "first")
    calm.webhook(listener, "second", level=1)
    calm.webhook(listener, "third", level=2)
    policy(calm, escalation=[10, 30])
    spike(calm)
    calm.tell()
    assert told(calm) == ["first"]
    assert not pass_time(calm.engine, 0)
    assert pass_time(calm.engine, 20)
    calm.tell()
    assert told(calm) == ["first", "first", "second"]
    about = [r.json() for r in listener.received if "escalated" in r.json()["topics"]]
    assert all("Nobody has answered; escalation 1" in entry["text"] for entry in about)
    assert all("nobody has answered, decide: " in entry["title"] for entry in about)
    assert pass_time(calm.engine, 40)
    calm.tell()
    assert told(calm)[-1] == "third"
    assert not pass_time(calm.engine, 50)
    entries = rows(calm.engine, "select before, after from audit where action = 'escalate'")
    assert entries == [("0", "1"), ("1", "2")]


def test_an_answer_ends_the_escalation(calm: Desk, listener: Listener) -> None:
    calm.webhook(listener, "second", level=1)
    policy(calm, escalation=[10])
    spike(calm)
    decide(calm.engine, calm.command, "approve", calm.revision, "Ada")
    pass_time(calm.engine, 20)
    assert value(calm.engine, "select count(*) from audit where action = 'escalate'") == 0
    calm.tell()
    assert told(calm) == []


def test_who_acknowledges_is_not_told_again_until_that_is_taken_back(
    calm: Desk, listener: Listener
) -> None:
    """The channel hears who has it; an escalation waits, and goes on where it stood."""
    calm.webhook(listener, "first", cooldown_s=0)
    calm.webhook(listener, "asked", about=["decisions"], cooldown_s=0)
    calm.webhook(listener, "second", level=1)
    policy(calm, escalation=[10])
    spike(calm)
    calm.tell()
    acknowledged(calm)
    calm.tell()
    assert sorted(told(calm)) == ["asked", "asked", "first", "first"]
    said = listener.received[-1].json()
    assert said["title"].startswith("gpt#1: acknowledged by Ada")
    assert (said["urgency"], said["incident"]["acknowledged_by"]) == ("info", "Ada")
    assert "Acknowledged by Ada" in said["text"]
    with calm.engine.begin() as connection:
        audit.append(
            connection, run_key(GPT.run), actor="policy", action="revise", subject="gpt#1",
            incident=1,
        )  # fmt: skip
    assert not pass_time(calm.engine, 20)
    calm.tell()
    assert sorted(told(calm)) == ["asked", "asked", "first", "first"]
    reason = "acknowledged by Ada, who need not be told again"
    assert ("first", "dropped", reason) in calm.log()
    with calm.engine.begin() as connection:
        take_back_acknowledgement(connection, GPT, ADA)
    assert pass_time(calm.engine, 20)
    calm.tell()
    assert sorted(told(calm)[4:]) == ["asked", "first", "second"]


def test_quiet_hours_hold_what_can_wait_until_they_end(desk: Desk, listener: Listener) -> None:
    now = datetime.now(UTC)
    begin, end = now - timedelta(hours=1), now + timedelta(hours=2)
    quiet = {"begin": f"{begin:%H:%M}", "end": f"{end:%H:%M}", "timezone": "UTC"}
    policy(desk, quiet=quiet)
    with pytest.raises(SettingError, match="time zone"):
        policy(desk, quiet={**quiet, "timezone": "../etc/passwd"})
    desk.webhook(listener)
    desk.tell()
    [(_, result, reason)] = desk.log()
    assert result == "held"
    assert f"quiet hours until {end:%H:%M} UTC" in reason
    wait_s = value(desk.engine, "select extract(epoch from due_at - now()) from conversations")
    assert 7000 < float(wait_s) <= 7260
    policy(desk, quiet={**quiet, "urgent": ["lingering", "divergent"]})
    desk.later(8000)
    desk.tell()
    assert len(listener.received) == 1


def test_the_kill_switch_stops_yes_and_delivery_and_takes_back_what_was_not_delivered(
    desk: Desk,
) -> None:
    command, revision = desk.command, desk.revision
    decide(desk.engine, command, "approve", revision, "Ada")
    halt(desk)
    ack = desk.job.train(561, 570, spiking(ONSET))
    assert ack.orders == ()
    assert desk.job.train(571, 580, spiking(ONSET)).orders == ()
    assert rows(desk.engine, "select state from commands where verb = 'rollback'") == [
        ("halted",),
        ("proposed",),
    ]
    fresh = rows(desk.engine, "select number, revision from commands order by number desc limit 1")
    [(number, revision)] = fresh
    with pytest.raises(WrongState, match="kill switch"):
        decide(desk.engine, command.__class__(command.incident, number), "approve", revision, "Ada")
    policy(desk, price_per_hour=98.0)  # an import does not lift it
    with desk.engine.connect() as connection:
        assert policy_of(connection, "default").halted
    with pytest.raises(Conflict, match="already"):
        halt(desk)
    halt(desk, halted=False)
    decide(desk.engine, command.__class__(command.incident, number), "approve", revision, "Ada")
    assert desk.job.train(581, 590, spiking(ONSET)).orders != ()
    actions = "select action, reason from audit where action like 'policy.%' order by number"
    assert [row[0] for row in rows(desk.engine, actions)] == [
        "policy.halted",
        "policy.written",
        "policy.resumed",
    ]
