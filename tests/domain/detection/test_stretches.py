"""Calm rows taken at once end in the state of the same rows one by one, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from spikeguard_core.detection.sample import Sample
from spikeguard_core.monitor.monitor import Monitor

ROWS = 1500


def falling(seed: int) -> list[Sample]:
    """A loss that falls through every window, so that no error is known before its scale."""
    rng = np.random.default_rng(seed)
    losses = 1.0 + 9.0 / np.sqrt(1.0 + np.arange(ROWS) / 100.0) + 0.02 * rng.standard_normal(ROWS)
    norms = np.exp(-np.arange(ROWS) / 500.0 + 0.1 * rng.standard_normal(ROWS))
    return [
        Sample(step, {"loss": loss, "grad_norm": norm})
        for step, (loss, norm) in enumerate(zip(losses.tolist(), norms.tolist(), strict=True))
    ]


def flat(seed: int) -> list[Sample]:
    """A loss that stands still, and one row in 150 far off, below as often as above."""
    rng = np.random.default_rng(seed)
    losses = 3.0 + 0.05 * rng.standard_normal(ROWS)
    far = rng.choice(ROWS, ROWS // 150, replace=False)
    losses[far] += rng.choice([-0.6, 0.6], len(far))
    return [Sample(step, {"loss": loss}) for step, loss in enumerate(losses.tolist())]


def often_high(seed: int) -> list[Sample]:
    """Three rows in ten lie high, and now and then some stand above all of them."""
    rng = np.random.default_rng(seed)
    losses = 2.0 + (rng.random(ROWS) < 0.3) * rng.uniform(0.8, 1.2, ROWS)
    losses += 0.05 * rng.standard_normal(ROWS)
    for row in range(400, ROWS, 150):
        losses[row : row + row % 4] = 4.0
    return [Sample(step, {"loss": loss}) for step, loss in enumerate(losses.tolist())]


@pytest.mark.parametrize(
    "rows", [falling(0), flat(1), often_high(2)], ids=["falling", "flat", "often high"]
)
def test_a_run_in_large_batches_ends_in_the_bytes_of_one_by_one(rows: list[Sample]) -> None:
    one, many = Monitor(), Monitor()
    told = [event for row in rows for event in one.observe([row])]
    in_batches = [
        event for first in range(0, ROWS, 700) for event in many.observe(rows[first : first + 700])
    ]
    assert repr(told) == repr(in_batches)
    assert one.dump() == many.dump()
