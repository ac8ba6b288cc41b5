"""On a GPU the loop never waits for the device because of the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from spikeguard import Settings, attach, by_position
from spikeguard.optim.clipping import Rule, ZClip

from .device import CUDA, Waits, device, model

STEPS = 22  # slow signals and a snapshot among them; fewer than the rows of the readback
FEW = 10  # where everything comes at every step
EVERYTHING = Settings(
    slow_signals_every=1,
    flight_recorder=6,
    snapshot_every=2,
)
LOOPS: dict[str, tuple[Rule | None, Settings]] = {
    "by default": (None, Settings()),
    "with everything at every step": (None, EVERYTHING),
    "ZClip, with everything": (ZClip(), EVERYTHING),
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
    network_of: Callable[[], torch.nn.Module] = model,
) -> dict[str, int]:
    """Steps in the order of a real loop; what went wrong within the agent."""
    network = network_of()
    optimizer = optimizer_of(network)
    guard = attach(network, optimizer, run="gpu", directory=folder, settings=settings, clip=rule)
    batches = guard.batches(by_position(lambda position: position))
    for step, _ in zip(range(steps_of(settings)), batches, strict=False):
        if step == 1:  # what is made once is made by then
            waits.found.clear()
        guard.tokens(torch.empty(4, 16, dtype=torch.int64, device=CUDA))
        guard.log({"attention_logit_max": torch.empty((), device=CUDA), "share": 0.5})
        guard.sequence_losses(torch.empty(4, 16, device=CUDA))
        guard.loss(torch.empty((), device=CUDA))
        guard.clip_grad_norm_(1.0)
        for each in optimizer if isinstance(optimizer, list) else [optimizer]:
            each.step()
        guard.step()
    return dict(guard.faults)


class Scaling(TorchDispatchMode):
    """The types of what is multiplied by one factor, and of the factor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.types: list[tuple[set[torch.dtype], torch.dtype]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._foreach_mul_.Tensor:
            self.types.append(({each.dtype for each in args[0]}, args[1].dtype))
        return func(*args, **(kwargs or {}))


def test_clipping_multiplies_gradients_by_a_factor_of_their_own_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of another type CUDA takes a launch for each tensor, which is five times as slow."""
    with device(monkeypatch) as waits, Scaling() as scaling:
        assert loop(tmp_path, waits, None, Settings()) == {}
    assert {*map(str, scaling.types)} == {
        str(({kind}, kind)) for kind in (torch.bfloat16, torch.float32)
    }


@pytest.mark.parametrize("of", LOOPS)
def test_no_step_waits_for_the_device(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device(monkeypatch) as waits:
        faults = loop(tmp_path, waits, *LOOPS[of])
    assert waits.found == []
    assert faults == {}
    assert waits.operations > 20 * steps_of(LOOPS[of][1])
    assert waits.stale == []


@pytest.mark.parametrize("of", ["by default", "ZClip, with everything"])
def test_what_the_host_computes_with_has_arrived(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where weights and moments are offloaded, the loss alone lies on the device."""
    with device(monkeypatch) as waits:
        faults = loop(tmp_path, waits, *LOOPS[of], network_of=lambda: model("cpu"))
    assert waits.stale == []
    assert faults == {}


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
