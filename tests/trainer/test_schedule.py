"""Learning rate and weight decay of the reference job."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spikeguard_trainer.model import Shape, Transformer
from spikeguard_trainer.schedule import lr_share, make_optimizer


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    shares = [lr_share(step, warmup=10, total=100) for step in range(101)]
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == shares[10] == 1.0
    assert shares[100] == pytest.approx(0.1)
    assert all(later <= sooner for sooner, later in pairwise(shares[10:]))


def test_a_step_beyond_the_end_keeps_the_last_rate() -> None:
    assert lr_share(10**6, warmup=10, total=100) == lr_share(100, warmup=10, total=100)


def test_only_matrices_decay_and_nothing_is_left_out() -> None:
    model = Transformer(Shape(32, 2, 2, 88, 16))
    decayed, free = make_optimizer(model, lr=1e-3, beta2=0.99).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert decayed["weight_decay"] == 0.1
    assert free["weight_decay"] == 0.0
    assert {names[id(p)] for p in free["params"]} == {
        name for name in names.values() if "norm" in name or name == "embedding.weight"
    }
    assert len(decayed["params"]) + len(free["params"]) == len(names)
    assert decayed["betas"] == (0.9, 0.99)
    assert decayed["fused"] is True
