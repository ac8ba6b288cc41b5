"""The long memory of a loss: bounded, true to a straight descent, careful with one that bends."""

from __future__ import annotations

import math
import random

import pytest

from spikeguard_server.domain.detection.history import BLOCKS, History


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


def fall_of(history: History, steps: int, ahead: int) -> float:
    """Expected change of the loss from `steps` to `steps + ahead`."""
    curve = history.curve()
    assert curve is not None
    return curve.at(math.log(steps + ahead + 1)) - curve.at(math.log(steps + 1))


@pytest.mark.parametrize("steps", [300, 3_000, 30_000])
def test_a_straight_descent_is_found(steps: int) -> None:
    history = remembered(steps, {"level": 10, "fall": 0.5, "bend": 0})
    expected = -0.5 * math.log((steps + 501) / (steps + 1))
    assert fall_of(history, steps, 500) == pytest.approx(expected, rel=0.2)


def test_a_curve_that_flattens_is_followed_in_its_bend() -> None:
    steps, end = 3_000, math.log(3_001)
    history = remembered(steps, {"level": 10, "fall": 2.0, "bend": 0.1})
    at_the_end = (-2.0 + 2 * 0.1 * end) * math.log(4_001 / 3_001)
    assert fall_of(history, steps, 1_000) == pytest.approx(at_the_end, rel=0.25)


def test_the_curve_keeps_to_the_level_of_many_noisy_rows() -> None:
    curve = remembered(2_000, {"level": 10, "fall": 0.5, "bend": 0}).curve()
    assert curve is not None
    assert curve.at(math.log(2_001)) == pytest.approx(10 - 0.5 * math.log(2_001), abs=0.003)


def test_the_newest_rows_move_the_curve_only_beyond_their_noise() -> None:
    curve = remembered(2_000, {"level": 3, "fall": 0, "bend": 0}).curve()
    assert curve is not None
    places, end = [math.log(s + 1) for s in range(1_936, 2_000)], math.log(2_001)
    by_chance = curve.moved(places, [3.0 + 0.02 / 8] * 64, 0.02).at(end)
    surely = curve.moved(places, [3.1] * 64, 0.02).at(end)
    assert 3.0 < by_chance < 3.002
    assert surely == pytest.approx(3.1, abs=0.001)


def test_noise_alone_does_not_fall() -> None:
    history = remembered(2_000, {"level": 3, "fall": 0, "bend": 0})
    assert fall_of(history, 2_000, 500) == pytest.approx(0.0, abs=0.003)


def test_a_loss_that_rises_is_never_extrapolated_upwards() -> None:
    history = remembered(2_000, {"level": 3, "fall": -0.5, "bend": 0})
    assert fall_of(history, 2_000, 500) == 0.0


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
    curve = history.curve()
    assert curve is not None
    assert curve.slope <= 0.0
