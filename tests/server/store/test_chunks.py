"""Chunks: what goes in comes out, step by step, however it was cut."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import sqlalchemy as sql

from spikeguard_protocol import BatchRange, RunId, Samples
from spikeguard_server.jobs.ticker import compact_behind
from spikeguard_server.store.chunks import CHUNK, SegmentKey, read_curves
from spikeguard_server.store.curves import Curves
from spikeguard_server.store.reads.series import Window, read_series
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import Job, columns, rows, value

KEY = SegmentKey(run_key(RunId("default", "gpt")), 1, 0)
CURVE = np.random.default_rng(7)
MOST = 1.7976931348623157e308


def sent(steps: list[int], **signals: tuple[float | None, ...]) -> Samples:
    return Samples(0, tuple(steps), dict(signals), (None,) * len(steps))


def stored(engine: sql.Engine, first: int = 0, last: int = 10**6) -> Curves:
    with engine.connect() as connection:
        return read_curves(connection, KEY, first, last)


def series(engine: sql.Engine, *signals: str, **window: int) -> dict[str, Any]:
    with engine.connect() as connection:
        return read_series(connection, KEY.run_id, Window(signals, **window))


def test_every_shape_of_a_message_is_read_back_step_by_step(engine: sql.Engine) -> None:
    """Gaps between steps, holes in columns, signals of the user's own, batches of all kinds."""
    job = Job(engine).start()
    even = (BatchRange(0, 2), BatchRange(2, 4), BatchRange(4, 6))
    odd = (BatchRange(6, 7), None, BatchRange(9, 12))
    job.send(Samples(0, (1, 2, 3), {"loss": (1.0, math.nan, None), "mine": (None, 2.0, 3.0)}, even))
    job.send(
        Samples(0, (5, 8, 9), {"loss": (5.0, math.inf, 9.0), "my.b": (5e-324, None, MOST)}, odd)
    )
    back = stored(engine).samples()
    assert [s.step for s in back] == [1, 2, 3, 5, 8, 9]
    assert [s.batches for s in back] == [*even, *odd]
    assert [sorted(s.values) for s in back] == [
        ["loss"], ["loss", "mine"], ["mine"], ["loss", "my.b"], ["loss"], ["loss", "my.b"],
    ]  # fmt: skip
    assert math.isnan(back[1].values["loss"])
    assert back[4].values["loss"] == math.inf
    assert [back[3].values["my.b"], back[5].values["my.b"]] == [5e-324, MOST]
    seen = rows(engine, "select step, loss, batch_first, batch_end from samples order by step")
    assert [row[0] for row in seen] == [1, 2, 3, 5, 8, 9]
    assert [row[2:] for row in seen] == [
        (0, 2), (2, 4), (4, 6), (6, 7), (None, None), (9, 12),
    ]  # fmt: skip


def test_steps_that_come_again_or_late_are_not_stored_and_count_as_dropped(
    engine: sql.Engine,
) -> None:
    job = Job(engine).start()
    job.send(sent([1, 2, 3, 4], loss=(1.0, 2.0, None, 4.0)))
    job.send(sent([6, 7], loss=(6.0, 7.0)))
    late = sent([3, 5, 7, 8, 9], loss=(3.0, 5.0, 9.0, 8.0, 9.0), own=(1.0, 2.0, 3.0, 4.0, None))
    job.send(late, sent([2, 9], loss=(9.0, 9.0)))
    back = stored(engine)
    assert back.steps.tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert back.signals["loss"].list() == [1.0, 2.0, None, 4.0, 6.0, 7.0, 8.0, 9.0]
    assert back.signals["own"].list() == [None] * 6 + [4.0, None]
    assert value(engine, "select count(*) = count(distinct step) from samples") is True
    assert value(engine, "select last_step from segments") == 9
    assert value(engine, "select dropped_samples from attempts") == 5


def test_small_chunks_become_one_a_block_and_are_read_as_before(engine: sql.Engine) -> None:
    """Live messages hold few samples each: a long run would be read from a row a step."""
    job = Job(engine).start()
    loss = CURVE.normal(2.0, 0.01, 2 * CHUNK + 10).tolist()
    loss[700], loss[1500] = math.inf, math.nan
    for begin in range(0, len(loss), 64):
        part = range(begin + 1, min(begin + 64, len(loss)) + 1)
        job.send(columns(part, lambda s: loss[s - 1]))
    before = stored(engine).samples()
    compact_behind(engine)
    chunks = "select count(*) from chunks"
    assert value(engine, f"{chunks} where last_step < {2 * CHUNK}") <= 2 * 2
    assert repr(stored(engine).samples()) == repr(before)


def test_any_window_keeps_its_extremes_in_no_more_points_than_asked(engine: sql.Engine) -> None:
    job = Job(engine).start()
    count = 8 * CHUNK
    loss = CURVE.normal(2.0, 0.01, count).tolist()
    for begin in range(0, count, 2000):
        part = range(begin + 1, min(begin + 2000, count) + 1)
        job.send(columns(part, lambda s: loss[s - 1]))
    for first, last, points in (
        (1, count, 60),
        (300, 7_900, 60),
        (5000, 5600, 50),
        (1, 900, 2000),
    ):
        found = series(engine, "loss", first=first, last=last, points=points)
        (segment,) = found["segments"]
        inside, shown = loss[first - 1 : last], segment["values"]["loss"]
        assert len(shown) <= points
        assert (min(shown), max(shown)) == (min(inside), max(inside))
        assert (segment["steps"][0], segment["steps"][-1]) == (first, last)
        assert all(loss[s - 1] == v for s, v in zip(segment["steps"], shown, strict=True))
        assert found["truncated"] is (last - first + 1 > points)
