"""Channels that do not answer hold up nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from spikeguard_core.notification.delivery import GIVE_UP_AFTER
from spikeguard_server.notify import wire
from spikeguard_server.notify.notifier import (
    OF_A_PROJECT,
    Notifier,
    look,
)
from tests.server.notify.conftest import Desk
from tests.server.notify.listener import Listener, listening
from tests.server.store.jobs import execute, value

MANY = 210  # conversations of one channel, more than are handed out at a time


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
