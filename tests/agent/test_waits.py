"""On a GPU the loop never waits for the device because of the agent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim import SGD, AdamW, Optimizer

from spikeguard import Settings, attach
from spikeguard.optim.clipping import AdaGC, Hybrid, Rule

from .device import CUDA, Waits, device, model

STEPS = 22  # slow signals and a snapshot among them; fewer than the rows of the readback
FEW = 10  # where everything comes at every step
EVERYTHING = Settings(
    slow_signals_every=1,
    layer_norms_every=1,
    sampled_signals_every=1,
    unchanged_parameters=True,
    flight_recorder=6,
    drop_z=6.0,
    snapshot_every=2,
)
LOOPS: dict[str, tuple[Rule | None, Settings]] = {
    "by default": (None, Settings()),
    "with everything at every step": (None, EVERYTHING),
    "AdaGC": (AdaGC(), Settings()),
    "both, with everything": (Hybrid(), EVERYTHING),
}


def adam(network: torch.nn.Module) -> Optimizer:
    return AdamW(network.parameters(), fused=True)


def steps_of(settings: Settings) -> int:
    return FEW if settings is EVERYTHING else STEPS


def loop(
    folder: Path,
    waits: Waits,
    rule: Rule | None,
    settings: Settings,
    optimizer_of: Callable[[torch.nn.Module], Any] = adam,
) -> dict[str, int]:
    """Steps in the order of a real loop; what went wrong within the agent."""
    network = model()
    optimizer = optimizer_of(network)
    guard = attach(network, optimizer, run="gpu", directory=folder, settings=settings, clip=rule)
    for step in range(steps_of(settings)):
        if step == 1:  # what is made once is made by then
            waits.found.clear()
        guard.tokens(torch.empty(4, 16, dtype=torch.int64, device=CUDA))
        guard.log({"router_entropy": torch.empty((), device=CUDA), "share": 0.5})
        guard.attention_logit(torch.empty(4, 2, 16, 16, device=CUDA))
        guard.sequence_losses(torch.empty(4, 16, device=CUDA))
        guard.loss(torch.empty((), device=CUDA))
        guard.clip_grad_norm_(1.0)
        for each in optimizer if isinstance(optimizer, list) else [optimizer]:
            each.step()
        guard.step()
    return dict(guard.faults)


@pytest.mark.parametrize("of", LOOPS)
def test_no_step_waits_for_the_device(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device(monkeypatch) as waits:
        faults = loop(tmp_path, waits, *LOOPS[of])
    assert waits.found == []
    assert faults == {}
    assert waits.operations > 20 * steps_of(LOOPS[of][1])


def sgd(network: torch.nn.Module) -> Optimizer:
    return SGD(network.parameters(), lr=0.1)


def mixed(network: torch.nn.Module) -> list[Optimizer]:
    bf16, fp32 = network.children()
    return [adam(bf16), sgd(fp32)]


@pytest.mark.parametrize("of", [sgd, mixed])
def test_a_skip_that_was_asked_for_with_a_sync_is_the_one_wait_of_a_step(
    of: Callable[[torch.nn.Module], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device(monkeypatch) as waits:
        loop(tmp_path, waits, None, Settings(skip_by_sync=True), of)
    assert len(waits.found) == STEPS - 1
    assert len(set(waits.found)) == 1


def test_several_fused_optimizers_wait_no_more_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device(monkeypatch) as waits:
        faults = loop(
            tmp_path, waits, None, EVERYTHING, lambda network: list(map(adam, network.children()))
        )
    assert (waits.found, faults) == ([], {})


WAITING: dict[str, Callable[[torch.Tensor], object]] = {
    "a value": lambda t: t.item(),
    "a branch": lambda t: bool(t > 0),
    "a copy": lambda t: t.cpu(),
    "a copy into memory that is not pinned": lambda t: t.to("cpu", non_blocking=True),
    "a number sent there": lambda _: torch.tensor(1.0, device=CUDA),
    "a size": lambda t: t.reshape(1).masked_select(t.reshape(1) > 0),
}


@pytest.mark.parametrize("what", WAITING)
def test_whatever_waits_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with device(monkeypatch) as waits:
        value = torch.empty((), device=CUDA)
        with suppress(DataDependentOutputException, DynamicOutputShapeException):
            WAITING[what](value)
    assert len(waits.found) == 1
