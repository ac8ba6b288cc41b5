"""History is a tree, and the detector's decisions are a function of it alone."""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_protocol import SegmentId, SegmentPoint
from tests.server.store.jobs import (
    FIRST,
    SECOND,
    Job,
    healthy,
    rows,
    spiking,
)


def test_a_rollback_overwrites_nothing(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.train(1, 320)
    job.roll_back("gpt#1.1", 200, at_step=320, position=200)
    job.train(201, 260, lambda step: healthy(step) + 0.001, segment=1, shift=20)
    both = "select segment, loss from samples where step = 250 order by segment"
    assert rows(engine, both) == [(0, healthy(250)), (1, healthy(250) + 0.001)]
    tree = "select segment, parent_segment, parent_step, first_step, last_step from segments"
    assert rows(engine, f"{tree} order by segment") == [
        (0, None, None, 1, 320),
        (1, 0, 200, 201, 260),
    ]


def test_the_detector_goes_on_from_where_the_run_was_and_is_not_blind(engine: sql.Engine) -> None:
    """A spike a few steps after a rollback or a restart is seen by the warm baseline."""
    job = Job(engine)
    job.start()
    job.train(1, 320)
    new = Job(engine, attempt=SECOND, age_s=0.0)
    new.start(SegmentPoint(SegmentId(FIRST, 0), 250))
    new.train(251, 280, spiking(258))
    assert rows(engine, "select onset_step, attempt, segment from incidents") == [(258, 2, 0)]
