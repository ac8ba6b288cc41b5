"""Chunks and roll-ups: what goes in comes out, step by step, however it was cut."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sql
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spikeguard_protocol import BatchRange, RunId, Samples
from spikeguard_server.jobs.housekeeping import roll
from spikeguard_server.store.chunks import MOST_BLOCKS, SegmentKey, read_curves, rollups_in_parts
from spikeguard_server.store.curves import Column, Curves, keep
from spikeguard_server.store.packing import packed
from spikeguard_server.store.pipeline import ask
from spikeguard_server.store.reads.series import Window, read_series
from spikeguard_server.store.roll_ups import BLOCK, SPAN
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import Job, columns, rows, same_number, value

KEY = SegmentKey(run_key(RunId("default", "gpt")), 1, 0)
EXAMPLES = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CURVE = np.random.default_rng(7)


def sent(steps: list[int], **signals: tuple[float | None, ...]) -> Samples:
    return Samples(0, tuple(steps), dict(signals), (None,) * len(steps))


def stored(engine: sql.Engine, first: int = 0, last: int = 10**6) -> Curves:
    with engine.connect() as connection:
        return read_curves(connection, KEY, first, last)


def series(engine: sql.Engine, *signals: str, **window: int) -> dict[str, Any]:
    with engine.connect() as connection:
        return read_series(connection, KEY.run_id, Window(signals, **window))


@EXAMPLES
@given(floats=st.lists(st.none() | st.floats(), max_size=30))
def test_a_packed_array_comes_back_as_it_went(
    engine: sql.Engine, floats: list[float | None]
) -> None:
    there = np.array([v is not None for v in floats], bool)
    column = packed(np.array([v or 0.0 for v in floats], float), there)
    with engine.connect() as connection:
        ((back,),) = ask(connection, ("SELECT %(sent)s", {"sent": column}))[0]
    assert all(same_number(a, b or 0.0 if b is not None else None)
               for a, b in zip(back, floats, strict=True))  # fmt: skip


def test_every_shape_of_a_message_is_read_back_step_by_step(engine: sql.Engine) -> None:
    """Gaps between steps, holes in columns, signals of the user's own, batches of all kinds."""
    job = Job(engine)
    job.start()
    even = (BatchRange(0, 2), BatchRange(2, 4), BatchRange(4, 6))
    odd = (BatchRange(6, 7), None, BatchRange(9, 12))
    job.send(Samples(0, (1, 2, 3), {"loss": (1.0, math.nan, None), "mine": (None, 2.0, 3.0)}, even))
    job.send(Samples(0, (5, 8, 9), {"loss": (5.0, math.inf, 9.0), "my.b": (5.5, None, 9.5)}, odd))
    back = stored(engine).samples()
    assert [s.step for s in back] == [1, 2, 3, 5, 8, 9]
    assert [s.batches for s in back] == [*even, *odd]
    assert [sorted(s.values) for s in back] == [
        ["loss"], ["loss", "mine"], ["mine"], ["loss", "my.b"], ["loss"], ["loss", "my.b"],
    ]  # fmt: skip
    assert math.isnan(back[1].values["loss"])
    assert back[4].values["loss"] == math.inf
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


