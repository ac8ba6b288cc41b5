"""Channels that do not answer, and what only another release can read, hold up nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic

import pytest
import sqlalchemy as sql

from spikeguard_core.notification.channel import channel_from_mapping
from spikeguard_core.notification.delivery import GIVE_UP_AFTER
from spikeguard_server.ingest.decisions import approve
from spikeguard_server.notify.dispatch import UNREADABLE
from spikeguard_server.notify.notifier import (
    LANES,
    OF_A_PROJECT,
    STOP_TIMEOUT_S,
    TROUBLED,
    Notifier,
    look,
)
from spikeguard_server.store.channels import write_channel
from tests.server.notify.conftest import SECRET, Desk
from tests.server.notify.listener import Listener, listening
from tests.server.store.jobs import Job, rows, value

MANY = 210  # conversations of one channel, more than are handed out at a time
PROMPT_S = 8.0  # sooner than a channel that hangs is given up
FEW = 30  # more than one channel is handed at a time


@pytest.fixture
def dead() -> Iterator[Listener]:
    """What channels lead to that do not answer."""
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


def test_a_notifier_stops_in_time_however_many_channels_hang(desk: Desk, dead: Listener) -> None:
    for number in range(OF_A_PROJECT):
        desk.webhook(dead, f"dead-{number}")
    with notifying(desk, dead) as notifier:
        dead.wait_for(lambda told: len(told) == OF_A_PROJECT)
        began = monotonic()
        notifier.stop()
        assert monotonic() < began + STOP_TIMEOUT_S + 1


def execute(desk: Desk, *statements: str) -> None:
    with desk.engine.begin() as connection:
        for statement in statements:
            connection.execute(sql.text(statement))


def tell_much(desk: Desk, channel: str, many: int) -> None:
    """So many more incidents of which the channel was to be told an hour ago."""
    execute(
        desk,
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
    assert len(look(desk.engine, desk.settings)) == 2
    tell_much(desk, "dead", MANY)
    assert {due.key.channel for due in look(desk.engine, desk.settings)} == {"dead", "pager"}
    with notifying(desk, dead):
        listener.wait_for(bool, PROMPT_S)


def test_what_a_channel_does_not_answer_once_it_is_not_asked_for_everything_else_too(
    desk: Desk, dead: Listener
) -> None:
    desk.webhook(dead, "dead")
    look(desk.engine, desk.settings)
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
    look(desk.engine, desk.settings)
    tell_much(desk, "pager", 3)
    execute(desk, "update conversations set due_at = now() - interval '2 hours' where incident = 1")
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


def test_what_comes_while_another_fails_for_what_it_says_waits_as_after_one_failure(
    desk: Desk, dead: Listener
) -> None:
    desk.webhook(dead, "pager")
    look(desk.engine, desk.settings)
    execute(desk, "update conversations set failures = 8")
    dead.bad = '"spikeguard/default/gpt#1"'
    with ThreadPoolExecutor(1) as pool:
        telling = pool.submit(desk.tell)
        dead.wait_for(bool)
        tell_much(desk, "pager", 1)
        execute(
            desk,
            "update conversations set failures = 0, leased_until = null where incident > 1000",
        )
        dead.free.set()
        telling.result(30)
    soon = "select failures, due_at < now() + interval '6 seconds' from conversations order by 1"
    assert rows(desk.engine, soon) == [(0, True), (9, False)]


def test_what_was_not_tried_is_not_given_up_with_what_was(desk: Desk, dead: Listener) -> None:
    """And the channel is asked ever more seldom, however much it is to be told."""
    dead.free.set()
    desk.webhook(dead, "dead")
    look(desk.engine, desk.settings)
    tell_much(desk, "dead", FEW)
    dead.answers = [(503, {})] * GIVE_UP_AFTER
    for _ in range(GIVE_UP_AFTER):
        desk.tell()
        desk.later(901)
    assert len(dead.received) == GIVE_UP_AFTER
    while desk.tell():
        pass
    assert set(desk.results()) == {"failed", "sent"}
    assert desk.results().count("sent") == FEW + 1
    assert "try 2 in 900 s" in desk.log()[GIVE_UP_AFTER - 1][2]


def test_channels_that_did_not_answer_lately_leave_room_for_those_that_do(
    desk: Desk, dead: Listener, listener: Listener
) -> None:
    for number in range(LANES + 2):
        desk.webhook(dead, f"dead-{number}")
    dead.answers = [(503, {})] * (LANES + 2)
    dead.free.set()
    desk.webhook(listener, "pager", cooldown_s=0)
    command, revision = desk.command, desk.revision
    desk.tell()
    dead.free.clear()
    desk.later(60)
    with notifying(desk, dead) as notifier:
        dead.wait_for(lambda told: len(told) == LANES + 2 + TROUBLED - 1)
        approve(desk.engine, command, revision, "Ada")
        listener.wait_for(lambda told: len(told) == 2, PROMPT_S)
        assert sum(lane.troubled for lane in notifier._lanes.values()) == TROUBLED - 1


def test_a_project_whose_channels_all_hang_leaves_room_for_another_ones(
    desk: Desk, dead: Listener, listener: Listener
) -> None:
    for number in range(LANES + 2):
        desk.webhook(dead, f"dead-{number}")
    look(desk.engine, desk.settings)
    target = {"url": f"{listener.url}/hook", "secret": SECRET}
    pager = channel_from_mapping("other", "pager", {"kind": "webhook", "target": target})
    with desk.engine.begin() as connection:
        write_channel(connection, pager, "test")
    with notifying(desk, dead):
        dead.wait_for(lambda told: len(told) >= OF_A_PROJECT)
        execute(
            desk,
            "insert into conversations select (jsonb_populate_record(c, jsonb_build_object("
            "'channel', 'pager', 'project', 'other', 'leased_until', null))).* "
            "from conversations c where channel = 'dead-0'",
        )
        listener.wait_for(bool, PROMPT_S)


def of_a_channel(desk: Desk) -> None:
    execute(desk, "update channels set kind = 'pigeon' where name = 'newer'")


def of_a_run(desk: Desk) -> None:
    Job(desk.engine, run="newer").start()
    execute(
        desk,
        "insert into notices (run_id, at, topic) "
        "select run_id, now(), 'of a newer release' from runs where name = 'newer'",
    )


@pytest.mark.parametrize("written", [of_a_channel, of_a_run])
def test_what_only_a_newer_release_can_read_keeps_no_other_channel_or_run_from_being_told(
    desk: Desk, listener: Listener, written: Callable[[Desk], None]
) -> None:
    desk.webhook(listener, "pager")
    desk.webhook(listener, "newer")
    written(desk)
    desk.tell()
    assert ("pager", "sent") in [entry[:2] for entry in desk.log()]
    results = {result for channel, result, _ in desk.log() if channel == "newer"}
    assert results == {"held" if written is of_a_channel else "sent"}
    assert value(desk.engine, "select count(*) from notices") == (written is of_a_run)


def test_a_conversation_of_a_channel_of_a_newer_release_waits_for_one_that_reads_it(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener, "newer")
    look(desk.engine, desk.settings)
    of_a_channel(desk)
    desk.tell()
    assert [(c, r) for c, r, reason in desk.log() if reason.startswith(UNREADABLE)] == [
        ("newer", "held")
    ]
    execute(desk, "update channels set kind = 'webhook'")
    desk.later(61)
    desk.tell()
    assert len(listener.received) == 1


@pytest.mark.parametrize(("about", "arrives"), [(["spikes", "decisions"], 1), (["runs"], 0)])
def test_what_happens_while_only_a_newer_release_can_read_the_channel_waits_for_it(
    desk: Desk, listener: Listener, about: list[str], arrives: int
) -> None:
    """Which tells then what the channel asks for."""
    desk.webhook(listener, "newer", about=about)
    of_a_channel(desk)
    desk.tell()
    assert listener.received == []
    execute(desk, "update channels set kind = 'webhook'")
    desk.later(61)
    desk.tell()
    assert len(listener.received) == arrives
    assert desk.results() == ["held", "sent" if arrives else "dropped"]


def test_a_conversation_that_cannot_be_told_is_put_off_and_the_next_is_told(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener, "pager")
    look(desk.engine, desk.settings)
    execute(
        desk,
        "insert into conversations select (jsonb_populate_record(c, jsonb_build_object("
        "'incident', 7, 'pending', array['of a newer release'], 'due_at', "
        "now() - interval '1 hour'))).* from conversations c",
    )
    with notifying(desk):
        listener.wait_for(bool, PROMPT_S)
    odd = "select due_at > now() from conversations where incident = 7"
    assert rows(desk.engine, odd) == [(True,)]
