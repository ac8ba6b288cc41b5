"""The z-score drop, by choice: extreme updates stay out, and it lets go of a level that moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from spikeguard import Guard, Settings, attach
from spikeguard.optim.update_skipper import Extremes

ASKED = Settings(drop_z=6.0, drop_z_warm_up=10, drop_z_limit=4, snapshot_every=0)


class Line:
    """One weight vector whose gradient norm the test chooses; no loss is noted unless given."""

    def __init__(self, folder: Path, settings: Settings, optimizer: str = "fused") -> None:
        self.weight = nn.Linear(4, 1, bias=False)
        kinds: dict[str, Any] = {
            "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
            "foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
        }
        self.optimizer = kinds[optimizer](self.weight.parameters())
        self.guard: Guard = attach(
            self.weight, self.optimizer, run="test", directory=folder, settings=settings
        )
        self.count = 0

    def step(self, norm: float, loss: float | None = None) -> bool:
        """Whether the weights moved."""
        self.count += 1
        noise = 1.0 + 0.02 * ((self.count * 7) % 5 - 2)
        self.weight.weight.grad = torch.full((1, 4), norm * noise / 2.0)
        if loss is not None:
            self.guard.loss(torch.tensor(loss * noise))
        before = self.weight.weight.detach().clone()
        self.optimizer.step()
        self.guard.step()
        return not torch.equal(before, self.weight.weight)


def test_an_extreme_gradient_is_dropped_only_by_choice(tmp_path: Path) -> None:
    asked, default = Line(tmp_path / "a", ASKED), Line(tmp_path / "b", Settings())
    for line in (asked, default):
        assert all(line.step(1.0) for _ in range(30))
    assert (asked.step(50.0), default.step(50.0)) == (False, True)
    assert asked.step(1.0)
    assert asked.guard.faults == default.guard.faults == {}


def test_an_extreme_loss_is_dropped_too(tmp_path: Path) -> None:
    line = Line(tmp_path, ASKED)
    assert all(line.step(1.0, 2.5) for _ in range(30))
    assert not line.step(1.0, 9.0)
    assert line.step(1.0, 2.5)


def test_nothing_is_judged_while_warming_up(tmp_path: Path) -> None:
    line = Line(tmp_path, ASKED)
    assert all(line.step(norm) for norm in [1.0] * 5 + [50.0])


def test_after_as_many_in_a_row_as_configured_it_lets_go(tmp_path: Path) -> None:
    line = Line(tmp_path, ASKED)
    assert all(line.step(1.0) for _ in range(30))
    moved = [line.step(30.0) for _ in range(12)]
    assert moved == [False] * 4 + [True] * 8
    assert not line.step(900.0)


def test_a_dropped_value_never_enters_the_baseline() -> None:
    extremes, none = Extremes(6.0, 5, 10), torch.zeros(())
    for n in range(40):
        extremes.extreme((torch.tensor(1.0 + 0.02 * (n % 5)), None), none)
    before = extremes.state_dict()[0]["state"][:3]
    assert float(extremes.extreme((torch.tensor(80.0), None), none)) == 1.0
    extremes.extreme((torch.tensor(torch.nan), None), torch.ones(()))
    assert torch.equal(before, extremes.state_dict()[0]["state"][:3])


def test_the_decision_is_taken_from_unscaled_gradients(tmp_path: Path) -> None:
    """The scale doubles and doubles again: the norm as seen by the judge stays what it is."""
    line = Line(tmp_path, ASKED)
    for n in range(40):
        line.optimizer.grad_scale = torch.tensor(2.0 ** (8 + n // 12 * 4))
        assert line.step(float(line.optimizer.grad_scale)), n
