"""The stability score and the spike scores of the field, against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from spikeguard_core.stability.score import Columns, Floats, Stability, stability_of

STEPS = 4_000


def noise(seed: int, *, heavy: bool = False) -> Floats:
    """A loss that falls and then stays, with noise."""
    rng = np.random.default_rng(seed)
    drawn = rng.standard_t(3, STEPS) if heavy else rng.normal(size=STEPS)
    return 3.0 + 4.0 * np.exp(-np.arange(STEPS) / 400.0) + 0.05 * drawn


def judged(seen: Columns, window: int = STEPS) -> Stability:
    found = stability_of(seen, window)
    assert found is not None
    return found


def olmo_core(loss: Floats, norm: Floats) -> float:
    """Its `StabilityMonitorCallback`, written down from its source: of the last 128 values mean and
    standard deviation, a value more than 6 of them above, in the loss or in the norm."""
    spikes, histories = 0, (list[float](), list[float]())
    for values in zip(loss, norm, strict=True):
        hit = False
        for value, history in zip(values, histories, strict=True):
            if len(history) == 128:
                mean = sum(history) / 128
                spread = math.sqrt(sum((x - mean) ** 2 for x in history) / 128)
                hit |= spread >= 1e-10 and value > mean + 6.0 * spread
            history.append(value)
            del history[:-128]
        spikes += hit
    return spikes / len(loss)


@pytest.mark.parametrize("seed", range(6))
def test_the_spike_score_is_that_of_olmo_core(seed: int) -> None:
    loss, norm = noise(seed, heavy=True), 1.0 + np.abs(noise(seed + 100, heavy=True))
    for at in range(300, STEPS, 311):
        loss[at : at + 1 + at % 5] += 2.0
        norm[at + 1] *= 1e12 if at % 2 else 40.0  # one so large that a running sum loses the rest
    found = judged({"loss": loss, "grad_norm": norm})
    assert found.spike_score == pytest.approx(olmo_core(loss, norm), abs=1e-12)
    assert found.spike_score > 0.001


def test_the_spike_score_of_olmo_2_is_the_percentage_seven_deviations_off_the_last_thousand() -> (
    None
):
    loss = noise(3)
    loss[2_000:STEPS:500] += 3.0
    loss[2_250] -= 3.0  # away is away
    far = [
        abs(loss[at] - loss[at - 1_000 : at].mean()) >= 7 * loss[at - 1_000 : at].std()
        for at in range(1_000, STEPS)
    ]
    assert sum(far) == 5
    assert judged({"loss": loss}).loss_spike_percent == pytest.approx(100 * sum(far) / len(far))
    assert judged({"loss": loss[:900]}).loss_spike_percent is None


Spoil = Callable[[dict[str, Floats]], None]


def _spiking(seen: dict[str, Floats]) -> None:
    seen["loss"][500::200] += 3.0


def _clipped(seen: dict[str, Floats]) -> None:
    seen["grad_clipped"][::2] = 1.0


def _skipped(seen: dict[str, Floats]) -> None:
    seen["update_dropped"][::100] = 1.0


def _non_finite(seen: dict[str, Floats]) -> None:
    seen["loss"][[700, 1_700]] = math.inf


def calm() -> dict[str, Floats]:
    return {
        "loss": noise(5),
        "grad_norm": 1.0 + 0.1 * np.abs(noise(6)),
        "grad_clipped": np.zeros(STEPS),
        "update_dropped": np.zeros(STEPS),
    }


@pytest.mark.parametrize(
    ("spoil", "share", "value", "score"),
    [
        (_spiking, "spiking", 18 / STEPS, 0.001 * STEPS / 18),
        (_clipped, "clipped", 0.5, 0.2 / 0.5),
        (_skipped, "skipped", 0.01, 0.2),
        (_non_finite, "non_finite", 2 / STEPS, 0.5),
    ],
)
def test_each_share_above_its_target_lowers_the_score_and_is_what_the_advice_is_about(
    spoil: Spoil, share: str, value: float, score: float
) -> None:
    seen = calm()
    before = judged(seen)
    assert (before.score, before.advice) == (1.0, "")
    spoil(seen)
    found = judged(seen)
    assert getattr(found, share) == pytest.approx(value)
    assert found.score == pytest.approx(score)
    assert f"{value:.2%} of the newest {STEPS:,} steps" in found.advice


def test_one_bad_step_of_a_kind_is_allowed_and_what_is_not_told_counts_for_nothing() -> None:
    seen = calm()
    seen["loss"][700] = math.inf
    seen["update_dropped"][3] = 1.0
    assert judged(seen).score == 1.0
    bare: Columns = {"loss": noise(5)}
    found = stability_of(bare, STEPS)
    assert found is not None
    assert (found.clipped, found.skipped, found.norm_spike_percent) == (None, None, None)
    assert stability_of({"loss": noise(5)[:255]}, STEPS) is None


def test_a_scalers_search_for_its_scale_is_not_called_not_finite() -> None:
    seen = calm()
    seen["grad_norm"][:6] = math.inf
    seen["step_skipped"] = np.full(STEPS, math.nan)  # told only where a step was skipped
    seen["step_skipped"][:6] = 1.0
    found = judged(seen)
    assert (found.non_finite, found.skipped, found.score) == (0.0, 6 / STEPS, 1.0)


def test_only_the_window_counts_and_what_lies_before_it_is_what_it_is_compared_with() -> None:
    loss = noise(7)
    loss[1_000:2_000:50] += 3.0
    assert judged({"loss": loss}).spiking > 0.0
    assert judged({"loss": loss}, window=2_000).spiking == 0.0
    loss[2_001] += 3.0
    assert judged({"loss": loss}, window=2_000).spiking == 1 / 2_000
