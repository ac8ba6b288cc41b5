"""Any optimizers, one or several, in whatever holds them: one update, made by all or by none."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from spikeguard import CheckpointDirectory, ResumeError, attach
from spikeguard_protocol import Medium, Rollback, ScaleLr

from .job import FAST, Loader, assert_same, order, target_at
from .optimizer_kinds import KINDS, Holder
from .wire import Wire, await_that, served

SETTINGS = replace(FAST, snapshot_every=4, slow_signals_every=2)


class Training:
    """A small network whose matrices and whose vectors may have optimizers of their own."""

    def __init__(
        self, kind: str, folder: Path, spoilt: Sequence[int] = (), **attached: Any
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(3)
        self.spoils = nn.Linear(16, 16)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), self.spoils, nn.Linear(16, 8))
        self.given = KINDS[kind](
            [p for p in self.model.parameters() if p.ndim == 2],
            [p for p in self.model.parameters() if p.ndim < 2],
        )
        inside = getattr(self.given, "optimizers", self.given)
        self.optimizers = [inside] if isinstance(inside, optim.Optimizer) else list(inside)
        self.schedules = [optim.lr_scheduler.CosineAnnealingLR(o, 40) for o in self.optimizers]
        usual: dict[str, Any] = {
            "directory": folder / "guard",
            "settings": SETTINGS,
            "state": self.schedules,
        }
        self.guard = attach(self.model, self.given, run="test", **(usual | attached))
        self.spoilt = spoilt
        self.rates: list[list[float]] = []  # that each step was made with
        for each in self.optimizers:
            each.register_step_pre_hook(self._note_rates)
        self._batches: Iterator[Tensor] | None = None

    def _note_rates(self, optimizer: Any, *_: Any) -> None:
        self.rates.append([float(group["lr"]) for group in optimizer.param_groups])

    def step(self) -> None:
        self._batches = self._batches or iter(self.guard.batches(Loader()))
        batch = next(self._batches)
        self.guard.loss((self.model(batch) - batch.roll(1, 1)).square().mean()).backward()
        if self.guard.steps + 1 in self.spoilt:
            self.spoils.weight.grad[0, 0] = math.nan  # type: ignore[index]
        self.guard.clip_grad_norm_(1.0)
        gradients = [p.grad for p in self.model.parameters()]
        for each in [self.given] if isinstance(self.given, Holder) else self.optimizers:
            each.step()
        assert all(p.grad is g for p, g in zip(self.model.parameters(), gradients, strict=True))
        for schedule in self.schedules:
            schedule.step()
        for each in self.optimizers:
            each.zero_grad(set_to_none=True)
        self.guard.step()

    def train_to(self, step: int) -> None:
        while self.guard.steps < step:
            self.step()

    def everything(self) -> Any:
        """Weights, and all that every optimizer knows but its rate, which a schedule moves on."""
        states = copy.deepcopy([each.state_dict() for each in self.optimizers])
        for state in states:
            for group in state["param_groups"]:
                group.pop("lr")
        return copy.deepcopy(self.model.state_dict()), plain(states)


def plain(tree: Any) -> Any:
    """`tree` with the tensors inside those that are made of others."""
    if isinstance(tree, Tensor) and hasattr(tree, "__tensor_flatten__"):
        return {name: getattr(tree, name) for name in tree.__tensor_flatten__()[0]}
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return [plain(value) for value in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_update_leaves_all_that_every_optimizer_knows_as_it_was(
    kind: str, tmp_path: Path
) -> None:
    """In the first step, and later; gradients stay where they are, and training goes on."""
    training = Training(kind, tmp_path, spoilt=(1, 4))
    first = copy.deepcopy(training.model.state_dict())
    training.step()
    assert_same(training.model.state_dict(), first)
    training.train_to(3)
    before = training.everything()
    training.step()
    assert_same(training.everything(), before)
    training.step()
    after = training.everything()
    assert all(torch.isfinite(value).all() for value in after[0].values())
    moved = [not torch.equal(after[0][name], value) for name, value in before[0].items()]
    assert all(moved)
    assert training.guard.faults == {}
    training.guard.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_going_back_equals_never_having_left(kind: str, tmp_path: Path) -> None:
    """From memory, and from disk into optimizers that have made no step yet."""
    kept = CheckpointDirectory(tmp_path / "kept", every=6, background=False)
    training = Training(kind, tmp_path, checkpoints=kept)
    training.train_to(7)
    order(training, Rollback(target_at(training, 4, Medium.MEMORY), 4))
    training.step()
    assert training.guard.steps == 4
    training.train_to(8)
    expected, schedules = training.everything(), [s.state_dict() for s in training.schedules]
    assert training.guard.faults == {}
    training.guard.finish()
    again = Training(kind, tmp_path, checkpoints=kept)
    assert again.guard.resume() == 6
    again.train_to(8)
    straight = Training(kind, tmp_path / "straight")
    straight.train_to(8)
    for one in (again, straight):
        assert_same(one.everything(), expected)
        assert_same([s.state_dict() for s in one.schedules], schedules)
        assert one.guard.faults == {}
        one.guard.finish()


def bits(tree: Any) -> Any:
    """All that can be reached of an optimizer's, with a copy of each tensor's bytes."""
    if isinstance(tree, Tensor):
        if hasattr(tree, "__tensor_flatten__"):
            return [bits(getattr(tree, name)) for name in tree.__tensor_flatten__()[0]]
        flat = tree.detach().clone().contiguous().reshape(-1)
        return (tuple(tree.shape), tree.data_ptr(), flat.view(torch.uint8).tolist())
    if isinstance(tree, dict):
        return {id(k) if isinstance(k, Tensor) else str(k): bits(v) for k, v in tree.items()}
    return [bits(value) for value in tree] if isinstance(tree, list | tuple) else repr(tree)


@pytest.mark.parametrize("kind", KINDS)
def test_capturing_the_state_of_an_optimizer_changes_no_bit_of_it(
    kind: str, tmp_path: Path
) -> None:
    """Before its first step, when it has no state: no step is made, nobody's hook runs,
    weights, moments, counters, rates and random numbers are what and where they were."""
    kept = CheckpointDirectory(tmp_path / "kept", background=False)
    training = Training(kind, tmp_path, checkpoints=kept)
    called: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda *_: called.append("step"))

    def known() -> Any:
        held = [[each.state, each.param_groups] for each in training.optimizers]
        numbers = torch.get_rng_state().tolist()
        return bits([held, list(training.model.parameters())]), numbers

    before = known()
    assert training.guard.checkpoint() is not None
    assert known() == before
    assert called == []
    handle.remove()
    assert training.guard.faults == {}
    training.guard.finish()


@pytest.mark.parametrize("kind", ["fused adamw", "two kinds of groups", "container"])
def test_a_scaled_rate_is_that_of_every_optimizer_and_is_undone_in_all(
    kind: str, tmp_path: Path
) -> None:
    training, usual = Training(kind, tmp_path / "a"), Training(kind, tmp_path / "b")
    for one in (training, usual):
        one.train_to(2)
        if one is training:
            order(one, ScaleLr(0.5, 1))
        one.train_to(5)
    several = len(training.optimizers)
    for at, (scaled, rates) in enumerate(zip(training.rates, usual.rates, strict=True)):
        factor = 0.5 if at // several == 3 else 1.0  # heard of in the third step
        assert scaled == [rate * factor for rate in rates], at
    groups = [[g for o in one.optimizers for g in o.param_groups] for one in (training, usual)]
    assert [g["lr"] for g in groups[0]] == [g["lr"] for g in groups[1]]
    assert [s.get_last_lr() for s in training.schedules] == [
        s.get_last_lr() for s in usual.schedules
    ]
    for one in (training, usual):
        one.guard.finish()


def test_norms_are_of_all_optimizers_together(tmp_path: Path) -> None:
    """The second moment is of those that have one."""
    with served(Wire()) as wire:
        training = Training("adamw and muon", tmp_path, server=wire.url)
        norms = []
        for _ in range(6):
            before = [p.detach().clone() for p in training.model.parameters()]
            training.step()
            pairs = zip(training.optimizers, training.rates[-2:], strict=True)
            rate = {id(p): r[0] for o, r in pairs for p in o.param_groups[0]["params"]}
            moved = [
                (p.detach() - b).norm() / rate[id(p)]
                for p, b in zip(training.model.parameters(), before, strict=True)
            ]
            norms.append(torch.stack(moved).norm().item())
        await_that(lambda: len(wire.column("loss")) == 6)
        state = training.optimizers[0].state.values()
        v = torch.stack([kept["exp_avg_sq"].norm() for kept in state]).norm().item()
        training.guard.finish()
    measured = {step: value for (_, step), value in wire.column("update_norm").items()}
    assert measured
    for step, value in measured.items():
        assert value == pytest.approx(norms[step - 1], rel=1e-4)
    assert v > 0.0
    assert len(wire.column("adam_v_norm")) >= 2
    assert set(wire.column("lr")) == set(wire.column("loss"))


def test_a_checkpoint_without_the_state_of_one_optimizer_is_not_begun_from(tmp_path: Path) -> None:
    kept = CheckpointDirectory(tmp_path / "kept", every=2, background=False)
    alone = Training("adamw", tmp_path, checkpoints=kept, state=[])
    alone.train_to(2)
    alone.guard.finish()
    several = Training("adamw and muon", tmp_path, checkpoints=kept, state=[])
    with pytest.raises(ResumeError, match="the loop has AdamW, Muon"):
        several.guard.resume()
    several.guard.finish()


def test_parts_of_a_model_are_one_model(tmp_path: Path) -> None:
    """With names that both use, and a NaN in one of them."""
    torch.manual_seed(1)
    parts = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizers = [optim.AdamW(part.parameters(), lr=0.1, fused=True) for part in parts]
    guard = attach(parts, optimizers, run="test", directory=tmp_path, settings=SETTINGS)
    kept = []
    for step, batch in enumerate(guard.batches(torch.randn(9, 2, 4))):
        guard.loss(parts[1](torch.tanh(parts[0](batch))).square().mean()).backward()
        if step == 2:
            parts[0].weight.grad[0, 0] = math.nan  # type: ignore[index]
        grads = [p.grad for part in parts for p in part.parameters() if p.grad is not None]
        norm = torch.stack([g.norm() for g in grads]).norm()
        measured = guard.clip_grad_norm_(1e-3)
        assert torch.allclose(measured, norm, equal_nan=True)
        for each in optimizers:
            each.step()
            each.zero_grad()
        kept.append([copy.deepcopy(part.state_dict()) for part in parts])
        guard.step()
    assert_same(kept[2], kept[1])
    assert all(not torch.equal(kept[3][n]["weight"], kept[2][n]["weight"]) for n in (0, 1))
    back = (guard.state().snapshots or ())[0]
    assert back.step == 4
    order(guard, Rollback(back.name, 4))
    guard.step()
    assert_same([part.state_dict() for part in parts], kept[3])
    assert guard.faults == {}
    guard.finish()


# ---- what only the loop can show -----------------------------------------------------------------


def turns(loop: Any, batch: Tensor) -> None:
    """The second one in every third step alone."""
    loop.backward(batch)
    loop.optimizers[0].step()
    if loop.guard.steps % 3 == 2:
        loop.optimizers[1].step()


def two_losses(loop: Any, batch: Tensor) -> None:
    """Each optimizer after a backward pass of its own, in one step."""
    for each in loop.optimizers:
        each.zero_grad()
        loop.backward(batch)
        each.step()


def together(loop: Any, batch: Tensor) -> None:
    loop.backward(batch)
    for each in loop.optimizers:
        each.step()


class Pair:
    """Two optimizers that a loop steps as `way` says."""

    def __init__(self, folder: Path) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.optimizers = [
            optim.AdamW(self.model[0].parameters()),
            optim.SGD(self.model[1].parameters(), lr=0.1),
        ]
        self.guard = attach(
            self.model, self.optimizers, run="test", directory=folder, settings=SETTINGS
        )

    def backward(self, batch: Tensor) -> None:
        self.guard.loss(self.model(batch).square().mean()).backward()

    def train(self, way: Callable[[Any, Tensor], None]) -> None:
        for batch in self.guard.batches(torch.randn(12, 2, 4)):
            way(self, batch)
            for each in self.optimizers:
                each.zero_grad()
            self.guard.step()
        self.guard.finish()


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (together, ""),
        (turns, "SGD did not step in step 1"),
        (two_losses, "gradients of SGD changed"),
    ],
)
def test_optimizers_that_do_not_make_one_update_together_are_noticed_once(
    way: Callable[[Any, Tensor], None],
    said: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "spikeguard"):
        pair = Pair(tmp_path)
        pair.train(way)
    assert pair.guard.faults == ({"optimizers": 1} if said else {})
    assert caplog.text.count("did not step") + caplog.text.count("changed after") == bool(said)
    assert said in caplog.text


def test_an_optimizer_that_steps_within_the_backward_pass_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a hook in which nothing tells at `attach` what it will do."""
    model = nn.Linear(4, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    guard = attach(model, optimizer, run="test", directory=tmp_path, settings=SETTINGS)
    model.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with caplog.at_level(logging.WARNING, "spikeguard"):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            guard.step()
    assert guard.faults == {"optimizers": 1}
    assert "SGD steps within the backward pass" in caplog.text
    guard.finish()


def test_a_scaler_that_keeps_one_optimizer_from_stepping_keeps_all(tmp_path: Path) -> None:
    """The overflow lies in the gradients of one alone. It is no fault of the loop's."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    given = [
        optim.AdamW(model[0].parameters(), lr=1e-2),
        optim.SGD(model[1].parameters(), lr=1e-2, momentum=0.9),
    ]
    guard = attach(model, given, run="test", directory=tmp_path, settings=SETTINGS)
    scaler, moved = torch.amp.GradScaler("cpu", init_scale=8.0), []
    for step in range(3):
        before = [p.detach().clone() for p in model.parameters()]
        scaler.scale(guard.loss(model(torch.ones(2, 4)).square().mean())).backward()
        if step == 1:
            model[0].weight.grad[0, 0] = math.inf  # type: ignore[index, operator]
        for each in given:
            scaler.unscale_(each)
        guard.clip_grad_norm_(1.0)
        for each in given:
            scaler.step(each)
            each.zero_grad()
        scaler.update()
        guard.step()
        moved.append(
            [not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True)]
        )
    guard.finish()
    assert moved == [[True, True], [False, False], [True, True]]
    assert guard.faults == {}
