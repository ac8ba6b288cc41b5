"""Channels that do not answer hold up nobody else, and Prometheus hears of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from spikeguard_core.notification.delivery import GIVE_UP_AFTER
from spikeguard_server.metrics import Fleet, Metrics
from spikeguard_server.notify import wire
from spikeguard_server.notify.notifier import (
    OF_A_PROJECT,
    Notifier,
    look,
)
from spikeguard_server.notify.telling import deliver, send_test
from spikeguard_server.store.reads.fleet import read_fleet
from tests.server.notify.conftest import Desk
from tests.server.notify.listener import Listener, listening
from tests.server.store.jobs import execute, rows, value

MANY = 210  # conversations of one channel, more than are handed out at a time
FEW = 30  # more than one channel is handed at a time


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """What channels lead to that do not answer, for as long as a test may take."""
    monkeypatch.setattr(wire, "ANSWER_S", 3_600.0)
    with listening() as found:
        found.free.clear()
        yield found


@contextmanager
def notifying(desk: Desk, hanging: Listener | None = None) -> Iterator[Notifier]:
    notifier = Notifier(replace(desk.settings, notify_every_s=0.02), desk.engine)
    notifier.start()
    try:
        yield notifier
    finally:
        if hanging is not None:
            hanging.free.set()
        notifier.stop()


def test_a_notifier_stops_however_many_channels_hang(desk: Desk, dead: Listener) -> None:
    for number in range(OF_A_PROJECT):
        desk.webhook(dead, f"dead-{number}")
    with notifying(desk, dead) as notifier:
        dead.wait_for(lambda told: len(told) == OF_A_PROJECT)
        notifier.stop()
        assert not notifier.alive


def tell_much(desk: Desk, channel: str, many: int) -> None:
    """So many more incidents of which the channel was to be told an hour ago."""
    execute(
        desk.engine,
        f"""insert into incidents select (jsonb_populate_record(i, jsonb_build_object(
        'number', 1000 + n, 'state', 'closed', 'outcome', 'level_accepted'))).*
        from incidents i, generate_series(1, {many}) n""",
        f"""insert into conversations select (jsonb_populate_record(c, jsonb_build_object(
        'incident', 1000 + n, 'due_at', now() - interval '1 hour'))).*
        from conversations c, generate_series(1, {many}) n where channel = '{channel}'""",
    )


def test_a_channel_with_much_to_tell_takes_no_other_ones_turn(
    desk: Desk, dead: Listener, listener: Listener
) -> None:
    desk.webhook(dead, "dead")
    desk.webhook(listener, "pager")
    assert len(look(desk.engine)) == 2
    tell_much(desk, "dead", MANY)
    assert {key.channel for _, key in look(desk.engine)} == {"dead", "pager"}
    with notifying(desk, dead):
        listener.wait_for(bool)


def test_what_a_channel_does_not_answer_once_it_is_not_asked_for_everything_else_too(
    desk: Desk, dead: Listener
) -> None:
    desk.webhook(dead, "dead")
    look(desk.engine)
    tell_much(desk, "dead", FEW)
    dead.free.set()
    dead.answers = [(503, {})] * 3
    desk.tell()
    desk.tell()
    assert len(dead.received) == 1
    waits = "select failures, due_at > now(), count(*) from conversations group by 1, 2 order by 1"
    assert rows(desk.engine, waits) == [(0, True, FEW), (1, True, 1)]
    desk.later(6)
    desk.tell()
    assert len(dead.received) == 2
    longer = waits.replace("now()", "now() + interval '6 seconds'")  # and longer, as one
    assert rows(desk.engine, longer) == [(0, True, FEW - 1), (1, True, 2)]
    dead.answers.clear()
    desk.later(11)
    while desk.tell():
        pass
    assert len(dead.received) == 3 + FEW


def test_a_message_that_fails_for_what_it_says_keeps_no_other_of_its_channel_waiting(
    desk: Desk, listener: Listener
) -> None:
    """Though it was due first, and is tried until it is given up."""
    desk.webhook(listener, "pager")
    listener.bad = '"spikeguard/default/gpt#1"'
    look(desk.engine)
    tell_much(desk, "pager", 3)
    execute(
        desk.engine,
        "update conversations set due_at = now() - interval '2 hours' where incident = 1",
    )
    for _ in range(2):
        desk.later(6)
        desk.tell()
    sent = "select count(*) from deliveries where result = 'sent'"
    assert value(desk.engine, sent) == 3
    for _ in range(12):
        desk.later(1000)
        desk.tell()
    assert desk.results().count("failed") == GIVE_UP_AFTER - 1
    assert desk.results().count("given_up") == 1


if TYPE_CHECKING:
    from tests.server.notify.conftest import Desk
    from tests.server.notify.listener import Listener


def fleet(desk: Desk) -> Fleet:
    with desk.engine.connect() as connection:
        return read_fleet(connection)


def told(desk: Desk, metrics: Metrics) -> None:
    for _, key in look(desk.engine):
        deliver(desk.engine, key, desk.settings, metrics.count_notice)


def counted(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["kind"], sample.labels["result"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "spikeguard_notifications_total" and sample.value
    }


def test_a_message_that_is_given_up_counts_as_failing_until_something_arrives(
    desk: Desk, listener: Listener
) -> None:
    metrics = Metrics(CollectorRegistry())
    desk.webhook(listener)
    listener.answers.append((401, {}))
    told(desk, metrics)
    assert counted(metrics) == {("webhook", "given_up"): 1}
    desk.later(100_000)
    told(desk, metrics)
    assert fleet(desk).failing == {"webhook": 1}
    send_test(desk.engine, desk.settings, "default", "oncall", "Ada")
    assert fleet(desk).failing == {}
