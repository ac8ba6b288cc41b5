"""Sees what a guarded job does from outside the guard, in the job's own process.

`install(plan)` before the job attaches. Each rank appends JSON lines to `RECORD/rank-N.jsonl`: the
items that the model was given in each step, the rates with which each optimizer stepped, digests of
weights and optimizer state around a NaN and at the marked step, the guard's own failures.
Invariants: nothing is read from the guard but its counters; nothing that the job trains on changes,
but for the gradient that the plan makes NaN.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

import spikeguard
from benchmarks.real_jobs_text import EVERY_RANK, Plan

REFUSED = 3  # exit status of a job whose `attach` refused


def install(plan: Plan) -> None:
    """Have every guard that is attached from now on watched."""
    attach = spikeguard.attach

    def attach_watched(model: Any, optimizer: Any, **arguments: Any) -> spikeguard.Guard:
        settings = arguments.get("settings") or spikeguard.Settings()
        try:
            guard = attach(model, optimizer, **{**arguments, "settings": settings})
        except spikeguard.AttachError as error:
            _write(plan, {"refused": str(error)})
            raise SystemExit(REFUSED) from error
        Probe(plan, guard, model, optimizer)
        return guard

    spikeguard.attach = attach_watched


class Probe:
    """Around one guard."""

    def __init__(self, plan: Plan, guard: spikeguard.Guard, model: Any, optimizer: Any) -> None:
        self._plan, self._guard = plan, guard
        self._models = list(_each(model))
        self._optimizers = list(_optimizers(optimizer))
        self._items: list[int] = []
        self._rates: list[list[float]] = []
        self._before: str | None = None  # the digest at the boundary before the NaN
        self._struck = False
        self._step, self._clip, self._finish = guard.step, guard.clip_grad_norm_, guard.finish
        wrapped: Any = guard
        wrapped.step, wrapped.clip_grad_norm_ = self.step, self.clip
        wrapped.finish = self.finish
        for part in self._models:
            part.register_forward_pre_hook(self._see, with_kwargs=True)
        for one in self._optimizers:
            hook = one.register_step_post_hook(self._see_rates)
            hooks: Any = one._optimizer_step_post_hooks
            hooks.move_to_end(hook.id, last=False)  # before the guard puts the rates back
        verbs = [str(verb) for verb in guard.capabilities]
        self._tell(attached=True, capabilities=verbs, process=os.getpid())

    def _see(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        ids = next((v for v in (*args, *kwargs.values()) if _is_ids(v)), None)
        if ids is not None and module.training:
            self._items.append(zlib.crc32(ids.detach().cpu().contiguous().numpy().tobytes()))

    def _see_rates(self, optimizer: Optimizer, *_: Any) -> None:
        self._rates.append([float(group["lr"]) for group in optimizer.param_groups])

    def clip(self, max_norm: float | None) -> Any:
        """A NaN in one gradient of the rank, in the step that the plan names, once a start."""
        if self._plan.nan is not None and not self._struck:
            step, rank = self._plan.nan
            if self._guard.steps + 1 == step:
                self._struck = True
                if rank in (_rank(), EVERY_RANK):
                    spoil(self._models)
        return self._clip(max_norm)

    def step(self, *args: Any, **named: Any) -> None:
        before = self._guard.steps
        self._step(*args, **named)
        line: dict[str, Any] = {"step": before + 1, "now": self._guard.steps, "items": self._items}
        line |= {"rates": self._rates, "at": time.time(), "position": self._guard.position}
        self._items, self._rates = [], []
        if self._plan.nan is not None and before + 1 == self._plan.nan[0] and self._struck:
            line["held"] = digest(self._models, self._optimizers) == self._before
            line["finite"] = all(
                bool(_local(p).isfinite().all()) for m in self._models for p in m.parameters()
            )
        if self._plan.nan is not None and self._guard.steps + 1 == self._plan.nan[0]:
            self._before = digest(self._models, self._optimizers)
        if self._guard.steps == self._plan.mark:
            line["digest"] = digest(self._models, self._optimizers)
        self._tell(**line)
        if self._plan.kill is not None and before + 1 == self._plan.kill and self._first_start():
            os.kill(os.getpid(), signal.SIGKILL)
        if self._guard.steps == self._plan.stop < self._plan.steps:
            self.finish()
            os._exit(0)

    def finish(self, *args: Any, **named: Any) -> None:
        ended = self._guard.ended
        self._finish(*args, **named)
        if not ended:
            self._tell(
                finished=self._guard.steps,
                faults=self._guard.faults,
                digest=digest(self._models, self._optimizers),
            )

    def _first_start(self) -> bool:
        """Each rank marks its own first start."""
        mark = Path(self._plan.record) / f"killed-{_rank()}"
        first = not mark.exists()
        mark.touch()
        return first

    def _tell(self, **line: Any) -> None:
        _write(self._plan, line)


def digest(models: Iterable[torch.nn.Module], optimizers: Iterable[Optimizer]) -> str:
    """Of all bits that this rank trains by: weights, buffers, moments, momenta and counters."""
    made = hashlib.sha256()
    for model in models:
        for tensor in (*model.parameters(), *model.buffers()):
            _add(made.update, tensor)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in sorted(optimizer.state.get(parameter, {}).items(), key=_key):
                    made.update(str(key).encode())
                    _add(made.update, value)
    return made.hexdigest()


def _key(entry: tuple[Any, Any]) -> str:
    return str(entry[0])


def _add(update: Callable[[bytes], object], value: Any) -> None:
    if isinstance(value, Tensor):
        update(
            _local(value).detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    else:
        update(repr(value).encode())


def spoil(models: Iterable[torch.nn.Module]) -> None:
    """Make one number of one gradient NaN."""
    for model in models:
        for parameter in model.parameters():
            if parameter.grad is not None and _local(parameter.grad).numel():
                _local(parameter.grad).view(-1)[0] = float("nan")
                return


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.dtype in (torch.int64, torch.int32) and value.dim() > 1
    )


def _each(model: Any) -> Iterator[torch.nn.Module]:
    yield from model if isinstance(model, list | tuple) else (model,)


def _optimizers(given: Any) -> Iterator[Optimizer]:
    """The optimizers that make updates: those in a list, or in a container, or the one given."""
    inside = getattr(given, "optimizers", given)
    if isinstance(inside, list | tuple):
        for each in inside:
            yield from _optimizers(each)
    else:
        yield given


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _write(plan: Plan, line: dict[str, Any]) -> None:
    with (Path(plan.record) / f"rank-{_rank()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
