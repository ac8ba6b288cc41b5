"""What happened while nobody could be told is history by the time that it arrives."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from spikeguard.lines import shortened
from spikeguard.outbox import SEAL_S, Outbox
from spikeguard_protocol import RunId, decode_message, encode
from tests.server.notify.conftest import Desk
from tests.server.notify.listener import Listener
from tests.server.store.jobs import FIRST, Job, columns, healthy, rows, saved_at, spiking

STEP_S = 60.0
CALM, OUTAGE = 400, 120  # steps, the last two hours of them without a server


def held(folder: Path, onset: int) -> Outbox:
    """The agent's outbox as such an outage leaves it: a sender had message 1 in its hands."""
    outbox = Outbox(folder, RunId("default", "gpt"), FIRST, 2**30)
    curve, end = spiking(onset, 3.0, 12), CALM + OUTAGE
    beginning = time.monotonic() - end * STEP_S
    for record in Job.beginning(Job.__new__(Job), None):
        outbox.put(record, beginning)
    for step in range(1, end + 1):
        at = beginning + step * STEP_S
        outbox.put(columns([step], curve if step > CALM else healthy), at)
        if step % 100 == 0:
            outbox.put(saved_at(step), at)
        if step == CALM:
            outbox.next_message()
    return outbox


def told(outbox: Outbox, desk: Desk) -> list[float]:
    """Send all of it as it would travel; returns the messages' ages in seconds."""
    ages = []
    while not outbox.empty:
        message = outbox.next_message()
        assert message is not None
        ages.append(message.age_s)
        desk.job.post(decode_message(encode(shortened(message))))
        outbox.acknowledge(message.sequence)
        desk.tell()
    outbox.close()
    return ages


@pytest.mark.parametrize(("minutes_ago", "tells"), [(25, False), (6, True)])
def test_a_spike_that_ended_long_ago_proposes_nothing_and_pages_nobody_but_a_fresh_one_does(
    calm: Desk, listener: Listener, tmp_path: Path, minutes_ago: int, tells: bool
) -> None:
    """It lasted for 12 minutes; its incident is still open when the outage ends."""
    calm.webhook(listener)
    onset = CALM + OUTAGE - int(minutes_ago * 60.0 / STEP_S)
    told(held(tmp_path / FIRST, onset), calm)
    assert rows(calm.engine, "select count(*) from incidents") == [(1,)]
    assert rows(calm.engine, "select distinct verb from commands") in ([], [("watch",)])
    assert (listener.received != []) is tells


def test_no_message_holds_more_than_half_a_minute_of_the_run(calm: Desk, tmp_path: Path) -> None:
    """A message is as old as its newest sample: its others must not be much older."""
    ages = told(held(tmp_path / FIRST, 10**6), calm)
    assert all(older - newer <= SEAL_S + STEP_S for older, newer in pairwise(ages))
    assert rows(calm.engine, "select count(*) from samples") == [(CALM + OUTAGE,)]
