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
