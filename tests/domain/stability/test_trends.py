"""What grows steadily is told with the step at which it gets to its limit; calm curves say nothing.

Families of drawn curves whose truth is known; 60 draws of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from spikeguard_core.stability.score import Floats
from spikeguard_core.stability.trends import Trend, trend_of

LIMIT, DRAWS = 100.0, 60
AT = np.arange(10.0, 10_001.0, 10.0)
Rng = np.random.Generator
Drawn = tuple[Floats, float]  # values, and the step at which the curve truly meets the limit


def told(values: Floats, steps: Floats = AT, limit: float = LIMIT) -> Trend | None:
    return trend_of("attention_logit_max", steps, values, limit)


def _noise(rng: Rng) -> Floats:
    return rng.normal(size=len(AT))


def _flat(rng: Rng) -> Floats:
    return 50.0 + 2.0 * _noise(rng)


def _heavy(rng: Rng) -> Floats:
    return 50.0 + 2.0 * rng.standard_t(2, len(AT))


def _sluggish(rng: Rng) -> Floats:
    """Noise that remembers: an AR(1) of 0.99."""
    drawn: Floats = _noise(rng)
    for at in range(1, len(drawn)):
        drawn[at] += 0.99 * drawn[at - 1]
    return 50.0 + drawn


def _lifted(rng: Rng) -> Floats:
    return np.where(rng.uniform(2_000, 8_000) > AT, 40.0, 60.0) + 2.0 * _noise(rng)


def _saturating(rng: Rng) -> Floats:
    return 20.0 + 60.0 * (1.0 - np.exp(-AT / rng.uniform(500, 4_000))) + _noise(rng)


def _logarithmic(rng: Rng) -> Floats:
    bent: Floats = np.log(AT)
    return 20.0 + 5.0 * bent + _noise(rng)


def _falling(rng: Rng) -> Floats:
    return 90.0 - 0.004 * AT + _noise(rng)


def _crawling(rng: Rng) -> Floats:
    """Steady, and a hundred thousand steps away."""
    return 50.0 + 0.0001 * AT + _noise(rng)


CALM = (_flat, _heavy, _sluggish, _lifted, _saturating, _logarithmic, _falling, _crawling)


@pytest.mark.parametrize("draw", CALM)
def test_calm_curves_say_nothing(draw: Callable[[Rng], Floats]) -> None:
    assert [told(draw(np.random.default_rng(seed))) for seed in range(DRAWS)] == [None] * DRAWS


def _linear(rng: Rng) -> Drawn:
    slope = rng.uniform(0.003, 0.008)
    return 15.0 + slope * AT + rng.uniform(0.2, 2.0) * _noise(rng), (LIMIT - 15.0) / slope


def _with_outliers(rng: Rng) -> Drawn:
    slope = rng.uniform(0.003, 0.008)
    return 15.0 + slope * AT + rng.standard_t(2, len(AT)), (LIMIT - 15.0) / slope


def _exponential(rng: Rng) -> Drawn:
    rate = rng.uniform(1e-4, 2e-4)
    now = rng.uniform(60.0, 90.0)
    values = now * np.exp(rate * (AT - AT[-1])) * (1.0 + 0.02 * _noise(rng))
    return values, AT[-1] + math.log(LIMIT / now) / rate


@pytest.mark.parametrize("draw", [_linear, _with_outliers, _exponential])
def test_steady_growth_is_told_with_the_step_at_which_it_meets_the_limit(
    draw: Callable[[Rng], Drawn],
) -> None:
    for seed in range(DRAWS):
        values, truth = draw(np.random.default_rng(seed))
        found = told(values)
        assert found is not None, seed
        assert found.reached_at - AT[-1] == pytest.approx(truth - AT[-1], rel=0.1), seed


def test_too_few_rows_and_gaps_say_nothing_and_rows_that_were_not_measured_are_no_rows() -> None:
    steps = np.arange(1.0, 10_001.0)
    grown = 15.0 + 0.005 * steps
    seldom = np.where(steps % 10 == 2, grown, np.nan)
    found = told(seldom, steps)
    assert found is not None
    assert found.reached_at == pytest.approx(17_000, rel=0.01)
    assert told(grown[:1_500], steps[:1_500]) is None
    assert told(np.where(steps % 400 == 0, grown, np.nan), steps) is None
    assert told(np.where((steps > 3_000) & (steps < 6_000), np.nan, grown), steps) is None


def test_a_limit_that_is_passed_already_is_not_foretold() -> None:
    assert told(15.0 + 0.005 * AT, limit=40.0) is None
