"""A run that its owner starts again from before an incident has been rolled back by hand."""

from __future__ import annotations

import math

import sqlalchemy as sql

from spikeguard_protocol import SegmentId, SegmentPoint
from tests.server.store.jobs import FIRST, SECOND, Curve, Job, healthy, rows

ONSET = 431
PROPOSED = "select reason from commands where state = 'proposed'"


def not_finite() -> Curve:
    return lambda step: math.nan if step >= ONSET else healthy(step)


def started_again(engine: sql.Engine, attempt: str, after: str) -> Job:
    job = Job(engine, attempt=attempt)
    job.start(SegmentPoint(SegmentId(after, 0), 400))
    return job


def test_nobody_is_asked_until_it_comes_back_and_then_with_its_batches(engine: sql.Engine) -> None:
    first = Job(engine)
    first.start()
    first.train(1, ONSET + 9, not_finite())
    assert len(rows(engine, PROPOSED)) == 1
    again = started_again(engine, SECOND, FIRST)
    again.train(401, ONSET - 1)
    assert rows(engine, PROPOSED) == []
    assert rows(engine, "select state from incidents") == [("recovering",)]
    again.train(ONSET, ONSET + 9, not_finite())
    ((reason,),) = rows(engine, PROPOSED)
    assert "It came back once." in reason
    assert "skip batches 429 to 433 (5), with which it came back" in reason


def test_one_that_does_not_come_back_has_recovered(engine: sql.Engine) -> None:
    first = Job(engine)
    first.start()
    first.train(1, ONSET + 9, not_finite())
    started_again(engine, SECOND, FIRST).train(401, ONSET + 60)
    assert rows(engine, "select kind, outcome from incidents") == [("divergent", "recovered")]
