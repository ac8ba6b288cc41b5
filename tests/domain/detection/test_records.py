"""Noise that is often high is left alone."""

from __future__ import annotations

import numpy as np

from spikeguard_core.monitor.monitor import Monitor
from tests.domain.detection.curves import opened, samples

AT, TOP = 1200, 1.2


def often_high(rows: int, seed: int) -> list[float]:
    """Three rows in ten lie 0.8 to 1.2 above the others, as batches of mixed images do."""
    rng = np.random.default_rng(seed)
    high = (rng.random(rows) < 0.3) * rng.uniform(0.8, TOP, rows)
    return [float(loss) for loss in 2.0 + high + 0.05 * rng.standard_normal(rows)]


def test_noise_that_is_often_high_opens_nothing_by_itself() -> None:
    assert not opened(Monitor().observe(samples(often_high(30_000, 4))))


def test_two_rows_of_it_are_nothing_that_never_was() -> None:
    losses = often_high(AT + 100, 1)
    losses[AT : AT + 2] = [2.0 + 1.6 * TOP] * 2
    assert not opened(Monitor().observe(samples(losses)))
