"""Loss curves to test detection on: made by rule, with seeded noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spikeguard_core.detection.sample import Sample
from spikeguard_core.events import Closed, Event, Opened, Precursor


def descent(rows: int, seed: int = 0, noise: float = 0.03, rho: float = 0.3) -> list[float]:
    """A run from 11 nats: a steep start, a bend, a long flattening; AR(1) noise."""
    steps = np.arange(1, rows + 1)
    level = 2.0 + 9.0 / (1.0 + steps / 25.0) ** 0.9
    return list(level + ar_noise(rows, seed, noise, rho))


def plateau(rows: int, level: float = 3.0, seed: int = 0, noise: float = 0.03) -> list[float]:
    return list(level + ar_noise(rows, seed, noise, 0.3))


def ar_noise(rows: int, seed: int, scale: float, rho: float) -> np.ndarray:
    """AR(1) with standard deviation `scale`."""
    white = np.random.default_rng(seed).normal(size=rows) * scale * np.sqrt(1 - rho**2)
    out, last = np.empty(rows), 0.0
    for at in range(rows):
        last = rho * last + white[at]
        out[at] = last
    return out


def spiked(losses: Sequence[float], at: int, height: float, decay: float) -> list[float]:
    """Add a spike that starts at row `at` and decays by `decay` rows."""
    extra = [
        0.0 if row < at else height * np.exp(-(row - at) / decay) for row in range(len(losses))
    ]
    return [float(loss + more) for loss, more in zip(losses, extra, strict=True)]


def samples(losses: Sequence[float], first: int = 1, gap: int = 1) -> list[Sample]:
    return [Sample(first + row * gap, {"loss": float(loss)}) for row, loss in enumerate(losses)]


def opened(events: Sequence[Event]) -> list[Opened]:
    return [event for event in events if isinstance(event, Opened)]


def closed(events: Sequence[Event]) -> list[Closed]:
    return [event for event in events if isinstance(event, Closed)]


def precursors(events: Sequence[Event]) -> list[Precursor]:
    return [event for event in events if isinstance(event, Precursor)]
