"""What the reference model computes."""

from __future__ import annotations

import pytest
import torch

from spikeguard_trainer.model import Rotary, Shape, Transformer
from spikeguard_trainer.presets import PRESETS

SHAPE = Shape(width=32, layers=2, heads=2, hidden=88, context=16)


def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(SHAPE)


def test_logits_have_one_score_for_every_byte_at_every_position() -> None:
    assert model().logits(torch.zeros(3, 16, dtype=torch.long)).shape == (3, 16, 256)


def test_an_untrained_model_is_as_good_as_guessing() -> None:
    tokens = torch.randint(0, 256, (8, 16))
    assert model()(tokens, tokens.roll(1)).item() == pytest.approx(5.545, abs=0.1)  # ln 256


def test_no_position_sees_what_comes_after_it() -> None:
    net, tokens = model(), torch.randint(0, 256, (2, 16))
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 256
    before, after = net.logits(tokens), net.logits(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_every_parameter_gets_a_gradient() -> None:
    net, tokens = model(), torch.randint(0, 256, (2, 16))
    net(tokens, tokens.roll(1)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_rotary_keeps_lengths_and_makes_products_depend_on_distance_alone() -> None:
    rotary = Rotary(head_width=8, context=32)
    q, k = torch.randn(8), torch.randn(8)
    turned_q = rotary(q.expand(1, 32, 1, 8))[0, :, 0]
    turned_k = rotary(k.expand(1, 32, 1, 8))[0, :, 0]
    assert torch.allclose(turned_q.norm(dim=-1), q.norm().expand(32), atol=1e-5)
    products = turned_q @ turned_k.T
    assert torch.allclose(products[3, 1], products[30, 28], atol=1e-4)
    assert not torch.allclose(products[3, 1], products[3, 2], atol=1e-4)


def test_rotary_leaves_position_zero_alone_and_follows_the_published_angles() -> None:
    rotary = Rotary(head_width=4, context=8)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    turned = rotary(x.expand(1, 8, 1, 4))[0, :, 0]
    assert torch.equal(turned[0], x)
    angle = 5 * torch.tensor([1.0, 10_000**-0.5])
    expected = torch.cat(
        (x[:2] * angle.cos() - x[2:] * angle.sin(), x[2:] * angle.cos() + x[:2] * angle.sin())
    )
    assert torch.allclose(turned[5], expected, atol=1e-6)


def test_bf16_autocast_leaves_the_master_weights_and_the_loss_in_fp32() -> None:
    net, tokens = model(), torch.randint(0, 256, (2, 16))
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(tokens, tokens.roll(1))
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(
        p.dtype == p.grad.dtype == torch.float32 for p in net.parameters() if p.grad is not None
    )


def test_the_reference_preset_has_25_million_parameters() -> None:
    with torch.device("meta"):
        count = Transformer(PRESETS["reference"].shape).parameter_count()
    assert 24.5e6 < count < 25.5e6
