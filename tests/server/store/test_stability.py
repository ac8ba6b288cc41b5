"""How stable a run is comes from its stored samples, whatever restarts or goes back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sql

from spikeguard_protocol import Samples, SegmentId, SegmentPoint, SegmentReason, SegmentStarted
from spikeguard_server.access.grants import put_policy
from spikeguard_server.jobs.housekeeping import roll
from spikeguard_server.jobs.stability import look_at_stability
from spikeguard_server.jobs.ticker import Ticker
from spikeguard_server.settings import Settings
from spikeguard_server.store.stability import runs_moved_on
from tests.server.store.jobs import Job, healthy, rows
from tests.server.store.test_housekeeping import until_true

Value = Callable[[int], float | None]


def sent(job: Job, steps: Sequence[int], segment: int = 0, **signals: Value) -> None:
    """Samples of `steps`, 100 a message."""
    for begin in range(0, len(steps), 100):
        part = steps[begin : begin + 100]
        columns = {name: tuple(of(s) for s in part) for name, of in signals.items()}
        job.send(Samples(segment, tuple(part), columns, (None,) * len(part)))


def told(engine: sql.Engine) -> tuple[Any, list[Any]]:
    """What is known of the one run, after a look."""
    look_at_stability(engine)
    [(found, trends)] = rows(engine, "select stability, trends from run_stability")
    return found, trends


def calm(step: int) -> float:
    return 2.5 + 0.02 * random.Random(step).gauss(0, 1)


def norm(step: int) -> float:
    return 1.0 + 0.05 * random.Random(-step).gauss(0, 1)


def test_shares_are_of_what_was_stored_and_the_same_after_chunks_were_put_together(
    engine: sql.Engine,
) -> None:
    job = Job(engine)
    job.start()
    sent(
        job, range(1, 1_501), loss=lambda s: math.nan if s in (700, 701) else calm(s),
        grad_norm=norm, grad_clipped=lambda s: float(s % 2), update_dropped=lambda s: float(s < 4),
        step_skipped=lambda s: 1.0 if s == 9 else None,
    )  # fmt: skip
    found, trends = told(engine)
    assert trends == []
    assert found["steps"] == 1_500
    assert (found["clipped"], found["skipped"]) == (0.5, 4 / 1_500)
    assert (found["non_finite"], found["spiking"]) == (2 / 1_500, 0.0)
    assert found["score"] == pytest.approx(0.4)
    assert "are clipped, the target is 20.00%" in found["advice"]
    roll(engine)
    sent(job, range(1_501, 1_601), loss=calm)
    again, _ = told(engine)
    assert again["steps"] == 1_600
    assert (again["clipped"], again["skipped"]) == (750 / 1_600, 4 / 1_600)


def test_what_a_rollback_undid_was_trained_all_the_same(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    sent(job, range(1, 501), loss=lambda s: calm(s) + 3.0 * (s in (450, 460, 470)))
    before, _ = told(engine)
    assert before["spiking"] == 3 / 500
    parent = SegmentPoint(SegmentId(job.attempt, 0), 440)
    job.send(SegmentStarted(1, SegmentReason.ROLLBACK, parent, 440, None))
    sent(job, range(441, 701), 1, loss=calm)
    after, _ = told(engine)
    assert (after["steps"], after["spiking"]) == (760, 3 / 760)


def test_a_run_is_looked_at_again_once_it_trained_on(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.train(1, 90)

    def due() -> int:
        with engine.connect() as connection:
            return len(runs_moved_on(connection, 10))

    assert due() == 0
    job.train(91, 100)
    assert due() == 1
    assert told(engine) == (None, [])  # of so few steps nothing is said
    assert due() == 0
    job.train(101, 300)
    found, _ = told(engine)
    assert (found["steps"], found["score"], found["advice"]) == (300, 1.0, "")


def test_the_ticker_looks_without_being_asked(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.train(1, 300)
    ticker = Ticker(Settings(tick_s=0.05), engine)
    ticker.start()
    try:
        until_true(engine, "select count(stability) from run_stability")
    finally:
        ticker.stop()


def test_growth_towards_a_limit_of_the_policy_is_told_and_what_was_trained_anew_counts_once(
    engine: sql.Engine,
) -> None:
    job = Job(engine)
    job.start()

    def logit(step: int) -> float | None:
        return 20.0 + 0.01 * step + random.Random(step).gauss(0, 1) if step % 10 == 0 else None

    def weights(step: int) -> float | None:
        return 50.0 + 0.002 * step if step % 10 == 2 else None

    sent(job, range(1, 3_001), loss=healthy, attention_logit_max=logit, param_norm=weights)
    _, [trend] = told(engine)
    assert (trend["signal"], trend["limit"]) == ("attention_logit_max", 100.0)
    assert trend["reached_at"] == pytest.approx(8_000, rel=0.05)
    assert f"reaches 100 at step {trend['reached_at']:,}" in trend["sentence"]
    parent = SegmentPoint(SegmentId(job.attempt, 0), 2_800)
    job.send(SegmentStarted(1, SegmentReason.ROLLBACK, parent, 2_800, None))
    with engine.begin() as connection:
        limits = {"param_norm_limit": 60.0, "attention_logit_limit": 1e6}
        put_policy(connection, "default", limits, "ada")
    sent(job, range(2_801, 3_201), 1, loss=healthy, attention_logit_max=logit, param_norm=weights)
    _, [trend] = told(engine)
    assert (trend["signal"], trend["reached_at"]) == ("param_norm", pytest.approx(5_000, rel=0.01))
