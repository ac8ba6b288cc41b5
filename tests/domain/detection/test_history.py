"""The long memory of a loss: bounded, true to a straight descent, careful with one that bends."""

from __future__ import annotations

import math
import random

import pytest

from spikeguard_server.domain.history import BLOCKS, KEPT, History


def remembered(steps: int, loss_of: dict[str, float]) -> History:
    noise, history = random.Random(7), History()
    for step in range(1, steps + 1):
        place = math.log(step + 1)
        curve = loss_of["level"] - loss_of["fall"] * place + loss_of["bend"] * place**2
        history.add(place, curve + 0.02 * noise.gauss(0, 1))
    return history


@pytest.mark.parametrize("steps", [100, 1_000, 50_000])
def test_memory_is_bounded_however_long_the_run(steps: int) -> None:
    history = remembered(steps, {"level": 10, "fall": 0.5, "bend": 0})
    assert len(history.places) == len(history.means) < BLOCKS


@pytest.mark.parametrize("steps", [300, 3_000, 30_000])
def test_a_straight_descent_is_found(steps: int) -> None:
    slope = remembered(steps, {"level": 10, "fall": 0.5, "bend": 0}).slope()
    assert slope == pytest.approx(-0.5 * KEPT, rel=0.15)


def test_a_curve_that_flattens_is_extrapolated_by_its_flattest_part() -> None:
    steps = 3_000
    slope = remembered(steps, {"level": 10, "fall": 2.0, "bend": 0.1}).slope()
    at_the_end = -2.0 + 2 * 0.1 * math.log(steps)
    assert slope is not None
    assert at_the_end * 1.3 < slope <= 0


def test_noise_alone_has_no_slope() -> None:
    slope = remembered(2_000, {"level": 3, "fall": 0, "bend": 0}).slope()
    assert slope == pytest.approx(0.0, abs=0.01)


def test_a_loss_that_rises_is_never_extrapolated_upwards() -> None:
    assert remembered(2_000, {"level": 3, "fall": -0.5, "bend": 0}).slope() == 0.0


def test_what_was_undone_is_forgotten() -> None:
    history = remembered(1_000, {"level": 10, "fall": 0.5, "bend": 0})
    history.cut(math.log(401))
    assert history.places
    assert max(history.places) < math.log(401)


@pytest.mark.parametrize("huge", [1e300, -1e300])
def test_a_value_of_any_size_is_survived(huge: float) -> None:
    history = History()
    for step in range(1, 400):
        history.add(math.log(step + 1), huge if step == 180 else 2.5)
    slope = history.slope()
    assert slope is not None
    assert slope <= 0.0
