"""What is stored of batches is bounded, and stays with the incident that they are near."""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_core.diagnosis.batch_evidence import NEAR
from spikeguard_protocol import BatchDetail
from spikeguard_server.store.batches import KEPT
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
    for some in (range(41, 400), range(400, 700)):
        job.send(*(batch(step, rank) for step in some for rank in (0, 3)))
    near = [step for step in range(ONSET - NEAR, ONSET + NEAR + 1) for _ in (0, 3)]
    newest = [step for step in range(700 - KEPT // 2, 700) for _ in (0, 3)]
    assert steps(engine) == [*near, *newest]


def test_what_a_rank_told_of_a_step_stands(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.send(batch(7), batch(7, 1), batch(7))
    job.send(batch(7, 1))
    assert steps(engine) == [7, 7]
