"""Ranks that lost step: the loss is rank 0's alone, and the old baseline judges it no more."""

from __future__ import annotations

import math

import numpy as np

from spikeguard_core.detection.sample import Sample
from spikeguard_core.events import Opened
from spikeguard_core.monitor.monitor import Monitor

CALM, LOST = 600, 1200  # steps before, and until the end
ALONE = {"ranks_lost_step": 1.0}


def rows(more: float = 0.0, seed: int = 0) -> list[Sample]:
    """64 ranks' mean, then one rank's loss, 8 times as noisy; at last `more` nats above."""
    noise = np.random.default_rng(seed).normal(0.0, 0.01, LOST)
    noise[CALM:] *= 8.0
    noise[-10:] += more
    losses = (2.5 + noise).tolist()
    return [
        Sample(step, {"loss": loss, **(ALONE if step > CALM else {})})
        for step, loss in enumerate(losses, 1)
    ]


def opened(monitor: Monitor, samples: list[Sample], at_once: int) -> list[int]:
    """Onsets, with so many samples a message."""
    parts = [samples[first : first + at_once] for first in range(0, len(samples), at_once)]
    events = [event for part in parts for event in monitor.observe(part)]
    return [event.onset_step for event in events if isinstance(event, Opened)]


def test_a_noisier_loss_of_one_rank_pages_nobody() -> None:
    for seed in range(5):
        assert opened(Monitor(), rows(seed=seed), 100) == []


def test_the_same_noise_unmarked_is_told() -> None:
    """What the mark is needed for."""
    unmarked = [Sample(row.step, {"loss": row.values["loss"]}) for row in rows()]
    assert opened(Monitor(), unmarked, 100)


def test_a_spike_of_the_rank_that_is_left_is_found() -> None:
    (onset,) = opened(Monitor(), rows(more=3.0), 100)
    assert onset == LOST - 9


def test_a_loss_that_is_lost_is_found_at_once_while_the_new_one_is_learned() -> None:
    told = rows()[: CALM + 5]
    told.append(Sample(CALM + 6, {"loss": math.nan, **ALONE}))
    assert opened(Monitor(), told, 100) == [CALM + 6]


def test_a_new_attempt_of_all_ranks_that_loses_step_again_begins_anew_again() -> None:
    """The marks end with the restart; the newest mark is an old one then."""
    again = [Sample(LOST + row.step, row.values) for row in rows(seed=7)]
    assert opened(Monitor(), rows() + again, 100) == []
