"""From what happened to what arrives: once, in order, with the reason where nothing does."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sql

from spikeguard_protocol import AttemptEnded, RunId, TargetDeleted
from spikeguard_protocol.signature import SignatureRefused, verify
from spikeguard_server.ingest.decisions import decide
from spikeguard_server.store.channels import add_silence, end_silence
from spikeguard_server.store.conversations import claim, wake
from spikeguard_server.store.deleted_runs import delete_run
from tests.server.notify.conftest import SECRET, Desk
from tests.server.notify.listener import Listener
from tests.server.store.jobs import SECOND, Job, execute, healthy, rows, spiking, value
from tests.server.store.test_commands import ONSET
from tests.server.store.test_housekeeping import pass_time
from tests.server.store.test_retention import held_up, until_waiting

KEY = "spikeguard/default/gpt#1"


def healed(engine: sql.Engine) -> Job:
    """A job whose loss jumped for a few steps and came back."""
    job = Job(engine).start()
    job.train(1, 400, batch=100)
    job.train(401, 900, spiking(ONSET, length=4), batch=100)
    assert value(engine, "select state from incidents") == "closed"
    return job


def test_one_message_tells_the_present_and_the_outbox_is_empty(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener)
    assert desk.tell() == 1
    [request] = listener.received
    told = request.json()
    assert (told["key"], told["sequence"], told["status"]) == (KEY, 1, "firing")
    assert told["urgency"] == "urgent"
    assert told["incident"]["proposal"]["command"] == str(desk.command)
    assert told["links"]["Decide"] == (
        f"https://guard.example/confirm/default/gpt/1/{desk.command.number}"
    )
    assert {"opened", "proposed"} <= set(told["topics"])
    assert desk.tell() == 0
    assert desk.results() == ["sent"]


def test_no_checkpoint_of_a_run_that_was_begun_anew_is_told_as_a_way_back(
    desk: Desk, listener: Listener
) -> None:
    """They lie on disk from before, and hold another model."""
    desk.webhook(listener)
    desk.tell()
    assert "If the job dies now: step 300 is on disk" in listener.received[-1].json()["text"]
    anew = Job(desk.engine, attempt=SECOND)
    anew.start()
    anew.train(1, 400, batch=100, save_every=1000)
    anew.train(401, 560, spiking(ONSET), batch=40, save_every=1000)
    desk.later(3600)
    desk.tell()
    told = [request.json()["text"] for request in listener.received]
    assert "If the job dies now: nothing is on disk to go on from" in told[-1]


def test_a_webhook_is_signed_over_time_and_body(desk: Desk, listener: Listener) -> None:
    desk.webhook(listener)
    desk.tell()
    [request] = listener.received
    signed_at = float(request.headers["Spikeguard-Timestamp"])
    headers = dict(request.headers)
    verify(SECRET, headers, request.body, signed_at + 299)
    for secret, body, now_s in [
        ("another secret of that length", request.body, signed_at),
        (SECRET, request.body + b" ", signed_at),
        (SECRET, request.body, signed_at + 301),
        (SECRET, request.body, signed_at - 301),
    ]:
        with pytest.raises(SignatureRefused):
            verify(secret, headers, body, now_s)


def test_one_conversation_an_incident_is_updated_and_in_the_end_resolved(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener)
    job, command, revision = desk.job, desk.command, desk.revision
    desk.tell()
    decide(desk.engine, command, "approve", revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    job.roll_back(str(command), 300, at_step=570, position=300)
    desk.tell()
    assert desk.results() == ["sent", "held"]  # neither asks anything: the cooldown holds them
    desk.later(121)
    desk.tell()
    job.train(301, 700, segment=1, shift=20, batch=50)
    desk.tell()
    assert desk.results()[-1] == "held"  # what follows within ten seconds is told together
    desk.later(11)
    desk.tell()
    told = [request.json() for request in listener.received]
    assert {entry["key"] for entry in told} == {KEY}
    assert re.fullmatch(r"gpt#1: applied at step 570: roll back to .*", told[1]["title"])
    assert [entry["sequence"] for entry in told] == [1, 2, 3]
    assert [entry["status"] for entry in told] == ["firing", "firing", "resolved"]
    assert "Last command, approved by Ada: roll back" in told[1]["text"]
    assert "recovered" in told[2]["title"]
    assert "\nLost: 270 steps" in told[2]["text"]  # from 300 to 570
    assert all("Lost: " not in before["text"] for before in told[:2])


def test_what_another_proposal_replaced_is_not_told_beside_it(
    desk: Desk, listener: Listener
) -> None:
    execute(desk.engine, "update commands set expires_at = now() + interval '1 hour'")
    gone = [TargetDeleted(f"step-{step}") for step in range(100, 501, 100)]
    desk.job.send(*gone)
    desk.job.train(561, 570, spiking(ONSET), save_every=1000)
    desk.webhook(listener)
    desk.tell()
    [request] = listener.received
    told = request.json()
    assert "decide: stop" in told["title"]
    assert "Replaced" not in told["text"]
    ended = value(desk.engine, "select end_reason from commands where verb = 'rollback'")
    assert "There is no way back: no checkpoint or snapshot" in ended
    assert "\n" not in ended


def test_an_opening_that_travels_late_tells_the_kind_of_then_and_nobody_repeats_it(
    calm: Desk, listener: Listener
) -> None:

    def climbing(step: int) -> float:
        return healthy(step) + 0.02 * (step - ONSET)

    calm.webhook(listener, cooldown_s=0)
    calm.job.start().train(1, 400, batch=100)
    calm.job.train(ONSET, 420, climbing)
    due = calm.due()
    calm.job.train(421, 440, climbing)
    for key in due:
        calm.notifier.deliver(key)
    calm.tell()
    titles = [request.json()["title"] for request in listener.received]
    assert titles == ["gpt#1: lingering spike at step 404"]
    calm.job.train(441, 500, climbing)
    calm.tell()
    assert "divergent" in listener.received[-1].json()["title"]


def test_a_spike_that_healed_before_anybody_was_told_wakes_nobody(
    calm: Desk, listener: Listener
) -> None:
    calm.webhook(listener)
    healed(calm.engine)
    calm.tell()
    assert listener.received == []
    [(_, result, reason)] = calm.log()
    assert (result, "before anybody was told" in reason) == ("dropped", True)


def test_data_too_old_to_act_on_calls_nobody(calm: Desk, listener: Listener) -> None:
    calm.webhook(listener)
    job = Job(calm.engine, age_s=3600.0).start()
    job.train(1, 400, batch=100)
    job.train(401, 560, spiking(ONSET), batch=40)
    calm.tell()
    assert listener.received == []
    assert {result for _, result, _ in calm.log()} == {"dropped"}
    assert any("too old" in reason for _, _, reason in calm.log())


def test_without_a_channel_the_log_says_so(desk: Desk) -> None:
    desk.tell()
    assert (None, "dropped", "the project has no channel") in desk.log(untold=True)


def test_a_channel_is_told_what_it_asks_for_and_the_log_why_not_the_rest(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener, "decisions", about=["decisions"])
    desk.webhook(listener, "others", runs=["llama-*"])
    desk.webhook(listener, "later", level=1)
    desk.webhook(listener, "off", enabled=False)
    desk.tell()
    assert [request.json()["topics"] for request in listener.received] == [["proposed"]]
    reasons = {channel: reason for channel, _, reason in desk.log()}
    assert "run gpt" in reasons["others"]
    assert "escalation 1" in reasons["later"]
    assert "switched off" in reasons["off"]


def test_a_failed_delivery_is_tried_again_under_the_same_key(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener)
    listener.answers = [(503, {}), (429, {"Retry-After": "90"})]
    desk.tell()
    assert desk.tell() == 0
    desk.later(6)
    desk.tell()
    desk.later(80)
    assert desk.tell() == 0  # it asked for 90 seconds
    desk.later(11)
    desk.tell()
    keys = [request.headers["Idempotency-Key"] for request in listener.received]
    assert keys == [f"{KEY}/1"] * 3
    assert desk.results() == ["failed", "failed", "sent"]
    assert "answered 503" in desk.log()[0][2]


def test_what_is_refused_for_good_is_given_up_and_the_next_thing_told_anew(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener, cooldown_s=0)
    listener.answers = [(410, {})]
    command, revision = desk.command, desk.revision
    desk.tell()
    assert desk.results() == ["given_up"]
    decide(desk.engine, command, "approve", revision, "Ada")
    desk.tell()
    assert desk.results() == ["given_up", "sent"]


def test_a_stand_in_says_what_happened_and_who_did_not_get_it(
    desk: Desk, listener: Listener
) -> None:
    desk.channel("pagerduty", "pager", target={"routing_key": "old", "url": listener.url})
    desk.webhook(listener, "later", level=3, runs=["other-*"])
    listener.answers = [(401, {})]
    desk.tell()
    desk.tell()
    told = listener.received[-1].json()
    assert told["topics"] == ["undelivered"]
    assert "decide: roll back" in told["title"]
    assert "Not delivered to pager" in told["text"]
    assert told["urgency"] == "urgent"


def test_a_channel_that_is_down_for_hours_is_given_up_and_no_secret_is_logged(desk: Desk) -> None:
    target = {"url": "http://127.0.0.1:9/hook?key=hidden-word", "secret": SECRET}
    desk.channel(target=target)
    desk.tell()
    for _ in range(20):
        desk.later(1000)
        desk.tell()
    assert desk.results() == ["failed"] * 11 + ["given_up"]
    assert not any("hidden-word" in reason or SECRET in reason for _, _, reason in desk.log())


def test_a_silence_holds_and_its_end_tells_what_is_still_true(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener)
    with desk.engine.begin() as connection:
        add_silence(connection, "default", "Ada", run="gpt", lasts_s=3600, reason="moving racks")
    desk.tell()
    [(_, result, reason)] = desk.log()
    assert result == "held"
    assert "Ada" in reason
    assert "moving racks" in reason
    assert listener.received == []
    with desk.engine.begin() as connection:
        assert end_silence(connection, "default", 1)
        wake(connection, "default")
    desk.tell()
    assert len(listener.received) == 1


def test_a_maintenance_window_begins_when_it_was_planned(desk: Desk, listener: Listener) -> None:
    desk.webhook(listener)
    with desk.engine.begin() as connection:
        add_silence(connection, "default", "Ada", begins_in_s=3600, lasts_s=60, reason="power")
        add_silence(connection, "other", "Ada", lasts_s=60, reason="not us")
    desk.tell()
    assert len(listener.received) == 1


def test_two_replicas_tell_one_conversation_once(desk: Desk, listener: Listener) -> None:
    desk.webhook(listener)
    listener.delay_s = 0.2
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(desk.tell) for _ in range(4)]:
            done.result(30)
    assert len(listener.received) == 1
    assert desk.results() == ["sent"]


def test_a_sender_that_died_is_followed_by_another_when_its_lease_ends(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener)
    [key] = desk.due()
    with desk.engine.begin() as connection:
        assert claim(connection, key) is not None
    assert desk.notifier.deliver(key)
    assert listener.received == []
    desk.later(91)
    desk.tell()
    assert [request.json()["sequence"] for request in listener.received] == [1]


@pytest.mark.parametrize("status", [202, 503, 410])
def test_a_sender_whose_lease_ended_leaves_the_next_ones_conversation_alone(
    desk: Desk, listener: Listener, status: int
) -> None:
    desk.webhook(listener, cooldown_s=0)
    [key] = desk.due()
    listener.answers = [(status, {})]
    listener.free.clear()
    with ThreadPoolExecutor(1) as pool:
        telling = pool.submit(desk.notifier.deliver, key)
        listener.wait_for(bool)
        desk.later(91)
        desk.webhook(listener, "another")
        with desk.engine.begin() as connection:
            assert claim(connection, key) is not None
        stands = rows(desk.engine, "select * from conversations")
        listener.free.set()
        telling.result(30)
    assert rows(desk.engine, "select * from conversations") == stands


def test_what_happens_while_a_message_travels_is_told_after(desk: Desk, listener: Listener) -> None:
    desk.webhook(listener, cooldown_s=0)
    command, revision = desk.command, desk.revision
    listener.free.clear()
    with ThreadPoolExecutor(1) as pool:
        telling = pool.submit(desk.tell)
        listener.wait_for(bool)
        decide(desk.engine, command, "approve", revision, "Ada")
        listener.free.set()
        telling.result(30)
    desk.tell()
    assert [request.json()["sequence"] for request in listener.received] == [1, 2]
    assert "approved" in listener.received[1].json()["topics"]


def delete(desk: Desk) -> None:
    with desk.engine.begin() as connection:
        delete_run(connection, RunId("default", "gpt"), "Ada", "a test", timedelta(0))


def test_nothing_of_a_run_is_logged_that_was_deleted_while_its_message_travelled(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener)
    desk.job.send(AttemptEnded("finished"))
    listener.free.clear()
    with ThreadPoolExecutor(1) as pool:
        telling = pool.submit(desk.tell)
        listener.wait_for(bool)
        delete(desk)
        listener.free.set()
        telling.result(30)
    assert (len(listener.received), desk.log()) == (1, [])


def test_a_run_is_deleted_whole_though_a_link_of_it_is_being_made(
    desk: Desk, listener: Listener
) -> None:
    desk.webhook(listener, links=True)
    with held_up(desk.engine, "INSERT ON approval_links") as pool:
        telling = pool.submit(desk.tell)
        until_waiting(desk.engine, "advisory")
        deleting = pool.submit(delete, desk)
        until_waiting(desk.engine, "transactionid")
    telling.result()
    deleting.result()
    left = "select * from approval_links full join conversations using (run_id)"
    assert rows(desk.engine, left) == []


def fallen_silent(calm: Desk, listener: Listener) -> Job:
    """A job that sends nothing any more, of which the listener was told."""
    calm.webhook(listener)
    job = Job(calm.engine).start()
    job.train(1, 10)
    assert pass_time(calm.engine, 61)
    calm.tell()
    return job


def test_a_run_that_fell_silent_is_told_and_told_again_when_it_is_back(
    calm: Desk, listener: Listener
) -> None:
    job = fallen_silent(calm, listener)
    calm.tell()
    job.train(11, 20)
    calm.tell()
    told = [(r.json()["key"], r.json()["status"], r.json()["title"]) for r in listener.received]
    assert told == [
        (
            "spikeguard/default/gpt#0",
            "firing",
            "gpt: the run sends nothing any more, look at the job",
        ),
        ("spikeguard/default/gpt#0", "resolved", "gpt: the run sends again"),
    ]
    silent, back = (r.json()["text"] for r in listener.received)
    assert re.match(r"Nothing came from run gpt for .* s. Its newest step is 10, its loss ", silent)
    assert back.startswith("Run gpt sends again. Its newest step is 20, its loss ")


@pytest.mark.parametrize("channels", [0, 1])
def test_a_run_that_simply_finishes_leaves_nothing_behind(
    calm: Desk, listener: Listener, channels: int
) -> None:
    for number in range(channels):
        calm.webhook(listener, f"pager-{number}")
    job = Job(calm.engine).start()
    job.train(1, 10)
    job.send(AttemptEnded("finished"))
    calm.tell()
    assert value(calm.engine, "select count(*) from conversations") == 0
    assert value(calm.engine, "select count(*) from deliveries") == 0
