"""What is stored of batches is bounded, and stays with the incident that they are near."""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_core.diagnosis.batch_evidence import NEAR
from spikeguard_protocol import BatchDetail, SegmentStarted
from spikeguard_protocol.vocabulary import SegmentReason
from spikeguard_server.store.batches import KEPT_STEPS, RANKS
from tests.server.store.jobs import Job, columns, spiking

ONSET = 121  # of `spiking`


def batch(step: int, rank: int = 0, segment: int = 0) -> BatchDetail:
    return BatchDetail(segment, step, rank, step)


def steps(engine: sql.Engine) -> list[int]:
    with engine.connect() as connection:
        found = connection.execute(sql.text("select step from batch_details order by step, rank"))
        return list(found.scalars())


def test_batches_that_no_incident_is_near_go_and_those_near_one_stay(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.send(*(batch(step) for step in range(1, 41)))
    job.send(columns(range(1, ONSET + 20), spiking(ONSET)))
    job.send(*(batch(step) for step in range(41, 400)))
    near = range(ONSET - NEAR, ONSET + NEAR + 1)
    newest = range(400 - KEPT_STEPS, 400)
    assert steps(engine) == sorted({*near, *newest})
    job.send(SegmentStarted(1, SegmentReason.ROLLBACK, None, 500), batch(150, segment=1))
    assert steps(engine) == [*near, 150]


def test_of_a_step_no_more_ranks_are_kept_than_can_be_looked_at(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.send(*(batch(7, rank) for rank in range(50)))
    assert steps(engine) == [7] * RANKS
