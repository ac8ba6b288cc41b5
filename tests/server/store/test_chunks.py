"""Chunks and roll-ups: what goes in comes out, step by step, however it was cut."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sql

from spikeguard_protocol import BatchRange, RunId, Samples
from spikeguard_server.jobs.housekeeping import roll
from spikeguard_server.store.chunks import SegmentKey, read_curves, rollups_in_parts
from spikeguard_server.store.curves import Curves
from spikeguard_server.store.reads.series import Window, read_series
from spikeguard_server.store.roll_ups import BLOCK, SPAN
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
    job = Job(engine)
    job.start()
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


def test_a_step_that_comes_again_fills_in_and_overwrites_nothing(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.send(sent([1, 2, 3, 4], loss=(1.0, 2.0, None, 4.0)))
    job.send(sent([6, 7], loss=(6.0, 7.0)))
    job.send(
        sent([2, 3, 5, 7], loss=(9.0, 3.0, 5.0, 9.0), lr=(0.1, 0.1, 0.1, None), own=(1.0,) * 4)
    )
    back = stored(engine)
    assert back.steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert back.signals["loss"].list() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert back.signals["lr"].list() == [None, 0.1, 0.1, None, 0.1, None, None]
    assert back.signals["own"].list() == [None, 1.0, 1.0, None, 1.0, None, 1.0]
    assert value(engine, "select count(*) = count(distinct step) from samples") is True


def test_a_message_writes_stored_values_anew_within_bounds_and_the_audit_says_what_is_left_out(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 kB of records that fill in two steps each took 68 s of a core and 2.7 GB of disk."""
    job = Job(engine)
    job.start()
    job.send(columns(range(0, 8 * BLOCK, 2), lambda _: 2.0, shift=1))
    late = [sent([4 * n + 1, 8 * BLOCK - 4 * n - 3], loss=(9.0, 9.0)) for n in range(20)]
    with monkeypatch.context() as patch:
        patch.setattr("spikeguard_server.ingest.records.MOST_REWRITTEN", 60_000)
        job.send(*late, sent([8 * BLOCK], loss=(3.0,)))
    filled = int(value(engine, "select count(*) from samples where step % 2 = 1"))
    assert 2 <= filled < 20
    assert value(engine, "select max(step) from samples") == 8 * BLOCK  # what is new is stored
    left = "select count(*) from audit where action = 'samples.left_out'"
    assert value(engine, left) == 1
    job.send(*late)
    assert value(engine, "select count(*) from samples where step % 2 = 1") == 40
    assert value(engine, left) == 1


def test_a_roll_up_keeps_the_extremes_of_every_stretch_as_whole_samples(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    count = 3 * BLOCK + 100
    loss = CURVE.normal(2.0, 0.01, count).tolist()
    loss[700], loss[1500], loss[2000] = 99.0, math.nan, -99.0
    for begin in range(0, count, 500):
        part = range(begin + 1, min(begin + 500, count) + 1)
        job.send(columns(part, lambda s: loss[s - 1]))
    roll(engine)
    assert value(engine, "select rolled_to from segments") == 3 * BLOCK
    with engine.connect() as connection:
        [(curves, stands_for)] = rollups_in_parts(connection, KEY, 0, 10**6)
    assert stands_for == 3 * BLOCK - 1
    kept = dict(zip(curves.steps.tolist(), curves.signals["loss"].list(), strict=True))
    assert (kept[701], kept[2001]) == (99.0, -99.0)
    assert math.isnan(kept[1501] or 0.0)
    for begin in range(0, 3 * BLOCK, SPAN):
        stretch = [v for s, v in enumerate(loss, 1) if begin <= s < begin + SPAN]
        mine = [v for s, v in kept.items() if begin <= s < begin + SPAN and v is not None]
        finite = [v for v in stretch if math.isfinite(v)]
        assert {min(finite), max(finite)} <= set(mine)
    assert all(c.there.all() for c in curves.signals.values())


def test_what_changes_behind_a_roll_up_is_rolled_up_anew(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.train(1, 2 * BLOCK, batch=512, save_every=10**9)
    roll(engine)
    job.send(sent([300], mine=(7.0,)))
    assert value(engine, "select rolled_to from segments") == 0
    roll(engine)
    assert value(engine, "select rolled_to from segments") == 2 * BLOCK
    with engine.connect() as connection:
        [(curves, stands_for)] = rollups_in_parts(connection, KEY, 0, 10**6)
    assert curves.signals["mine"].values[curves.signals["mine"].there].tolist() == [7.0]
    assert stands_for == 2 * BLOCK - 1  # there is no step 0


@pytest.mark.parametrize("rolled", [False, True], ids=["from samples", "from roll-ups"])
def test_any_window_keeps_its_extremes_in_no_more_points_than_asked(
    engine: sql.Engine, rolled: bool
) -> None:
    job = Job(engine)
    job.start()
    count = 8 * BLOCK
    loss = CURVE.normal(2.0, 0.01, count).tolist()
    for begin in range(0, count, 2000):
        part = range(begin + 1, min(begin + 2000, count) + 1)
        job.send(columns(part, lambda s: loss[s - 1]))
    while rolled and value(engine, "select rolled_to from segments") != count:
        roll(engine)
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
