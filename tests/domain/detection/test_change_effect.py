"""A change is judged by what followed it, against the trend from before, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.change_effect import (
    BEFORE,
    MOST_STEPS,
    Effect,
    ExpectedEffect,
    above_trend,
    branch_effect,
    effect_of,
    effect_words,
    expectation_words,
    judged_after,
    learning_rate_change,
)
from spikeguard_core.events import Trend
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import BatchRange
from tests.domain.detection.curves import ar_noise

CHANGED = 2000


def loss(step: int, seed: int = 0) -> float:
    return 2.0 + 4.0 * math.pow(step + 1, -0.3) + Random(step * 1000 + seed).gauss(0, 0.02)


def trend_at(step: int, seed: int = 0) -> Trend:
    """Where a run that trained up to `step` is heading."""
    monitor = Monitor()
    monitor.observe([Sample(s, {"loss": loss(s, seed)}) for s in range(1, step + 1)])
    found = monitor.heading(step)
    assert found is not None
    return found


def before(seed: int = 0) -> list[tuple[int, float]]:
    return [(step, loss(step, seed)) for step in range(CHANGED - 127, CHANGED + 1)]


def after(shift: float, seed: int = 0) -> list[tuple[int, float]]:
    steps = range(CHANGED + 1, CHANGED + MOST_STEPS + 1)
    return [(step, loss(step, seed) + shift) for step in steps]


def judge(seed: int) -> Effect | str:
    return effect_of(trend_at(CHANGED, seed), CHANGED, before(seed), after(0.0, seed))


def test_where_nothing_was_changed_the_interval_holds_nothing_as_often_as_it_says() -> None:
    """Of correlated noise about a power law a mean lies off its trend more often than its rows'
    noise and the trend's own descent say."""
    held = list[bool]()
    for seed in range(12):
        monitor, noise = Monitor(), ar_noise(1_299, seed, 0.04, 0.3)
        rows = [(n, float(1.5 + 3.0 * n**-0.35 + noise[n - 1])) for n in range(1, 1_300)]
        for first, at in pairwise((0, 400, 600, 800, 1_000)):
            monitor.observe([Sample(step, {"loss": value}) for step, value in rows[first:at]])
            until = at + judged_after(at)
            found = effect_of(monitor.heading(at), at, rows[at - BEFORE : at], rows[at:until])
            assert isinstance(found, Effect)
            held.append(not found.seen)
    assert sum(held) >= 0.95 * len(held)


def test_a_later_level_lies_in_its_interval_nine_times_of_ten_whatever_the_curve() -> None:
    """Exponential falls are steeper than the trend that is drawn through them."""
    shapes: list[Callable[[int], float]] = [
        lambda step: 2.0 + 3.0 * math.exp(-step / 1_500),
        lambda step: 2.5 + 3.0 * math.exp(-step / 600),
        lambda step: 2.2 + 2.0 * math.exp(-step / 300) + 0.6 * math.cos(step / 600),
    ]
    held = list[bool]()
    for seed, shape in enumerate(shapes * 5):
        noise, monitor = Random(seed), Monitor()
        rows = [(step, shape(step) + noise.gauss(0, 0.01 + 0.01 * seed)) for step in range(1, 901)]
        monitor.observe([Sample(step, {"loss": value}) for step, value in rows[:600]])
        heading = monitor.heading(600)
        assert heading is not None
        found = above_trend(heading, 600, rows[600 - BEFORE : 600], rows[800:])
        held.append(abs(found.loss) <= found.error)
        assert found.least < 0.0
    assert sum(held) >= 0.9 * len(held)


@pytest.mark.parametrize("shift", [-0.2, -0.1, 0.1, 0.2])
def test_a_change_of_the_loss_is_found_with_an_interval_that_holds_it(shift: float) -> None:
    found = effect_of(trend_at(CHANGED), CHANGED, before(), after(shift))
    assert isinstance(found, Effect)
    assert found.seen
    assert abs(found.loss - shift) <= found.error < 0.06
    assert found.step == CHANGED + MOST_STEPS


@pytest.mark.slow
def test_a_change_that_changes_nothing_is_rarely_told_to_have() -> None:
    """By an interval of 95 %, of 40 runs no more than a handful."""
    found = [judge(seed) for seed in range(40)]
    wrong = [one for one in found if isinstance(one, str) or one.seen]
    assert len(wrong) <= 4, wrong


