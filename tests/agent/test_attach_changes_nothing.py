"""`attach()` reads: what lives is the same object with the same content afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getclosurevars
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spikeguard import AttachError, attach

from .optimizer_kinds import Lookahead, Sam


class Silent:
    """Has a state that it does not show."""

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("later")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(f"attach() loaded {state}")


class Closing:
    """An adapter as loops write it: its methods reach live objects through a closure."""

    def __init__(self, live: dict[str, Any]) -> None:
        self.state_dict: Callable[[], dict[str, Any]] = lambda: dict(live)
        self.load_state_dict: Callable[[Any], None] = live.update


def job() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


@pytest.mark.parametrize("argument", ["scheduler", "state"])
def test_what_does_not_show_its_state_is_refused(argument: str, tmp_path: Path) -> None:
    model, optimizer = job()
    more: dict[str, Any] = {argument: [Silent()] if argument == "state" else Silent()}
    with pytest.raises(AttachError, match=r"Silent.state_dict\(\) raises") as refused:
        attach(model, optimizer, run="test", directory=tmp_path, **more)
    assert refused.value.argument == argument


def held(value: Any, found: dict[int, Any]) -> dict[int, Any]:
    """By identity: every object that can be reached, and what it holds.

    Without hooks and the function `step`, by which a guard watches until it finishes.
    """
    if id(value) in found or isinstance(value, type):
        return found
    inside: Mapping[Any, Any] = {}
    if isinstance(value, Tensor):
        found[id(value)] = (value, value.detach().clone().reshape(-1).tolist())
    elif isinstance(value, dict):
        inside = value
    elif isinstance(value, list | tuple | set):
        inside = dict(enumerate(value))
    elif callable(value) and hasattr(value, "__code__"):
        inside = {**getclosurevars(value).nonlocals, "self": getattr(value, "__self__", None)}
    elif hasattr(value, "__dict__"):
        inside = vars(value)
    else:
        found[id(value)] = (value, repr(value))
    watched = {k for k, v in inside.items() if "hook" in str(k) or (k == "step" and callable(v))}
    inside = {k: v for k, v in inside.items() if k not in watched}
    if inside or id(value) not in found:
        # `value` is kept, so that its identity is nobody else's
        found[id(value)] = (value, [(str(k), id(v)) for k, v in inside.items()])
    for each in inside.values():
        held(each, found)
    return found


def sam(parameters: Any) -> torch.optim.Optimizer:
    return Sam(parameters, torch.optim.SGD, lr=0.1, momentum=0.9)


WRAPPERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sam": sam,
    "lookahead": lambda parameters: Lookahead(torch.optim.AdamW(parameters, lr=1e-2)),
    "lookahead of sam": lambda parameters: Lookahead(sam(parameters)),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("stepped", [False, True])
def test_every_live_object_is_the_same_with_the_same_content(
    kind: str, stepped: bool, tmp_path: Path
) -> None:
    """Optimizers that hold others, a schedule, a scaler, an adapter that closes over live state."""
    model, _ = job()
    optimizer = WRAPPERS[kind](model.parameters())
    if stepped:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    state = [Closing({"warm_up": True}), torch.amp.GradScaler("cpu", init_scale=64.0)]
    roots, step = [model, optimizer, schedule, state], vars(optimizer).get("step")
    before, numbers = held(roots, {}), torch.get_rng_state()
    guard = attach(
        model, optimizer, run="test", directory=tmp_path, scheduler=schedule, state=state
    )
    after = held(roots, {})
    guard.finish()
    assert torch.equal(torch.get_rng_state(), numbers)
    assert before.keys() == after.keys()
    assert [c for _, c in after.values()] == [c for _, c in before.values()]
    assert vars(optimizer).get("step") is step
