"""From a spike to a command that one person decided on and one attempt was told, at most once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sql

from spikeguard_core.policy.settings import DEFAULT_POLICY, ApprovalMode, ApprovalRule
from spikeguard_protocol import CommandId, ResultState, Rollback, SegmentId, SegmentPoint, Verb
from spikeguard_server.errors import RevisionChanged, ServiceError, WrongState
from spikeguard_server.ingest.decisions import decide
from spikeguard_server.store.policies import write_policy
from tests.server.store.jobs import FIRST, SECOND, Job, execute, healthy, rows, spiking, value

ONSET = 401
WAITING = "select incident, number, revision from commands where state = 'proposed'"


def spike(engine: sql.Engine) -> Job:
    """A job whose loss jumped and stayed until a rollback was proposed."""
    job = Job(engine).start()
    job.train(1, 400, batch=100)
    job.train(401, 560, spiking(ONSET), batch=40)
    return job


def waiting(engine: sql.Engine) -> tuple[Job, CommandId, int]:
    """That job, and the rollback that waits for a decision."""
    [(incident, number, revision)] = rows(engine, WAITING)
    job = Job(engine, sequence=value(engine, "select last_sequence from attempts"))
    return job, CommandId.parse(f"gpt#{incident}.{number}"), int(str(revision))


def state_of(engine: sql.Engine, command: CommandId) -> object:
    return value(engine, f"select state from commands where number = {command.number}")


def test_a_lasting_spike_proposes_a_rollback_and_orders_nothing(spiked: sql.Engine) -> None:
    job, command, _ = waiting(spiked)
    ack = job.train(561, 570, spiking(ONSET))
    assert value(spiked, f"select verb from commands where number = {command.number}") == "rollback"
    assert [o for o in ack.orders if isinstance(o.action, Rollback)] == []
    assert ack.attentive
    assert "step-300" in ack.protected


def test_a_spike_that_comes_back_after_a_rollback_is_the_same_incident(
    spiked: sql.Engine,
) -> None:
    job, command, revision = waiting(spiked)
    peak = value(spiked, "select record->>'peak_step' from incidents where number = 1")
    decide(spiked, command, "approve", revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    job.roll_back(str(command), 300, at_step=570, position=300)
    job.train(301, 560, spiking(ONSET + 5, 9.0), segment=1, shift=20, batch=20)
    assert value(spiked, "select record->>'recurrences' from incidents where number = 1") == "1"
    assert (
        value(spiked, "select record->>'first_peak_step' from incidents where number = 1") == peak
    )
    assert value(spiked, "select incidents from runs") == 1
    assert state_of(spiked, command) == "judged"


def test_a_result_for_another_run_or_an_unknown_command_changes_nothing(
    spiked: sql.Engine,
) -> None:
    job, command, _ = waiting(spiked)
    for name in ("other#1.1", "gpt#99.1", "gpt#1.9999999999", str(command)):
        job.report(name, ResultState.APPLIED, 570)
    assert state_of(spiked, command) == "proposed"


def test_of_two_people_who_approve_at_once_one_wins_and_the_other_is_told(
    spiked: sql.Engine,
) -> None:
    _, command, revision = waiting(spiked)

    def decided(person: str) -> str:
        try:
            decide(spiked, command, "approve", revision, person)
        except ServiceError as error:
            return type(error).__name__
        return "approved"

    with ThreadPoolExecutor(4) as pool:
        answers = sorted(pool.map(decided, ["Ada", "Bob", "Cyd", "Dan"]))
    assert answers == ["WrongState", "WrongState", "WrongState", "approved"]
    subject = f"select count(*) from audit where action = 'approve' and subject = '{command}'"
    assert value(spiked, subject) == 1


def test_a_target_that_vanished_meanwhile_makes_a_new_revision_that_must_be_seen(
    spiked: sql.Engine,
) -> None:
    """Approvals come late: what is approved is what will be done."""
    _, command, revision = waiting(spiked)
    target = "select arguments->>'target' from commands where verb = 'rollback'"
    before = value(spiked, target)
    execute(spiked, f"update targets set deleted_at = now() where name = '{before}'")
    with pytest.raises(RevisionChanged):
        decide(spiked, command, "approve", revision, "Ada")
    assert value(spiked, target) != before
    decide(spiked, command, "approve", revision + 1, "Ada")
    assert state_of(spiked, command) == "approved"


def test_what_was_shown_is_approved_first_time_however_many_steps_go_by(
    spiked: sql.Engine,
) -> None:
    """A proposal read while the job trains on is one offer: one revision, one deadline."""
    job, command, revision = waiting(spiked)
    offer = "select arguments::text, revision, expires_at, expires_at_step from commands"
    before = rows(spiked, f"{offer} where number = {command.number}")
    job.train(561, 760, spiking(ONSET), batch=5)
    assert rows(spiked, f"{offer} where number = {command.number}") == before
    decide(spiked, command, "approve", revision, "Ada")
    assert state_of(spiked, command) == "approved"


def test_a_revision_for_another_cause_keeps_the_deadline_and_the_link_to_the_first(
    spiked: sql.Engine,
) -> None:
    """Who saw the same action may approve it, whatever it is put down to by now."""
    job, command, revision = waiting(spiked)
    mine = f"from commands where number = {command.number}"
    deadline = value(spiked, f"select expires_at {mine}")
    execute(spiked, f"update commands set cause = 'lr_too_high' {mine[14:]}")
    job.train(561, 570, spiking(ONSET))
    assert value(spiked, f"select revision {mine}") == revision + 1
    assert value(spiked, f"select cause {mine}") == "unknown"
    assert value(spiked, f"select expires_at {mine}") == deadline
    decide(spiked, command, "approve", revision, "Ada")
    assert state_of(spiked, command) == "approved"


def test_no_pending_decision_is_withdrawn_because_time_passed(spiked: sql.Engine) -> None:
    job, command, revision = waiting(spiked)
    job.train(561, 2600, spiking(ONSET), batch=255)
    assert state_of(spiked, command) == "proposed"
    assert value(spiked, "select outcome from incidents") is None
    decide(spiked, command, "reject", revision, "Ada", "the new level is what we want")
    job.train(2601, 2700, spiking(ONSET), batch=20)
    assert value(spiked, "select outcome from incidents") == "level_accepted"


def test_what_nobody_answered_leaves_the_incident_open_and_is_asked_again_later(
    spiked: sql.Engine,
) -> None:
    job, command, _ = waiting(spiked)
    execute(spiked, "update commands set expires_at = now() where state = 'proposed'")
    job.train(561, 600, spiking(ONSET), batch=20)
    assert state_of(spiked, command) == "expired"
    assert rows(spiked, WAITING) == []
    job.train(601, 800, spiking(ONSET), batch=20)
    assert len(rows(spiked, f"{WAITING} and verb = 'rollback'")) == 1
    assert value(spiked, "select state from incidents") == "open"


def test_nothing_can_be_approved_after_its_time(spiked: sql.Engine) -> None:
    """By the database's clock, even where no ticker ever ran."""
    _, command, revision = waiting(spiked)
    late = datetime.now(UTC) + timedelta(days=2)
    with pytest.raises(WrongState):
        decide(spiked, command, "approve", revision, "Ada", now=late)
    assert state_of(spiked, command) == "expired"


