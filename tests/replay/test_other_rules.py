"""Other people's rules, as the detection benchmark runs them: where they speak up, and not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.detection_rules import RULES, kill_loss_spike
from spikeguard_core.detection.sample import Sample


def flat(rows: int = 400) -> list[float]:
    """A run at 2.5 with even noise of at most 0.02."""
    noise: list[float] = np.random.default_rng(5).uniform(-0.02, 0.02, rows).tolist()
    return [2.5 + one for one in noise]


def with_rows(losses: Sequence[float], **rows: float) -> list[Sample]:
    """Samples with the loss replaced at rows named like `r300`."""
    values = dict(enumerate(losses)) | {int(name[1:]): value for name, value in rows.items()}
    return [Sample(step, {"loss": loss}) for step, loss in values.items()]


def alarmed(rule: str, samples: Sequence[Sample]) -> list[int]:
    return [alarm.row for alarm in RULES[rule](samples)]


@pytest.mark.parametrize("rule", list(RULES))
def test_no_rule_speaks_on_bounded_noise(rule: str) -> None:
    assert alarmed(rule, with_rows(flat())) == []


@pytest.mark.parametrize(
    ("rule", "below", "above"),
    [
        ("OLMo-core, 6 sigma of 128", 2.555, 2.6),
        ("W&B, z 3 of 30", 2.525, 2.56),
        ("llm.c, z 3 of 128", 2.525, 2.56),
        ("ZClip, z 2.5 of an EMA", 2.522, 2.56),
        ("metaseq, ratio 1.2 to an EWM", 2.95, 3.1),
        ("Lightning, 3x mean of 10", 7.3, 7.7),
        ("Megatron, 10x max of first 100", 24.5, 25.5),
    ],
)
def test_a_rule_speaks_above_its_threshold_and_not_below(
    rule: str, below: float, above: float
) -> None:
    assert alarmed(rule, with_rows(flat(), r300=above)) == [300]
    assert alarmed(rule, with_rows(flat(), r300=below)) == []


def test_kill_loss_spike_needs_five_in_a_row() -> None:
    four = {f"r{row}": 5.5 for row in range(300, 304)}
    assert kill_loss_spike(with_rows(flat(), **four)) == []
    five = kill_loss_spike(with_rows(flat(), **four, r304=5.5))
    assert [alarm.row for alarm in five] == [304]
