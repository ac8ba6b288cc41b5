"""What Prometheus hears of messages to people: what went, what did not, what stays behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from spikeguard_server.metrics import Fleet, Metrics
from spikeguard_server.notify.notifier import look
from spikeguard_server.notify.telling import deliver, send_test
from spikeguard_server.store.reads.fleet import read_fleet

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
