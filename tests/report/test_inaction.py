"""What doing nothing would have cost: told with its range, or not at all and why."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from spikeguard_protocol import Outcome
from spikeguard_server.report import PostMortem
from spikeguard_server.report.cost_table import cost_blocks
from spikeguard_server.report.document import Table
from spikeguard_server.report.inaction import inaction_of
from spikeguard_server.report.lessons import lessons_of
from spikeguard_server.report.wording import duration
from tests.report.story import divergent, healing, lingering


@pytest.fixture(scope="module")
def rolled_back() -> PostMortem:
    return lingering()


def with_branch(facts: PostMortem, excess: list[float]) -> PostMortem:
    """The same with another undone branch: `excess` over the trend, nats, from the onset on."""
    trend, branch, onset = facts.incident.trend, facts.curves[0], facts.incident.onset_step
    assert trend is not None
    noise = 0.5 * trend.scale * np.random.default_rng(3).standard_normal(len(excess))
    steps = tuple(range(onset, onset + len(excess)))
    losses = tuple(trend.at(s) + e + n for s, e, n in zip(steps, excess, noise, strict=True))
    undone = replace(branch, steps=steps, values={"loss": losses}, kept_to=onset - 3)
    return replace(facts, curves=(undone, *facts.curves[1:]))


def test_a_branch_that_did_not_fall_has_no_end_in_sight(rolled_back: PostMortem) -> None:
    found = inaction_of(rolled_back)
    assert found.steps is None
    assert found.least == rolled_back.curves[0].steps[-1] - rolled_back.incident.onset_step + 1
    assert "no end was in sight" in found.sentence


def test_a_branch_that_fell_tells_when_it_would_have_been_back(rolled_back: PostMortem) -> None:
    """1.3 nats over the square root of the steps since the onset: back in the band of 4 deviations
    (0.074 nats) after some 300 steps, of which 120 were seen."""
    found = inaction_of(with_branch(rolled_back, [1.3 / math.sqrt(k) for k in range(1, 121)]))
    assert found.steps is not None
    assert found.low is not None
    assert found.low <= 308 <= (found.high or math.inf)
    assert 200 < found.steps < 480
    assert "95 %" in found.sentence


def test_a_branch_that_was_not_finite_was_lost() -> None:
    assert "the run was lost" in inaction_of(divergent()).sentence


def test_where_nothing_was_done_it_is_what_the_incident_cost() -> None:
    assert inaction_of(healing()).same


def test_what_no_branch_shows_is_not_known(rolled_back: PostMortem) -> None:
    short = with_branch(rolled_back, [1.0] * 5)
    assert "5 steps with a loss after the onset, too few" in inaction_of(short).sentence
    untrended = replace(rolled_back, incident=replace(rolled_back.incident, trend=None))
    assert "had no trend yet" in inaction_of(untrended).sentence
    ended = replace(rolled_back.incident, outcome=Outcome.RUN_ENDED)
    assert inaction_of(replace(rolled_back, incident=ended)).least is not None


def test_what_was_left_undone_is_priced_at_the_pace_of_the_steps_that_were_undone(
    rolled_back: PostMortem,
) -> None:
    """Both columns are of one run: a job that trains slower than before the spike would seem to
    gain time by being left alone."""
    branch = rolled_back.curves[0]
    slow = replace(branch, values={**branch.values, "step_time": (3.0,) * len(branch.steps)})
    facts = replace(rolled_back, curves=(slow, *rolled_back.curves[1:]))
    alone = inaction_of(facts)
    assert alone.least is not None
    table = cost_blocks(facts)[0]
    assert isinstance(table, Table)
    times = next(row for row in table.rows if row[0] == "Time")
    assert times[2] == f"{duration(3.0 * alone.least)} and more"


def test_a_near_target_is_no_lesson_where_the_run_would_have_come_back_alone(
    rolled_back: PostMortem,
) -> None:
    near = "What went well: a target"
    assert any(near in text for text in lessons_of(rolled_back))
    alone = with_branch(rolled_back, [1.5 * math.exp(-k / 8) for k in range(1, 121)])
    assert "it would have cost about as much" in inaction_of(alone).sentence
    assert not any(near in text for text in lessons_of(alone))