def test_chunks_between_two_steps_that_come_late_stay_as_they_are(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    for begin in range(0, 8 * BLOCK, 2 * BLOCK):
        job.send(columns(range(begin, begin + 2 * BLOCK, 2), lambda _: 2.0, shift=1))
    which = "select first_step, xmin::text from chunks"
    before = dict(rows(engine, which))
    late = [3, 8 * BLOCK - 5]
    job.send(sent(late, loss=(9.0, 9.0)))
    after = dict(rows(engine, which))
    assert [first for first in before if before[first] == after[first]] == [2 * BLOCK, 4 * BLOCK]
    back = stored(engine)
    assert len(back) == 4 * BLOCK + 2
    assert back.at(np.isin(back.steps, late)).signals["loss"].list() == [9.0, 9.0]


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


def test_filling_in_among_other_steps_takes_of_the_time_that_a_run_has_for_what_is_stored(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three records of 40 steps took 2.5 s of a core beside 120 signals, message after message."""
    monkeypatch.setattr("spikeguard_server.ingest.detector_rebuild.MOST_S", 0.04)
    job = Job(engine)
    job.start()
    job.send(columns(range(0, 16 * BLOCK, 2), lambda _: 2.0, shift=1))
    for n in range(8):
        job.send(sent([2 * n + 1, 16 * BLOCK - 2 * n - 3], loss=(9.0, 9.0)))
    assert 2 <= int(value(engine, "select count(*) from samples where step % 2 = 1")) < 16
    left = int(value(engine, "select count(*) from audit where action = 'samples.left_out'"))
    assert 0 < left < 8
    told = columns(range(17 * BLOCK, 17 * BLOCK + 8), lambda _: 2.0)
    job.send(told, sent(list(told.steps), own=(1.0,) * 8))  # in two records, as of many signals
    assert value(engine, "select count(*) from samples where extra_names is not null") == 8
    assert value(engine, "select count(*) from audit where action = 'samples.left_out'") == left


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


def test_small_chunks_become_one_and_every_step_stays(engine: sql.Engine) -> None:
    job = Job(engine)
    job.start()
    job.train(1, BLOCK + 10, batch=40, save_every=10**9)
    before = rows(engine, "select step, loss, grad_norm, batch_end from samples order by step")
    assert value(engine, "select count(*) from chunks") > 20
    roll(engine)
    assert value(engine, "select count(*) from chunks") <= 3
    assert (
        rows(engine, "select step, loss, grad_norm, batch_end from samples order by step") == before
    )


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


def test_a_step_that_comes_late_between_blocks_that_were_passed_over_is_shown(
    engine: sql.Engine,
) -> None:
    job = Job(engine)
    job.start()
    job.send(columns(range(1, 2 * BLOCK), lambda _: 2.0))
    job.send(columns(range(6 * BLOCK, 8 * BLOCK + 1), lambda _: 2.0))
    for _ in range(4):
        roll(engine)
    late = 4 * BLOCK + 7
    job.send(sent([late], loss=(9.0,)))
    for _ in range(4):
        roll(engine)
    [segment] = series(engine, "loss", points=20)["segments"]
    assert late in segment["steps"]
    assert max(segment["values"]["loss"]) == 9.0


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


@given(st.lists(st.none() | st.floats(), min_size=1, max_size=60), st.integers(1, 20))
def test_thinning_keeps_every_extreme_of_every_stretch(
    column: list[float | None], width: int
) -> None:
    steps = np.arange(len(column))
    there = np.array([v is not None for v in column])
    curves = Curves(steps, {"x": Column(np.array([v or 0.0 for v in column]), there)})
    kept = set(keep(curves, ["x"], steps // width).tolist())
    for begin in range(0, len(column), width):
        part = [
            (i, v or 0.0)
            for i, v in enumerate(column)
            if begin <= i < begin + width and v is not None
        ]
        finite = [v for _, v in part if math.isfinite(v)]
        mine = [v for i, v in part if i in kept]
        assert not finite or {min(finite), max(finite)} <= set(mine)
        assert not [v for _, v in part if not math.isfinite(v)] or any(
            not math.isfinite(v) for v in mine
        )
    assert len(kept) <= 2 + 3 * (1 + (len(column) - 1) // width)


def test_two_steps_at_both_ends_of_a_run_are_filled_in_without_the_run_between_them(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spikeguard_server.store.chunks.AT_ONCE", 150)
    job = Job(engine)
    job.start()
    for first in range(1, 2000, 100):
        job.train(first, first + 99, batch=100, save_every=10**9)
    written = "select first_step, xmin::text from chunks order by first_step"
    before = dict(rows(engine, written))
    job.send(sent([5, 1950, 5000], mine=(1.0, 2.0, 3.0)))
    after = dict(rows(engine, written))
    assert {first for first in before if after.get(first) == before[first]} == {
        first for first in before if first not in (1, 1901)
    }
    back = {sample.step: sample.values for sample in stored(engine).samples()}
    assert [*back] == [*range(1, 2001), 5000]
    assert [back[step]["mine"] for step in (5, 1950, 5000)] == [1.0, 2.0, 3.0]
    assert back[5]["loss"] > 0
    assert sum("mine" in values for values in back.values()) == 3


def test_a_long_way_is_rolled_up_a_few_steps_at_a_time(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read at once depends on how much lies there, not on how many chunks hold it."""
    job = Job(engine)
    job.start()
    for first in range(0, 9 * BLOCK, 512):
        job.train(first, first + 511, batch=512, save_every=10**9, shift=1)
    monkeypatch.setattr("spikeguard_server.store.chunks.AT_ONCE", 2 * BLOCK)
    reached = list[int]()
    while not reached or reached[-1] < 9 * BLOCK:
        roll(engine)
        reached.append(value(engine, "select rolled_to from segments"))
    assert reached == [2 * BLOCK, 4 * BLOCK, 6 * BLOCK, 8 * BLOCK, 9 * BLOCK]
    assert rows(engine, "select first_step, count from rollups order by 1") == [
        (block * BLOCK, BLOCK) for block in range(9)
    ]


def test_blocks_of_few_samples_have_one_roll_up_together(engine: sql.Engine) -> None:
    """One each, with the names of 60 signals of a job's own, was 46 times what the job had sent."""
    job = Job(engine)
    job.start()
    steps = range(1, 600 * BLOCK, BLOCK)
    loss = CURVE.normal(2.0, 0.01, 601).tolist()
    told = columns(steps, lambda s: loss[s // BLOCK])
    job.send(replace(told, signals={**told.signals, "n" * 64: (1.0,) * len(steps)}))
    job.send(columns(range(600 * BLOCK, 602 * BLOCK), lambda _: 2.0))
    while value(engine, "select rolled_to from segments") != 602 * BLOCK:
        roll(engine)
    spans = rows(engine, "select first_step, last_step, count from rollups order by 1")
    assert [count for _, _, count in spans] == [SPAN, SPAN, 600 - 2 * SPAN, BLOCK, BLOCK]
    inner = 300 * BLOCK + 5  # within the second one
    for first, last in ((1, 602 * BLOCK - 1), (inner, 602 * BLOCK - 1), (1, inner), (inner, 2**53)):
        (segment,) = series(engine, "loss", first=first, last=last, points=300)["segments"]
        inside = [loss[s // BLOCK] for s in steps if first <= s <= last]
        shown = segment["values"]["loss"]
        assert first <= min(segment["steps"]) <= max(segment["steps"]) <= last
        assert {min(inside), max(inside)} <= set(shown)
    job.send(sent([inner], loss=(9.0,)))
    assert value(engine, "select rolled_to from segments") == SPAN * BLOCK
    while value(engine, "select rolled_to from segments") != 602 * BLOCK:
        roll(engine)
    (segment,) = series(engine, "loss", points=300)["segments"]
    assert max(segment["values"]["loss"]) == 9.0
    assert value(engine, "select sum(count) from rollups") == 601 + 2 * BLOCK


def test_a_look_at_a_run_whose_steps_lie_far_apart_takes_little_memory(engine: sql.Engine) -> None:
    """Each of its samples has a roll-up of its own; the newest are read, some at a time."""
    job = Job(engine)
    job.start()
    job.send(sent([1], loss=(2.0,)))
    blocks = MOST_BLOCKS + 5000
    with engine.begin() as connection:
        for statement in (
            "insert into rollups (run_id, attempt, segment, week, first_step, last_step, count,"
            " loss) select run_id, attempt, segment, week, n * 1024, n * 1024, 1, '{2.0}'"
            f" from segments cross join generate_series(1, {blocks}) n",
            f"update segments set last_step = {blocks + 1} * 1024 - 1,"
            f" rolled_to = {blocks + 1} * 1024",
        ):
            connection.execute(sql.text(statement))
    tracemalloc.start()
    shown = series(engine, "loss", points=200)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20
    assert shown["truncated"]
    steps = shown["segments"][0]["steps"]
    assert (steps[0], steps[-1]) == ((blocks - MOST_BLOCKS + 1) * 1024, blocks * 1024)
    assert len(steps) <= 200


def test_curves_that_are_read_in_parts_keep_their_extremes(
    engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spikeguard_server.store.chunks.AT_ONCE", 300)
    monkeypatch.setattr("spikeguard_server.store.chunks.BLOCKS_AT_ONCE", 2)
    job = Job(engine)
    job.start()
    count = 9 * BLOCK
    loss = CURVE.normal(2.0, 0.01, count).tolist()
    loss[40], loss[3000], loss[5000], loss[-1] = 99.0, math.nan, -99.0, 77.0
    for begin in range(0, count, 250):
        part = range(begin + 1, min(begin + 250, count) + 1)
        job.send(columns(part, lambda s: loss[s - 1]))
    for _ in range(2):  # from samples, then from roll-ups
        found = series(engine, "loss", points=50)["segments"][0]
        kept = dict(zip(found["steps"], found["values"]["loss"], strict=True))
        assert {kept[41], kept[5001], kept[count]} == {99.0, -99.0, 77.0}
        assert math.isnan(kept[3001])
        assert sorted(kept) == found["steps"]
        assert len(kept) <= 50
        while value(engine, "select coalesce(min(rolled_to), 0) from segments") < count:
            roll(engine)
