"""What agents are told to keep, and that people are shown the same."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sql

from spikeguard_protocol import Medium, Samples, TargetSaved
from spikeguard_server.store.reads.history import read_targets
from spikeguard_server.store.reads.runs import read_run
from spikeguard_server.store.runs import RunRow
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import Job, healthy


def snapshot(step: int) -> TargetSaved:
    return TargetSaved(f"memory-{step}", 0, step, step, Medium.MEMORY)


def shown(engine: sql.Engine, job: Job) -> set[str]:
    with engine.connect() as connection:
        row = read_run(connection, run_key(job.message(sequence=1).run_id), timedelta(seconds=60))
        return {t.row.name for t in read_targets(connection, RunRow.of(row)) if t.protected}


def test_a_warning_keeps_the_newest_from_before_it_and_not_a_newer_one(
    engine: sql.Engine,
) -> None:
    job = Job(engine)
    job.start()

    def watched(first: int, last: int, height: float = 1.0) -> Samples:
        steps = tuple(range(first, last + 1))
        norms = tuple(height * (1.0 + 0.001 * (s % 7)) for s in steps)
        loss = tuple(healthy(s) for s in steps)
        return Samples(0, steps, {"loss": loss, "adam_v_norm": norms}, (None,) * len(steps))

    job.send(watched(1, 200), snapshot(200))
    job.send(watched(201, 203), watched(204, 206, height=50.0), watched(207, 220), snapshot(220))
    ack = job.send(watched(221, 230), snapshot(230))
    assert ack.attentive
    assert ack.protected == ("memory-200",)
    assert shown(engine, job) == {"memory-200"}