def test_an_approved_command_is_not_delivered_after_its_time(spiked: sql.Engine) -> None:
    job, command, revision = waiting(spiked)
    decide(spiked, command, "approve", revision, "Ada")
    job.now = datetime.now(UTC) + timedelta(days=2)
    ack = job.send()
    assert str(command) not in [order.command for order in ack.orders]
    assert state_of(spiked, command) == "approved"


def test_a_policy_approves_what_it_proposed_in_its_cooldown_once_that_is_over(
    spiked: sql.Engine,
) -> None:
    """Nobody else would: the proposal itself does not change any more."""
    rule = ApprovalRule(ApprovalMode.AUTO, budget=5, cooldown_s=1_800.0)
    job, command, revision = waiting(spiked)
    with spiked.begin() as connection:
        approval = {**DEFAULT_POLICY.approval, Verb.ROLLBACK: rule}
        write_policy(connection, "default", replace(DEFAULT_POLICY, approval=approval), "root")
        past = sql.text(
            "insert into commands select (c).* from (select jsonb_populate_record(commands,"
            " jsonb_build_object('number', 99, 'state', 'superseded', 'automatic', true,"
            " 'decided_at', now() - interval '1700 seconds')) as c from commands"
            " where number = :number) as copied"
        )
        connection.execute(past, {"number": command.number})
    job.train(561, 565, spiking(ONSET))
    assert state_of(spiked, command) == "proposed"
    with spiked.begin() as connection:
        older = "update commands set decided_at = now() - interval '1900 seconds' where number = 99"
        connection.execute(sql.text(older))
    job.train(566, 570, spiking(ONSET))
    assert state_of(spiked, command) == "delivered"
    number = "select revision from commands where number = "
    assert value(spiked, f"{number}{command.number}") == revision


