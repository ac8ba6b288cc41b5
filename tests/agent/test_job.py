"""`attach()` finds what it would spoil, or could not do, and says so before anything has begun."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

from spikeguard import AttachError, CheckpointDirectory, Guard, UserCheckpoints, attach
from spikeguard_protocol import Verb

from .job import FAST
from .optimizer_kinds import Holder
from .wire import Wire, await_that, served


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def refusal(model: nn.Module, optimizer: Any, **attached: Any) -> AttachError:
    with pytest.raises(AttachError) as raised:
        attach(model, optimizer, run="test", settings=FAST, **attached)
    return raised.value


def answers(guard: Guard) -> dict[str, tuple[str, str]]:
    """Of each row of the table the answer and the reason."""
    return {row.name: (row.answer.value, row.reason) for row in guard.state().abilities}


def train(guard: Guard, model: nn.Module, optimizer: Any, steps: int) -> None:
    for batch in guard.batches([torch.randn(2, 4) for _ in range(steps)]):
        guard.loss(model(batch).square().mean()).backward()
        guard.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        guard.step()


def test_parameters_that_train_elsewhere_are_named() -> None:
    """A NaN would be kept from one half of the model and made in the other."""
    model = network()
    half = optim.AdamW(model[0].parameters(), fused=True)
    other = optim.SGD(model[2].parameters(), lr=0.1)
    error = refusal(model, half, state=[other])
    assert error.argument == "optimizer"
    assert "'2.weight', '2.bias' of the model train" in error.problem
    assert "in a list, or set requires_grad=False" in error.remedy
    deep = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
    error = refusal(deep, optim.AdamW(deep[0].parameters()))
    assert "'1.weight', '1.bias', '2.weight' and 3 more" in error.problem


@pytest.mark.parametrize("given", ["container", "list", "dict"])
def test_what_makes_the_updates_is_watched_in_whatever_holds_it(given: str) -> None:
    """Asking a container for its state would make it step; its own groups have no rate."""
    model = network()
    inner = optim.AdamW(model.parameters(), fused=True)
    holder: Any = {"container": Holder(inner), "list": [inner], "dict": {"adamw": inner}}[given]
    guard = attach(model, holder, run="test", settings=FAST)
    assert not inner.state
    train(guard, model, inner, 3)
    assert answers(guard)["scale_lr"][0] == answers(guard)["skip_update"][0] == "yes"
    guard.finish()
    assert guard.faults == {}


def test_an_optimizer_that_hides_others_is_refused_with_those_inside() -> None:
    model = network()
    hiding = Holder(optim.AdamW(model.parameters(), fused=True))
    hiding.inner = hiding.optimizers  # type: ignore[attr-defined]
    del hiding.optimizers
    error = refusal(model, hiding)
    assert error.argument == "optimizer"
    assert "(AdamW)" in error.problem
    assert "optimizer.inner[0]" in error.remedy


@pytest.mark.parametrize("given", [[], {}, "adamw", 3])
def test_what_holds_no_optimizer_is_refused(given: Any) -> None:
    assert "or a list of those that do" in refusal(network(), given).remedy


class Chained:
    """Calls others, each in an object of its own that steps it, as Megatron-core's does."""

    def __init__(self, *optimizers: optim.Optimizer) -> None:
        self.chained_optimizers = [Chained() for _ in optimizers]
        for each, optimizer in zip(self.chained_optimizers, optimizers, strict=True):
            each.optimizer = optimizer  # type: ignore[attr-defined]


def test_an_object_that_keeps_optimizers_in_others_is_refused_with_the_way_to_them() -> None:
    model = network()
    given = Chained(*(optim.AdamW(part.parameters()) for part in (model[0], model[2])))
    error = refusal(model, given)
    assert error.problem == "it is a Chained"
    assert error.remedy == (
        "Give those inside, in a list: optimizer.chained_optimizers[0].optimizer, "
        "optimizer.chained_optimizers[1].optimizer"
    )


