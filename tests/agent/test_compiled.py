"""A compiled model, a compiled optimizer step: measured, guarded and taken back like any other."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from spikeguard import attach
from spikeguard_protocol import BatchRange, Medium, Rollback

from .job import FAST, Job, assert_same, order, target_at
from .test_exactness import Without
from .wire import Wire, served

if TYPE_CHECKING:
    from torch._dynamo.testing import CompileCounterWithBackend

pytestmark = pytest.mark.slow

STEPS, SPOILT = 12, (1, 8)
NO_COMPILER = shutil.which("c++") is None and shutil.which("g++") is None
INDUCTOR = pytest.param(
    "inductor", marks=pytest.mark.skipif(NO_COMPILER, reason="inductor needs a C++ compiler")
)


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    import torch._dynamo  # half a second, which only this file has to spend

    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def counting(backend: str) -> CompileCounterWithBackend:
    """`backend`, and how often something was compiled with it."""
    from torch._dynamo.testing import CompileCounterWithBackend

    return CompileCounterWithBackend(backend)


class Trained:
    """A few steps with two spoilt ones; remembers which of them changed nothing at all."""

    def __init__(self, wire: Wire, folder: Path, kind: Any, backend: Any, fused: bool) -> None:
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.optimizer = kind(self.model.parameters(), lr=1e-2, fused=fused)
        self.guard = attach(
            self.model,
            self.optimizer,
            run="test",
            server=wire.url,
            directory=folder,
            settings=FAST,
        )
        step = torch.compile(self.optimizer.step, backend=backend) if backend else None
        self.update = step or self.optimizer.step
        self.unchanged = [n for n in range(1, STEPS + 1) if self._step(n)]
        self.guard.finish()

    def _step(self, number: int) -> bool:
        """Whether weights, moments and counters are, bit for bit, what they were."""
        self.guard.loss(self.model(torch.randn(4, 8)).square().mean()).backward()
        if number in SPOILT:
            next(self.model.parameters()).grad[0, 0] = math.nan  # type: ignore[index]
        self.guard.clip_grad_norm_(1.0)
        before = copy.deepcopy(self.everything())
        self.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.guard.step()
        return _same(before, self.everything())

    def everything(self) -> Any:
        return self.model.state_dict(), self.optimizer.state_dict()["state"]


def _same(before: Any, after: Any) -> bool:
    """Where there was no state yet, that it was made of zeros."""
    if not before[1]:
        made = [v for state in after[1].values() for v in state.values()]
        return _same((before[0], {0: {}}), (after[0], {0: {}})) and not any(map(torch.any, made))
    try:
        assert_same(before, after)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("backend", ["eager", INDUCTOR])
def test_a_compiled_step_drops_a_non_finite_update_and_is_else_what_it_was(
    tmp_path: Path, backend: str
) -> None:
    """Spoilt once while it is traced and once later; the rest to the bit as if not compiled."""
    kind = torch.optim.AdamW
    with served(Wire()) as wire:
        compiled = Trained(wire, tmp_path / "compiled", kind, backend, fused=True)
        told = {name: wire.column(name) for name in ("update_dropped", "grad_norm", "update_norm")}
        plain = Trained(wire, tmp_path / "plain", kind, None, fused=True)
    assert compiled.unchanged == plain.unchanged == list(SPOILT)
    assert_same(compiled.everything(), plain.everything())
    assert compiled.guard.faults == {}
    assert not hasattr(compiled.optimizer, "found_inf")
    dropped = {step for (_, step), value in told["update_dropped"].items() if value}
    assert dropped == {step for (_, step), v in told["grad_norm"].items() if math.isnan(v)}
    assert dropped == set(SPOILT)
    assert told["update_norm"][0, 5] > 0.0


def compiled_job(folder: Path, loader: Any = None) -> tuple[Job, CompileCounterWithBackend]:
    job, counter = Job(folder, loader=loader), counting("aot_eager")
    job.model.compile(backend=counter)
    job.optimizer.step = torch.compile(job.optimizer.step, backend=counter)  # type: ignore[method-assign]
    return job, counter


def test_a_compiled_run_goes_back_bit_for_bit_and_compiles_nothing_anew(tmp_path: Path) -> None:
    job, counter = compiled_job(tmp_path / "back")
    job.train_to(25)
    compiled = counter.frame_count
    order(job, Rollback(target_at(job, 20, Medium.MEMORY), 20, BatchRange(22, 24)))
    job.train_step()
    assert job.guard.steps == 20
    job.train_to(30)
    job.guard.finish()
    assert counter.frame_count == compiled > 0
    assert job.guard.faults == {}
    other, _ = compiled_job(tmp_path / "without", Without([(22, 24)]))
    other.train_to(30)
    other.guard.finish()
    assert_same(job.everything(), other.everything())
