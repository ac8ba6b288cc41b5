"""An incident is named by what will be left of it, and watched until that is known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
import pytest

from spikeguard_core.events import Closed, Event, Judgement, Opened, Revised
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import Kind, Outcome
from tests.domain.detection.curves import (
    ar_noise,
    closed,
    descent,
    opened,
    plateau,
    samples,
    spiked,
)

SEEDS = range(4)
ONSET = 900


def noisy(extra: np.ndarray, seed: int, noise: float) -> list[float]:
    return list(2.0 + extra + ar_noise(len(extra), seed, noise, 0.3))


def after_spike(left: float, rows: int = ONSET + 600) -> np.ndarray:
    """A spike of 2 nats at ONSET that falls to `left` within some tens of rows."""
    age = np.arange(rows) - ONSET
    return np.where(age < 0, 0.0, left + 2.0 * np.exp(-np.clip(age, 0, None) / 12.0))


def last_before(events: Sequence[Event], step: int) -> Judgement:
    told = [e for e in events if isinstance(e, Revised | Closed) and e.step <= step]
    return told[-1].judgement


@pytest.mark.parametrize("seed", SEEDS)
def test_damage_of_one_and_a_half_deviations_is_seen_by_the_horizon(seed: int) -> None:
    """Each row lies within the band; their mean does not."""
    events = Monitor().observe(samples(noisy(after_spike(0.075), seed, 0.05)))
    assert last_before(events, ONSET + 500 + 20).kind is Kind.LINGERING


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spike_that_leaves_nothing_closes_as_healed_long_before(seed: int) -> None:
    end = closed(Monitor().observe(samples(noisy(after_spike(0.0), seed, 0.02))))[0]
    assert end.outcome is Outcome.HEALED
    assert end.step < ONSET + 300
    assert end.judgement.confidence >= 0.9


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_lift_that_falls_as_the_run_does_has_not_healed(seed: int) -> None:
    """It is back at the level before it, and as far above its trend as at its onset."""
    row = np.arange(1300)
    losses = 1.7 + 9.0 * (row + 1.0) ** -0.35 + ar_noise(1300, seed, 0.033, 0.0)
    losses[150:] += 8 * 0.033
    events = Monitor().observe(samples(losses.tolist()))
    assert all(one.outcome is Outcome.LEVEL_ACCEPTED for one in closed(events))
    assert last_before(events, 1300).kind is Kind.LINGERING


def test_a_new_spike_ends_the_watch_over_the_last_one() -> None:
    losses = spiked(noisy(after_spike(0.06), 1, 0.05), 1_100, 2.0, 10)
    events = Monitor().observe(samples(losses))
    assert [event.onset_step for event in opened(events)][:2] == [ONSET + 1, 1_101]
    ends = closed(events)
    assert ends[0].step == opened(events)[1].step


def test_slow_signals_are_asked_for_until_the_loss_is_back() -> None:
    monitor, losses = Monitor(), noisy(after_spike(0.06), 1, 0.05)
    monitor.observe(samples(losses[: ONSET + 10]))
    assert monitor.open
    assert monitor.attentive
    monitor.observe(samples(losses[ONSET + 10 : ONSET + 150], first=ONSET + 11))
    assert monitor.open
    assert not monitor.attentive


@pytest.mark.parametrize("power", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("onset", [150, 330])
def test_a_height_far_past_what_was_seen_is_said_with_what_of_it_is_sure(
    onset: int, power: float
) -> None:
    """The descent slows down where nobody has seen it: a trend carried on promises too much."""
    steps = np.arange(1, 4 * onset)
    slowed = np.minimum(steps, onset + np.maximum(0.0, steps - onset) / 3.0)
    level = 1.5 + 4.0 / (1.0 + slowed / 20.0) ** power
    losses = level + 0.1 * np.random.default_rng(onset).standard_normal(len(steps))
    losses[onset:] += 0.3 + 2.0 * np.exp(-np.arange(len(steps) - onset) / 10.0)
    seen = [e for e in Monitor().observe(samples(list(losses))) if isinstance(e, Revised)]
    late = [e.judgement.reason for e in seen if e.step > 2 * onset]
    found = [re.search(r"loss is ([\d.]+)(?: \((.*?)\))? above trend", said) for said in late]
    told = [(one[2] or one[1]).removeprefix("at least ") for one in found if one]
    assert told
    within = [sure == "perhaps none" or float(sure) <= 0.4 for sure in told]
    assert sum(within) >= 0.9 * len(within)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_swings_is_not_renamed_at_every_swing(seed: int) -> None:
    """Each swing looks like healing on its way down: 70 changes of the kind, were all told."""
    rows, noise = np.arange(1_100), np.random.default_rng(seed).standard_normal(1_100)
    losses = np.array(plateau(1_400, seed=seed))
    losses[300:] += 1.5 + 0.6 * np.sin(rows / 9) + 0.2 * noise
    told = [e for e in Monitor().observe(samples(list(losses))) if isinstance(e, Revised)]
    assert sum(a.judgement.kind is not b.judgement.kind for a, b in pairwise(told)) <= 12
    assert told[-1].judgement.kind is not Kind.RECOVERABLE


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_falls_from_above_where_the_run_began_is_no_longer_called_divergent(
    seed: int,
) -> None:
    """Weights that a fault scaled: the loss jumps to several times guessing, and settles higher."""
    age = np.arange(400)
    fallen = 0.6 + 20.0 * np.exp(-age / 40.0)
    losses = descent(ONSET, seed) + list(np.array(plateau(400, 2.3, seed)) + fallen)
    events = Monitor().observe(samples(losses))
    at_once = last_before(events, ONSET + 4)
    assert at_once.kind is Kind.DIVERGENT
    told = [e.judgement for e in events if isinstance(e, Revised) and e.step > ONSET + 15]
    assert told
    assert {one.kind for one in told} == {Kind.LINGERING}


def test_a_loss_that_explodes_in_leaps_stays_divergent() -> None:
    leaps = [5.0, 40.0, 25.0, 400.0, 1.5e3, 1.1e3, 9e4, 2e7, 1.2e7, 4e9]
    monitor = Monitor()
    events = monitor.observe(samples(plateau(300) + leaps))
    assert last_before(events, 400).kind is Kind.DIVERGENT


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spike_above_where_the_run_began_that_heals_at_once_is_never_called_to_act(
    seed: int,
) -> None:
    losses = spiked(descent(ONSET + 300, seed), ONSET, 14.0, 5)
    told = [e.judgement for e in Monitor().observe(samples(losses)) if isinstance(e, Revised)]
    assert told
    assert not [one for one in told if one.kind is not Kind.RECOVERABLE and one.confidence >= 0.7]


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_loss_that_climbs_for_good_is_named_once_and_keeps_its_name(seed: int) -> None:
    """Noise hides its new peaks: for rows on end there is none."""
    climb = 0.2 + 2.8 * np.arange(300) / 300
    losses = [*plateau(600, seed=seed + 50), *(plateau(300, seed=seed) + climb)]
    events = Monitor().observe(samples(losses))
    kinds = [e.judgement.kind for e in events if isinstance(e, Opened | Revised)]
    assert [kind for kind, _ in groupby(kinds)] == [
        *(Kind.RECOVERABLE, Kind.LINGERING, Kind.DIVERGENT)
    ]
