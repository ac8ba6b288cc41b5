"""Makes the faults happen, in the batches and around the optimizer's step, alike on all ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikeguard_trainer.faults import Fault, FaultName

_LIMIT = 2**63


def _generator(*parts: int) -> torch.Generator:
    """Random numbers that depend on `parts` alone, made on the CPU for every device."""
    seed = 0
    for part in parts:
        seed = (seed * 6_364_136_223_846_793_005 + part + 1) % _LIMIT
    return torch.Generator().manual_seed(seed)


# --- in the data ------------------------------------------------------------------------------


def corrupt_batch(
    faults: Sequence[Fault], seed: int, position: int, tokens: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The whole batch at `position`, (rows, context) each, as the faults leave it."""
    for fault in faults:
        if fault.hits_position(position) and fault.name in _SPOIL:
            rows = round(fault.strength * len(tokens))
            random = _generator(seed, position)
            spoilt = _SPOIL[fault.name](tokens[:rows], targets[:rows], random)
            tokens = torch.cat((spoilt[0], tokens[rows:]))
            targets = torch.cat((spoilt[1], targets[rows:]))
    return tokens, targets


def _random_bytes(tokens: Tensor, _: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    rows, context = tokens.shape
    text = torch.randint(0, 256, (rows, context + 1), generator=random)
    return text[:, :-1], text[:, 1:]


def _one_byte(tokens: Tensor, _: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    text = torch.randint(128, 256, (len(tokens), 1), generator=random).expand_as(tokens)
    return text, text


def _shuffled(tokens: Tensor, targets: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    order = torch.rand(targets.shape, generator=random).argsort(dim=1)
    return tokens, targets.gather(1, order)


_Spoil = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]
_SPOIL: dict[FaultName, _Spoil] = {
    FaultName.BAD_BATCH: _random_bytes,
    FaultName.BAD_BATCH_REPEATED: _one_byte,
    FaultName.BAD_BATCH_SHUFFLED: _shuffled,
}

# --- around the step --------------------------------------------------------------------------


class FaultInjector:
    """Strikes during a step, after its backward pass. `memory` remembers what happened."""

    def __init__(
        self,
        faults: Sequence[Fault],
        model: nn.Module,
        optimizer: Optimizer,
        *,
        memory: Path,
        seed: int,
        writes: bool = True,
    ) -> None:
        self._faults = tuple(faults)
        self._model, self._optimizer, self._seed = model, optimizer, seed
        self._memory, self._writes = memory, writes
        self._begun = _read_memory(memory) if faults else set()
        self._under_way: set[Fault] = set()
        self._newest_step = 0
        self.other_data = False  # while the job reads data that no fault hangs on
        self._rolled_back_to: int | None = None  # by the first rollback of this attempt

    def corrupt(self, position: int, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The batch at `position` as the faults leave it."""
        faults = () if self.other_data else self._faults
        return corrupt_batch(faults, self._seed, position, tokens, targets)

    def swap_data(self, other: bool) -> None:
        """Read other data from here on, or the usual again."""
        self.other_data = other

    @contextmanager
    def strike(self, step: int, position: int) -> Iterator[None]:
        """Surround clipping and the optimizer's step of `step`, which trains on `position`."""
        with torch.no_grad():
            bump = 1.0
            for fault in self._due(step, position):
                bump *= self._apply(fault, step)
        if bump == 1.0:
            yield
            return
        kept = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] * bump
        try:
            yield
        finally:
            for group, lr in zip(self._optimizer.param_groups, kept, strict=True):
                group["lr"] = lr

    def _due(self, step: int, position: int) -> list[Fault]:
        if step <= self._newest_step:
            self._under_way.clear()  # the run went back: what had begun is over
            if self._rolled_back_to is None:
                self._rolled_back_to = step - 1
        self._newest_step = step
        now = [f for f in self._faults if f.hits_step(step, self._rolled_back_to)]
        if starting := {fault for fault in now if str(fault) not in self._begun}:
            self._remember({str(fault) for fault in starting})
            self._under_way |= starting
        hit = () if self.other_data else self._faults
        of_data = [fault for fault in hit if fault.hits_position(position)]
        return [fault for fault in now if fault in self._under_way] + of_data

    def _remember(self, starting: set[str]) -> None:
        """Before the strike: a crash in between loses a fault, it never repeats one."""
        self._begun |= starting
        if not self._writes:
            return
        draft = self._memory.with_suffix(".tmp")
        draft.write_text(json.dumps(sorted(self._begun), indent=1))
        os.replace(draft, self._memory)

    def _apply(self, fault: Fault, step: int) -> float:
        """Do it; returns the factor for this step's learning rate."""
        if fault.name in _ON_MODEL:
            _ON_MODEL[fault.name](self._model, fault.strength, _generator(self._seed, step))
        elif fault.name is FaultName.MOMENT_RESET:
            _shrink_second_moment(self._optimizer, fault.strength)
        return fault.strength if fault.name in _ON_RATE else 1.0


def _read_memory(file: Path) -> set[str]:
    return set(json.loads(file.read_text())) if file.exists() else set()


def _matrices(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.dim() >= 2]


def _gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def _ascend(model: nn.Module, _strength: float, _: torch.Generator) -> None:
    torch._foreach_neg_(_gradients(model))


def _scale_weights(model: nn.Module, strength: float, _: torch.Generator) -> None:
    torch._foreach_mul_(_matrices(model), strength)


def _add_noise(model: nn.Module, strength: float, random: torch.Generator) -> None:
    for weight in _matrices(model):
        noise = torch.randn(weight.shape, generator=random).to(weight)
        weight.add_(noise * (strength * weight.square().mean().sqrt()))


def _flip_bit(model: nn.Module, strength: float, random: torch.Generator) -> None:
    """In one weight of the middle of the model that writes into the residual stream."""
    named = [p for name, p in model.named_parameters() if name.endswith("feed.out.weight")]
    weight = named[len(named) // 2].view(-1)
    index = int(torch.randint(0, len(weight), (), generator=random))
    bits = weight[index : index + 1].view(torch.int32)
    bits ^= 1 << int(strength) if strength < 31 else -(1 << 31)


def _poison_gradient(model: nn.Module, strength: float, random: torch.Generator) -> None:
    gradients = _gradients(model)
    for _ in range(int(strength)):
        chosen = gradients[int(torch.randint(0, len(gradients), (), generator=random))].view(-1)
        chosen[int(torch.randint(0, len(chosen), (), generator=random))] = torch.nan


def _enlarge_gradients(model: nn.Module, strength: float, _: torch.Generator) -> None:
    torch._foreach_mul_(_gradients(model), strength)


def _shrink_second_moment(optimizer: Optimizer, divisor: float) -> None:
    """The step counters stay, so that no bias correction makes up for what is gone."""
    for state in optimizer.state.values():
        state["exp_avg_sq"] /= divisor


_ON_RATE = (FaultName.LR_BUMP, FaultName.GRADIENT_ASCENT)
_OnModel = Callable[[nn.Module, float, torch.Generator], None]
_ON_MODEL: dict[FaultName, _OnModel] = {
    FaultName.GRADIENT_ASCENT: _ascend,
    FaultName.WEIGHT_SCALE: _scale_weights,
    FaultName.WEIGHT_NOISE: _add_noise,
    FaultName.BIT_FLIP: _flip_bit,
    FaultName.GRADIENT_JUMP: _enlarge_gradients,
    FaultName.NAN_GRAD: _poison_gradient,
}
