"""Ranks that have parted reach a person, while the loss is as calm as ever."""

from __future__ import annotations

from dataclasses import replace

from tests.server.notify.conftest import Desk
from tests.server.notify.listener import Listener
from tests.server.store.jobs import columns, healthy


def test_ranks_that_have_parted_page_somebody_with_the_rank_and_a_way_back(
    calm: Desk, listener: Listener
) -> None:
    calm.webhook(listener)
    calm.job.start()
    calm.job.train(1, 200, batch=100)
    for step, apart in ((201, 0.0), (202, 1.0)):
        row = columns([step], healthy)
        compared = {"replicas_apart": (apart,), "replica_apart": (5.0 if apart else None,)}
        calm.job.send(replace(row, signals={**row.signals, **compared}))
    calm.tell()
    (page,) = [request.json() for request in listener.received]
    assert page["title"].startswith("gpt#1: ranks apart, decide: roll back to ")
    assert page["urgency"] == "urgent"
    assert "1 rank (rank 5) no longer holds the weights of the others" in page["text"]
    assert "all were equal at step 201" in page["text"]
