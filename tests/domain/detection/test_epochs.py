"""A slow rise that comes with each epoch of the data is not told each time."""

from __future__ import annotations

import numpy as np
import pytest

from spikeguard_core.events import Opened
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_server.ingest.detection import freeze, thaw
from tests.domain.detection.curves import opened, samples

EPOCH, EPOCHS, NOISE = 300, 20, 0.02


def rises(size: float) -> np.ndarray:
    """Deviations above the level: up in 15 rows, there for 30, down in 30."""
    return size * np.concatenate([np.linspace(0, 1, 15), np.ones(30), np.linspace(1, 0, 30)])


def speech(size: float, seed: int = 0) -> list[float]:
    """A loss that rises so at the beginning of each epoch but the first."""
    losses = 1.2 + NOISE * np.random.default_rng(seed).standard_normal(EPOCH * EPOCHS)
    for begin in range(EPOCH, EPOCH * EPOCHS, EPOCH):
        losses[begin : begin + 75] += NOISE * rises(size)
    return [float(loss) for loss in losses]


def told(losses: list[float], batch: int = 200) -> list[Opened]:
    """By a monitor whose state is written and read between any two messages."""
    monitor, events = Monitor(), list[Opened]()
    for first in range(0, len(losses), batch):
        events += opened(monitor.observe(samples(losses[first : first + batch], first + 1)))
        monitor = thaw(freeze(monitor))
    return events


def test_a_rise_within_the_noise_that_comes_with_each_epoch_is_no_incident() -> None:
    for size in (2.0, 3.0):
        assert len(told(speech(size))) <= 2


def test_a_rise_that_is_higher_than_the_epochs_is_told() -> None:
    losses, last = speech(2.0), 16 * EPOCH
    for row in range(last + 10, last + 40):
        losses[row] += 10.0 * NOISE
    assert any(last <= event.onset_step < last + EPOCH for event in told(losses))


@pytest.mark.parametrize(("period", "height"), [(200, 0.1), (400, 0.3), (500, 0.05)])
def test_a_loss_that_swings_is_told_at_most_twice_and_a_rise_beyond_its_swing_is(
    period: int, height: float
) -> None:
    """As over data in one order, each pass."""
    row = np.arange(4_000)
    losses = 2.0 + height * np.sin(row * 2.0 * np.pi / period)
    losses += 0.2 * height * np.random.default_rng(1).standard_normal(len(row))
    found = told(losses.tolist())
    assert len(found) <= 2
    assert all(event.onset_step < 2 * period for event in found)
    losses += 4.0 * height * np.clip((row - 2_500) / 1_000, 0.0, 1.0)
    assert any(event.onset_step > 2_000 for event in told(losses.tolist()))