def test_a_parameter_of_two_optimizers_is_named() -> None:
    model = network()
    both = [optim.AdamW(model.parameters()), optim.SGD(model[0].parameters(), lr=0.1)]
    assert "'0.weight', '0.bias' belong to several" in refusal(model, both).problem


class Unhooked(optim.Optimizer):
    """Wraps another and never became an optimizer of torch's, as some libraries' do not."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, _: Any) -> None: ...


def test_a_wrapper_without_hooks_is_refused_with_the_one_inside() -> None:
    model = network()
    error = refusal(model, Unhooked(optim.AdamW(model.parameters())))
    assert error.argument == "optimizer"
    assert error.remedy.endswith("optimizer.optimizer")


def test_an_optimizer_that_steps_in_the_backward_pass_is_refused() -> None:
    from torch.distributed import optim as backward_optimizers  # which takes a while to import

    model = network()
    apply: Any = vars(backward_optimizers)["_apply_optimizer_in_backward"]
    apply(optim.SGD, model.parameters(), {"lr": 0.1})
    error = refusal(model, optim.SGD(model.parameters(), lr=0.1))
    assert "within the backward pass" in error.problem


class Rateless(optim.Optimizer):
    """Finds its own rate; `lr` is there and empty, as in one that goes by relative steps."""

    def __init__(self, parameters: Any, defaults: dict[str, Any]) -> None:
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=1e-2)


@pytest.mark.parametrize("defaults", [{}, {"lr": None}])
def test_without_rates_all_is_measured_that_can_be_and_none_is_scaled(
    defaults: dict[str, Any], tmp_path: Path
) -> None:
    model = network()
    optimizer = Rateless(model.parameters(), defaults)
    with served(Wire()) as wire:
        guard = attach(
            model, optimizer, run="test", settings=FAST, directory=tmp_path, server=wire.url
        )
        train(guard, model, optimizer, 12)
        await_that(lambda: len(wire.column("loss")) == 12)
        guard.finish()
    assert guard.faults == {}
    assert len(wire.column("grad_norm")) == 12
    assert wire.column("lr") == wire.column("update_norm") == {}
    assert Verb.SCALE_LR not in guard.capabilities
    answer, reason = answers(guard)["scale_lr"]
    assert answer == "no"
    assert "Rateless" in reason


class Unsaved(optim.SGD):
    """Has no state to show, as one whose state is spread over ranks in a way of its own."""

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("use distributed_state_dict")


class Flat(optim.SGD):
    """Shows its state under names of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {"flat": super().state_dict()}


@pytest.mark.parametrize("kind", [Unsaved, Flat])
def test_an_optimizer_whose_state_cannot_go_back_is_not_saved(
    kind: type[optim.SGD], tmp_path: Path
) -> None:
    """No snapshots and no checkpoints that nobody can restore; the job's own functions can."""
    model = network()
    optimizer = kind(model.parameters(), lr=1e-2, momentum=0.9)
    kept = CheckpointDirectory(tmp_path / "checkpoints", every=2, background=False)
    error = refusal(model, optimizer, checkpoints=kept)
    assert error.argument == "checkpoints"
    assert kind.__name__ in error.problem
    assert "UserCheckpoints" in error.remedy
    own: dict[str, Any] = {}

    def save(_: Path) -> None:
        own["model"] = copy.deepcopy(model.state_dict())

    def load(_: Path) -> None:
        model.load_state_dict(own["model"])

    theirs = UserCheckpoints(tmp_path / "checkpoints", save, load, every=2)
    for begun in (0, 4):
        guard = attach(model, optimizer, run="test", settings=FAST, checkpoints=theirs)
        assert guard.resume() == begun
        train(guard, model, optimizer, 4)
        assert answers(guard)["rewind_from_memory"][0] == "no"
        assert Verb.ROLLBACK in guard.capabilities
        guard.finish()
        assert guard.faults == {}