def test_old_news_proposes_nothing(engine: sql.Engine) -> None:
    """Hours of outage that are replayed page nobody and command nothing."""
    job = Job(engine, age_s=7200.0).start()
    job.train(1, 560, spiking(ONSET), batch=40)
    assert value(engine, "select incidents from runs") == 1
    assert value(engine, "select count(*) from commands") == 0


def test_a_new_attempt_gets_a_fresh_proposal(spiked: sql.Engine) -> None:
    _, command, _ = waiting(spiked)
    new = Job(spiked, attempt=SECOND, age_s=0.0)
    new.start(SegmentPoint(SegmentId(FIRST, 0), 560))
    new.train(561, 600, spiking(ONSET))
    assert state_of(spiked, command) == "void"
    fresh = "select attempt, state from commands order by number desc limit 1"
    assert rows(spiked, fresh) == [(2, "proposed")]


def test_an_order_that_nobody_reported_on_is_unknown_until_somebody_does(
    spiked: sql.Engine,
) -> None:
    """The journal of the next attempt may still know."""
    job, command, revision = waiting(spiked)
    decide(spiked, command, "approve", revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    new = Job(spiked, attempt=SECOND, age_s=0.0)
    new.start(SegmentPoint(SegmentId(FIRST, 0), 570))
    assert state_of(spiked, command) == "unknown"
    new.report(str(command), ResultState.APPLIED, 570)
    assert state_of(spiked, command) == "applied"


def test_a_run_that_is_trained_anew_from_its_first_step_ends_the_incident_of_the_old_model(
    spiked: sql.Engine,
) -> None:
    """Its first losses are no peak of that spike, and no command of it fits them."""
    _, command, _ = waiting(spiked)
    new = Job(spiked, attempt=SECOND).start()
    new.train(1, 40, lambda step: 10.0 - 0.1 * step)
    [(outcome, peak)] = rows(spiked, "select outcome, (record->>'peak_loss')::float from incidents")
    assert outcome == "run_ended"
    assert peak < 8.0
    assert state_of(spiked, command) in ("void", "run_ended")
    assert not rows(spiked, WAITING)


def test_a_late_result_takes_back_what_was_approved_in_its_place(spiked: sql.Engine) -> None:
    """Otherwise the partition that hid it would roll the run back twice."""
    job, first, revision = waiting(spiked)
    decide(spiked, first, "approve", revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    with spiked.begin() as connection:
        unknown = sql.text("update commands set state = 'unknown' where number = :number")
        connection.execute(unknown, {"number": first.number})
    job.train(571, 580, spiking(ONSET))
    [(incident, number, revision)] = rows(spiked, WAITING)
    second = CommandId.parse(f"gpt#{incident}.{number}")
    assert second != first
    decide(spiked, second, "approve", int(str(revision)), "Ada")
    ack = job.roll_back(str(first), 300, at_step=580, position=300)
    assert state_of(spiked, first) == "applied"
    assert state_of(spiked, second) == "superseded"
    assert not [order for order in ack.orders if isinstance(order.action, Rollback)]


def test_the_samples_around_an_incident_are_kept_with_all_segments(spiked: sql.Engine) -> None:
    job, command, revision = waiting(spiked)
    decide(spiked, command, "approve", revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    job.roll_back(str(command), 300, at_step=570, position=300)
    job.train(301, 400, healthy, segment=1, shift=20)
    spans = (
        "select segment, min(step), max(step), count(*) from incident_samples group by 1 order by 1"
    )
    assert rows(spiked, spans) == [(0, 201, 570, 370), (1, 301, 400, 100)]