@pytest.mark.parametrize(
    ("curve", "changed_at"),
    [
        (lambda step: 2.0 + math.exp(-step / 200), 250),
        (lambda step: 2.0 + math.exp(-step / 200), 300),
        (lambda step: 1.7 + 8.0 * math.pow(step + 1, -0.5), 150),
        (lambda step: 1.0 + 9.0 * math.pow(step + 1, -0.1), 300),
        (lambda step: 5.0 - 0.75 * step / 1000, 1000),  # straight in the step, as no trend is drawn
        (lambda step: 5.0 - 0.75 * step / 1000, 2000),
    ],
)
def test_a_curve_that_does_not_bend_as_the_trend_does_gains_nothing_by_a_change(
    curve: Callable[[int], float], changed_at: int
) -> None:
    """Of a young run that falls fast nobody can tell much, and it says so."""
    end = changed_at + judged_after(changed_at)
    wrong = 0
    for seed in range(5):
        noise = Random(seed)
        rows = [(step, curve(step) + noise.gauss(0, 0.02)) for step in range(1, end + 1)]
        monitor = Monitor()
        monitor.observe([Sample(step, {"loss": value}) for step, value in rows[:changed_at]])
        trend, earlier = monitor.heading(changed_at), rows[changed_at - 128 : changed_at]
        found = effect_of(trend, changed_at, earlier, rows[changed_at:])
        wrong += isinstance(found, Effect) and found.seen
    assert wrong <= 1


def test_what_is_not_known_says_why() -> None:
    trend = trend_at(CHANGED)
    assert "too few steps" in str(effect_of(None, CHANGED, before(), after(0.0)))
    assert "only 10 steps" in str(effect_of(trend, CHANGED, before(), after(0.0)[:10]))
    broken = [(step, math.nan if step % 2 else value) for step, value in after(0.0)]
    assert "not finite at 100 of the 200 steps" in str(effect_of(trend, CHANGED, before(), broken))
    assert Monitor().heading(10) is None


@pytest.mark.parametrize(
    ("expected", "size", "loss_is", "said"),
    [
        (ExpectedEffect.LOWER, None, -0.05, "as expected"),
        (ExpectedEffect.LOWER, None, 0.05, "the opposite of what was expected"),
        (ExpectedEffect.LOWER, None, 0.001, "too small to tell"),
        (ExpectedEffect.LOWER, 0.5, 0.001, "not as expected"),
        (ExpectedEffect.LOWER, 0.05, -0.052, "as expected"),
        (ExpectedEffect.LOWER, 0.02, -0.05, "as expected, but more"),
        (ExpectedEffect.HIGHER, 0.2, 0.05, "as expected, but less"),
        (ExpectedEffect.NONE, None, 0.001, "as expected"),
        (ExpectedEffect.NONE, None, 0.05, "not as expected"),
    ],
)
def test_an_expectation_is_held_against_the_interval(
    expected: ExpectedEffect, size: float | None, loss_is: float, said: str
) -> None:
    assert expectation_words(expected, size, Effect(2200, loss_is, 0.01)) == said


def test_a_learning_rate_that_goes_on_along_its_schedule_is_no_change() -> None:
    assert learning_rate_change([2e-4, 3e-4], 4e-4) is None  # a warm-up
    assert learning_rate_change([3e-4, 2.999e-4], 2.998e-4) is None
    assert learning_rate_change([3e-4], 1e-4) is None  # too little is known
    found = learning_rate_change([3e-4, 3e-4], 1e-4)
    assert found is not None
    assert (found.field, found.before, found.after) == ("lr", 3e-4, 1e-4)


def branch(shift: float, first: int, steps: int, skipped: int = 0, seed: int = 0) -> list[Sample]:
    """Losses whose noise is the batch's, as of two branches on one data order, and a little more of
    the branch's own; behind `skipped` batches."""
    own = Random(seed)
    return [
        Sample(
            step,
            {"loss": 2.3 + Random(batch).gauss(0, 0.27) + shift + own.gauss(0, 0.03)},
            BatchRange(batch, batch + 1),
        )
        for step, batch in ((s, s + skipped) for s in range(first, first + steps))
    ]


@pytest.mark.parametrize("skipped", [0, 12])
@pytest.mark.parametrize("shift", [0.43, 0.05, 0.0, -0.1])
def test_what_a_rollback_bought_is_told_batch_by_batch_far_below_the_noise(
    shift: float, skipped: int
) -> None:
    """The noise of a step is 0.27, of which nothing is left between the branches."""
    found = branch_effect(branch(shift, 200, 250, seed=1), branch(0.0, 200, 250, skipped, seed=2))
    assert isinstance(found, Effect)
    assert abs(found.loss + shift) <= found.error < 0.02
    assert found.seen is (shift != 0.0)
    assert "both trained on" in effect_words(found)


def test_branches_that_share_no_batch_are_not_compared() -> None:
    assert branch_effect(branch(0.4, 200, 50), branch(0.0, 200, 50, skipped=50)) is None
    assert branch_effect([], branch(0.0, 200, 50)) is None


def test_a_branch_without_a_finite_loss_is_said_to_have_none() -> None:
    found = branch_effect(branch(math.nan, 200, 50), branch(0.0, 200, 50))
    assert found == (
        "the loss of the branch that was undone was not finite at 25 of the 25 newest batches "
        "that both trained on"
    )
