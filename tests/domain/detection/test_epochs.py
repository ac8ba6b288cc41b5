"""A rise that comes with each epoch, and one batch that stands out, are told as what they are."""

from __future__ import annotations

import numpy as np
import pytest

from spikeguard_core.detection.sample import Sample
from spikeguard_core.events import LoneValue, Opened
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import Kind
from spikeguard_server.ingest.detection import freeze, thaw
from tests.domain.detection.curves import opened, plateau, samples

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


ROWS = 4000


def skewed(seed: int) -> list[float]:
    """Calm noise of 0.05 around 3.0; one row in 60 lies 0.1 to 0.3 higher, as hard batches do."""
    rng = np.random.default_rng(seed)
    hard = (rng.random(ROWS) < 1 / 60) * rng.uniform(0.1, 0.3, ROWS)
    return [float(value) for value in 3.0 + 0.05 * rng.standard_normal(ROWS) + hard]


def kinds(losses: list[float], begin: int = 0) -> list[tuple[int, Kind]]:
    events = opened(Monitor().observe(samples(losses)))
    return [(event.onset_step, event.judgement.kind) for event in events if event.step > begin]


@pytest.mark.parametrize("seed", range(3))
def test_an_odd_batch_is_told_where_hard_ones_are_usual(seed: int) -> None:
    losses, odd = skewed(seed), range(500, ROWS, 500)
    for row in odd:
        losses[row : row + 2] = [4.6, 3.0]
    told = kinds(losses)
    assert {(row + 1, Kind.OUTLIER_BATCH) for row in odd[:1]} <= set(told)
    assert set(told) <= {(row + 1, Kind.OUTLIER_BATCH) for row in odd}


def test_noise_that_throws_rows_far_down_too_makes_few_outlier_batches() -> None:
    """Student's t with 4 degrees of freedom: by its middle alone 18 of 40,000 rows would be."""
    noise = np.random.default_rng(5).standard_t(4, 40_000) * 0.03
    told = kinds([float(3.0 + one) for one in noise])
    assert sum(kind is Kind.OUTLIER_BATCH for _, kind in told) <= 4


def test_rows_far_below_teach_that_one_far_above_is_noise() -> None:
    losses = plateau(1500)
    for row in range(200, 1300, 100):
        losses[row] -= 0.4
    losses[1300] += 0.6
    assert not kinds(losses)
    losses[1300] += 2.8
    assert kinds(losses) == [(1301, Kind.OUTLIER_BATCH)]


def test_a_row_that_stands_out_as_others_did_is_listed() -> None:
    losses = plateau(900)
    for row in (300, 500, 700):
        losses[row] += 2.0
    events = Monitor().observe(samples(losses))
    assert [event.onset_step for event in opened(events)] == [301, 501]
    lone = [event for event in events if isinstance(event, LoneValue)]
    assert [(one.signal, one.step) for one in lone] == [("loss", 701)]
    assert abs(lone[0].usual - 3.0) < 0.1


def test_two_rows_as_far_off_are_not_one_batch() -> None:
    """They are a jump."""
    one, two = plateau(900), plateau(900)
    one[700] += 0.7
    two[700] += 0.7
    two[701] += 0.7
    assert kinds(one) == [(701, Kind.OUTLIER_BATCH)]
    assert Kind.OUTLIER_BATCH not in {kind for _, kind in kinds(two)}


def test_a_part_of_the_loss_too_small_to_matter_is_no_event() -> None:
    losses = plateau(600, noise=0.003)
    losses[400] += 0.1
    assert not kinds(losses)


def test_the_gradient_norm_came_down_only_where_it_had_risen() -> None:
    losses, norms = plateau(400), plateau(400, 0.5, seed=1, noise=0.05)
    losses[300] += 3.0
    for grew in (1.0, 9.0):
        norms[300] *= grew
        seen = zip(losses, norms, strict=True)
        rows = [
            Sample(step, {"loss": loss, "grad_norm": norm})
            for step, (loss, norm) in enumerate(seen, 1)
        ]
        (found,) = opened(Monitor().observe(rows))
        because = found.causes[0].reasons[0]
        assert because.endswith(
            "at once with step 302" + ", and the gradient norm too" * (grew > 2)
        )
