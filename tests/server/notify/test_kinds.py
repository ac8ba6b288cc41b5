"""What each kind of channel puts on the wire, against servers that read it."""

from __future__ import annotations

from spikeguard_server.ingest.decisions import approve
from tests.server.notify.conftest import Desk
from tests.server.notify.listener import Listener
from tests.server.store.jobs import spiking
from tests.server.store.test_commands import ONSET

KEY = "spikeguard/default/gpt#1"


def live_through(desk: Desk) -> None:
    """The proposal is told, its approval, and the recovery."""
    desk.tell()
    approve(desk.engine, desk.command, desk.revision, "Ada")
    desk.tell()
    desk.job.train(561, 570, spiking(ONSET))
    desk.job.roll_back(str(desk.command), 300, at_step=570, position=300)
    desk.job.train(301, 700, segment=1, shift=20, batch=50)
    desk.tell()
    assert set(desk.results()) == {"sent"}, desk.log()


def test_pagerduty_is_triggered_acknowledged_and_resolved_under_one_key(
    desk: Desk, listener: Listener
) -> None:
    desk.channel(
        "pagerduty", target={"routing_key": "R" * 32, "url": listener.url}, cooldown_s=0
    )  # fmt: skip
    live_through(desk)
    events = [request.json() for request in listener.received]
    assert set(listener.paths()) == {"/v2/enqueue"}
    assert {event["dedup_key"] for event in events} == {KEY}
    assert {event["routing_key"] for event in events} == {"R" * 32}
    actions = [event["event_action"] for event in events]
    assert actions == ["trigger", "trigger", "acknowledge", "resolve"]
    payload = events[0]["payload"]
    assert payload["severity"] == "critical"
    assert "decide: roll back" in payload["summary"]
    assert payload.keys() >= {"summary", "source", "severity", "timestamp"}


def test_apprise_is_told_in_words(desk: Desk, listener: Listener) -> None:
    host = listener.url.removeprefix("http://")
    desk.channel("apprise", target={"url": f"json://{host}/hook"})
    desk.tell()
    assert desk.results() == ["sent"], desk.log()
    told = listener.received[0].json()
    assert told["type"] == "failure"
    assert "decide: roll back" in told["title"]
    assert "Costs" in told["message"]


def test_a_service_that_refuses_a_key_is_not_asked_again(desk: Desk, listener: Listener) -> None:
    desk.channel("pagerduty", target={"routing_key": "wrong", "url": listener.url})
    listener.answers = [(401, {})] * 5
    desk.tell()
    desk.later(10_000)
    desk.tell()
    assert desk.results() == ["given_up"]
    assert len(listener.received) == 1
