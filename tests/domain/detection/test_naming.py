"""An incident is named by what will be left of it, and watched until that is known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from spikeguard_core.diagnosis.kind_rates import learnt
from spikeguard_core.events import Closed, Event, Judgement, Revised
from spikeguard_core.monitor.monitor import DetectionSettings, Monitor
from spikeguard_protocol import Kind, Outcome
from tests.domain.detection.curves import ar_noise, closed, opened, plateau, samples, spiked

SETTINGS = DetectionSettings()
SEEDS = range(4)
ONSET = 900


HEALERS, LASTERS = {Kind.RECOVERABLE: 40}, {Kind.RECOVERABLE: 2, Kind.LINGERING: 38}


def test_base_rates_are_the_published_ones_until_a_project_has_twenty_endings() -> None:
    """They say so; from then on the project's own count, and no kind is ever impossible."""
    few = learnt({Kind.DIVERGENT: 19})
    assert (few.recoverable, few.lingering, few.divergent) == (0.80, 0.15, 0.05)
    assert few.lasting_odds == 1.0
    assert "(published figures; this project's own count from 20 on, 19 so far)" in few.sentence
    own = learnt({Kind.DIVERGENT: 20, Kind.OUTLIER_BATCH: 99})
    assert own.recoverable == pytest.approx(16 / 40)
    assert "40% heal, 8% linger and 52% diverge" in own.sentence
    assert "(its 20 endings, and the published rates as 20 more)" in own.sentence
    assert learnt(HEALERS).lasting_odds < 1.0 < learnt(LASTERS).lasting_odds


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
    assert last_before(events, ONSET + SETTINGS.horizon_steps + 20).kind is Kind.LINGERING


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spike_that_leaves_nothing_closes_as_healed_long_before(seed: int) -> None:
    end = closed(Monitor().observe(samples(noisy(after_spike(0.0), seed, 0.02))))[0]
    assert end.outcome is Outcome.HEALED
    assert end.step < ONSET + 300
    assert end.judgement.confidence >= 0.9


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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_swings_is_not_renamed_at_every_swing(seed: int) -> None:
    """Each swing looks like healing on its way down: 70 changes of the kind, were all told."""
    rows, noise = np.arange(1_100), np.random.default_rng(seed).standard_normal(1_100)
    losses = np.array(plateau(1_400, seed=seed))
    losses[300:] += 1.5 + 0.6 * np.sin(rows / 9) + 0.2 * noise
    told = [e for e in Monitor().observe(samples(list(losses))) if isinstance(e, Revised)]
    assert sum(a.judgement.kind is not b.judgement.kind for a, b in pairwise(told)) <= 12
    assert told[-1].judgement.kind is not Kind.RECOVERABLE
