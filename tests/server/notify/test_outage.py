"""What happened while nobody could be told is history by the time that it arrives."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spikeguard.uplink.outbox import Outbox
from spikeguard_protocol import RunId
from tests.server.notify.conftest import Desk
from tests.server.notify.listener import Listener
from tests.server.store.jobs import FIRST, Job, columns, healthy, rows, saved_at, spiking

STEP_S = 60.0
CALM, OUTAGE = 400, 60  # steps, the last hour of them without a server


def held(folder: Path, onset: int, desk: Desk) -> Outbox:
    """The agent's outbox as such an outage leaves it: a sender has a message in its hands."""
    outbox = Outbox(folder, RunId("default", "gpt"), FIRST, 2**30)
    curve, end = spiking(onset, 3.0, 12), CALM + OUTAGE
    cut = time.monotonic() - OUTAGE * STEP_S
    for record in Job.beginning(Job.__new__(Job), None):
        outbox.put(record, cut - 0.1 * CALM)
    for step in range(1, end + 1):
        at = cut + (step - CALM) * (0.1 if step <= CALM else STEP_S)  # quick until then
        outbox.put(columns([step], curve if step > CALM else healthy), at)
        if step % 100 == 0:
            outbox.put(saved_at(step), at)
        if step % 50 == 0 and step <= CALM:
            told(outbox, desk)
    return outbox


def told(outbox: Outbox, desk: Desk) -> None:
    """Send all of it as it would travel."""
    while not outbox.empty:
        message = outbox.next_message()
        assert message is not None
        desk.job.post(message.message)
        outbox.acknowledge(message.sequence)
        desk.tell()


@pytest.mark.parametrize(("minutes_ago", "tells"), [(25, False), (6, True)])
def test_a_spike_that_ended_long_ago_proposes_nothing_and_pages_nobody_but_a_fresh_one_does(
    calm: Desk, listener: Listener, tmp_path: Path, minutes_ago: int, tells: bool
) -> None:
    """It lasted for 12 minutes; its incident is still open when the outage ends."""
    calm.webhook(listener)
    onset = CALM + OUTAGE - int(minutes_ago * 60.0 / STEP_S)
    outbox = held(tmp_path / FIRST, onset, calm)
    told(outbox, calm)
    outbox.close()
    assert rows(calm.engine, "select count(*) from incidents") == [(1,)]
    assert rows(calm.engine, "select distinct verb from commands") in ([], [("watch",)])
    assert (listener.received != []) is tells
