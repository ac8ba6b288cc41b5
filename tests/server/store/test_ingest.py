"""A message has its effect once, in order, whatever the network and the clocks do."""

from __future__ import annotations

import pytest
import sqlalchemy as sql

from spikeguard_protocol import Gap, Message, SegmentId, SegmentPoint, TargetDeleted
from spikeguard_server.errors import SequenceGap
from tests.server.store.jobs import (
    FIRST,
    SECOND,
    Job,
    columns,
    healthy,
    rows,
    saved_at,
    spiking,
    value,
)
from tests.server.store.test_retention import held_up, until_waiting


def test_a_message_sent_twice_is_stored_once_and_acknowledged_twice(engine: sql.Engine) -> None:
    job = Job(engine).start()
    message = job.message(columns(range(1, 11), healthy))
    assert job.post(message) == job.post(message)
    assert value(engine, "select count(*) from samples") == 10
    assert value(engine, "select dropped_samples from attempts") == 0
    assert value(engine, "select version from detector_states") == 2


def test_first_messages_that_come_to_two_replicas_at_once_are_both_stored_and_known(
    engine: sql.Engine,
) -> None:
    """The same twice, as an agent that waited too long sends it, and one of another attempt."""
    first, other = Job(engine), Job(engine, SECOND)
    message = first.message(*first.beginning(), columns(range(1, 51), healthy))
    second = other.message(*other.beginning())
    with held_up(engine, "INSERT ON attempts") as pool:
        sent = [pool.submit(first.post, message)]
        until_waiting(engine, "advisory")
        sent += [pool.submit(first.post, message), pool.submit(other.post, second)]
        until_waiting(engine, "transactionid")
    assert [each.result().sequence for each in sent] == [1, 1, 1]
    assert rows(engine, "select number from attempts order by 1") == [(1,), (2,)]
    assert value(engine, "select version from detector_states") == 2


def test_an_older_message_changes_nothing_and_learns_how_far_the_server_is(
    engine: sql.Engine,
) -> None:
    job = Job(engine).start()
    old = job.message(columns([1], lambda _: 1.0))
    job.post(old)
    job.train(2, 20)
    forged = Message("default", "gpt", FIRST, old.sequence, 0.1, (columns([1], lambda _: 9.0),))
    assert job.post(forged).sequence == job.sequence
    assert value(engine, "select loss from samples where step = 1") == 1.0


def test_a_gap_is_refused_with_the_number_that_is_expected(engine: sql.Engine) -> None:
    job = Job(engine).start()
    with pytest.raises(SequenceGap) as refused:
        job.post(job.message(columns([1], healthy), sequence=5))
    assert refused.value.extra["expected"] == 2
    assert value(engine, "select count(*) from samples") == 0


def test_an_attempt_that_begins_with_a_gap_leaves_no_trace(engine: sql.Engine) -> None:
    with pytest.raises(SequenceGap) as refused:
        Job(engine).post(Job(engine).message(sequence=3))
    assert refused.value.extra["expected"] == 1
    assert value(engine, "select count(*) from runs") == 0


def test_a_declared_gap_is_passed_over_and_counted(engine: sql.Engine) -> None:
    job = Job(engine).start()
    ack = job.post(job.message(Gap(2, 6, "disk full", 50), columns([60], healthy), sequence=7))
    assert ack.sequence == 7
    assert value(engine, "select dropped_samples from attempts") == 50


def test_a_gap_sent_in_place_of_the_first_lost_message_reaches_its_end(engine: sql.Engine) -> None:
    job = Job(engine).start()
    assert job.post(job.message(Gap(2, 6, "too large", 1), sequence=2)).sequence == 6
    assert job.post(job.message(sequence=7)).sequence == 7


def test_an_attempt_whose_start_was_lost_is_registered_all_the_same(engine: sql.Engine) -> None:
    """Otherwise a first message that was refused for good would block the outbox for ever."""
    job = Job(engine)
    job.post(job.message(Gap(1, 1, "422", 0), sequence=1))
    job.post(job.message(columns(range(501, 511), healthy), sequence=2))
    assert value(engine, "select count(*) from samples") == 10
    assert rows(engine, "select attempt, segment, reason from segments") == [(1, 0, "resume")]
    assert value(engine, "select last_step from runs") == 510


def test_samples_of_an_older_attempt_are_history(engine: sql.Engine) -> None:
    """They are stored with their attempt; the detector follows the newest one."""
    old = Job(engine).start()
    old.train(1, 300)
    new = Job(engine, attempt=SECOND)
    new.start(SegmentPoint(SegmentId(FIRST, 0), 200))
    new.train(201, 260)
    old.train(301, 340, spiking(301, 50.0))
    assert value(engine, "select incidents from runs") == 0
    assert value(engine, "select count(*) from samples where attempt = 1") == 340
    assert rows(engine, "select current_attempt, last_step from runs") == [(2, 260)]


def test_an_old_attempt_that_registers_late_does_not_take_over(engine: sql.Engine) -> None:
    """An outbox that is uploaded days afterwards is history."""
    Job(engine, attempt=SECOND).start()
    old = Job(engine, age_s=3600.0).start()
    old.train(1, 20)
    assert value(engine, "select current_attempt from runs") == 1
    assert rows(engine, "select id, number from attempts order by number") == [
        (SECOND, 1),
        (FIRST, 2),
    ]


def test_two_live_attempts_get_their_data_in_and_no_orders(engine: sql.Engine) -> None:
    one, two = Job(engine), Job(engine, attempt=SECOND)
    one.start()
    two.start()
    one.train(1, 10)
    ack = two.train(1, 10)
    assert ack.live_attempts == 2
    assert ack.orders == ()
    assert value(engine, "select count(*) from samples") == 20


def test_a_job_killed_and_started_again_is_one_live_attempt(engine: sql.Engine) -> None:
    old = Job(engine).start()
    old.train(1, 10)
    new = Job(engine, attempt=SECOND, age_s=0.0)
    new.start(SegmentPoint(SegmentId(FIRST, 0), 10))
    assert new.train(11, 20).live_attempts == 1


def test_a_target_is_gone_when_it_is_deleted_and_back_when_it_is_saved_again(
    engine: sql.Engine,
) -> None:
    job = Job(engine).start()
    gone = "select deleted_at is not null from targets"
    job.send(saved_at(100))
    job.send(TargetDeleted("step-100"))
    assert value(engine, gone) is True
    job.send(saved_at(100))
    assert value(engine, gone) is False


def test_an_attempt_whose_first_message_is_a_heartbeat_is_known_by_what_it_says_later(
    engine: sql.Engine,
) -> None:
    """Without its capabilities nothing could ever be proposed to it."""
    job = Job(engine)
    job.post(job.message())
    job.start()
    assert value(engine, "select array_length(capabilities, 1) from attempts") >= 1
    assert value(engine, "select agent_version from attempts") != "unknown"
