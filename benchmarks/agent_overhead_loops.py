"""The loops that `agent_overhead` compares: one model, one optimizer, one way of guarding each.

Lightning's SpikeDetection is the library's own class; ZClip's and OLMo-core's rules are written
here from their descriptions: what they cost is their wait for the device, or their launches.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from spikeguard import Guard, Settings, attach, by_position

Clip = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Size:
    """A decoder-only transformer and its batch."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    length: int
    sequences: int  # length * sequences tokens a step


REFERENCE = Size(16384, 384, 10, 6, 512, 8)  # 24 M parameters, 4,096 tokens
SMALL = Size(2048, 128, 2, 4, 128, 4)  # for --quick: 0.7 M parameters, 512 tokens
LARGE = Size(32768, 1024, 26, 16, 512, 8)  # for a GPU: 361 M parameters, 4,096 tokens


class Decoder(nn.Module):
    """Causal transformer with tied embeddings."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.place = nn.Parameter(torch.zeros(size.length, size.width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                size.width, size.heads, 4 * size.width, 0.0, "gelu", batch_first=True,
                norm_first=True,
            )
            for _ in range(size.layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(size.width)
        mask = nn.Transformer.generate_square_subsequent_mask(size.length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) tokens -> () mean nats per token of the next one."""
        hidden = self.embedding(tokens) + self.place
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask.to(hidden.dtype), is_causal=True)
        logits = self.norm(hidden) @ self.embedding.weight.T
        return functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()
        )


class Loop:
    """One training loop; `step` trains once."""

    def __init__(self, size: Size, device: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        kind = torch.bfloat16 if device == "cuda" else torch.float32
        self.model = Decoder(size).to(device=device, dtype=kind)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.tokens = torch.randint(size.vocabulary, (size.sequences, size.length), device=device)
        self.clip: Clip | None = None
        self.allow: Callable[[Tensor], bool] = lambda _: True  # whether the update may happen
        self.guard: Guard | None = None
        self._batches: Iterator[int] | None = None
        self._held: list[Tensor | None] = []
        self._held_loss = torch.zeros(())

    def watch(self, guard: Guard) -> None:
        """Clip, step and take items as `guard` has it; without items it takes no snapshots."""
        self.guard, self.clip = guard, lambda: guard.clip_grad_norm_(1.0)
        self._batches = iter(guard.batches(by_position(int)))
        next(self._batches)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def step(self) -> None:
        self.step_but_the_guards()
        self._end_step()

    def step_but_the_guards(self) -> None:
        """A whole step without `guard.step`."""
        loss = self.model(self.tokens)
        self._note(loss)
        loss.backward()
        self._update(loss)

    def hold_gradients(self) -> None:
        """Keep those of one sequence's backward pass for `step_on_held`."""
        loss = self.model(self.tokens[:1])
        loss.backward()
        self._held = [p.grad for p in self.parameters]
        self._held_loss = loss.detach()

    def step_on_held(self) -> None:
        """The step without forward and backward: what any guard can change is in here."""
        for parameter, held in zip(self.parameters, self._held, strict=True):
            parameter.grad = held
        self._note(self._held_loss)
        self._update(self._held_loss)
        self._end_step()

    def _note(self, loss: Tensor) -> None:
        if self.guard is not None:
            self.guard.loss(loss)

    def _update(self, loss: Tensor) -> None:
        if self.clip is not None:
            self.clip()
        if self.allow(loss):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def _end_step(self) -> None:
        if self.guard is not None:
            self.guard.step()
        self.next_batch()

    def next_batch(self) -> None:
        """Take the next item, where the guard hands them out."""
        if self._batches is not None:
            next(self._batches)

    def end(self) -> None:
        if self.guard is not None:
            self.guard.finish("benchmark")


def bare(size: Size, device: str) -> Loop:
    return Loop(size, device)


def clipped(size: Size, device: str) -> Loop:
    loop = Loop(size, device)
    loop.clip = lambda: nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
    return loop


def guarded(
    size: Size, device: str, folder: Path, server: str | None = None, **chosen: Any
) -> Loop:
    loop = Loop(size, device)
    guard = attach(
        loop.model,
        loop.optimizer,
        run="overhead",
        server=server,
        directory=folder,
        settings=Settings(flush_s=0.5, **chosen),
    )
    loop.watch(guard)
    return loop


def zclip_on_host(size: Size, device: str) -> Loop:
    """Norm, `.item()`, mean and variance in floats: how ZClip's reference goes about it."""
    loop = Loop(size, device)
    seen: list[float] = []
    at = [0.0, 1.0]

    def clip() -> None:
        norm = nn.utils.get_total_norm([p.grad for p in loop.parameters if p.grad is not None])
        value, limit = norm.item(), 1.0
        if len(seen) < 25:
            seen.append(value)
            at[0] = sum(seen) / len(seen)
            at[1] = sum((v - at[0]) ** 2 for v in seen) / len(seen)
        else:
            z = (value - at[0]) / (math.sqrt(at[1]) + 1e-6)
            limit = min(1.0, at[0] + 2.5**2 / z * math.sqrt(at[1])) if z > 2.5 else 1.0
            kept = min(value, limit)
            at[0] = 0.97 * at[0] + 0.03 * kept
            at[1] = 0.97 * at[1] + 0.03 * (kept - at[0]) ** 2
        nn.utils.clip_grads_with_norm_(loop.parameters, limit, norm)

    loop.clip = clip
    return loop


def spike_detection(size: Size, device: str, folder: Path) -> Loop:
    """Lightning's own class, asked after each step as its Trainer and Fabric loops would."""
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.spike import SpikeDetection

    loop = clipped(size, device)
    fabric = Fabric(accelerator=device, devices=1)
    rule = SpikeDetection(exclude_batches_path=str(folder / "skip.json"))
    seen = count()

    def allow(loss: Tensor) -> bool:
        rule.on_train_batch_end(fabric, loss.detach(), None, next(seen))
        return True

    loop.allow = allow
    return loop


def sigma_in_optimizer(size: Size, device: str) -> Loop:
    """Loss and norm within 6 sigma of the last 128, the update multiplied by 0 or 1: OLMo's rule.

    A stock optimizer stands in for the factor's place in its update: gradients are multiplied.
    Judged from 64 steps on, like OLMo-core's SkipStepOptimizer; nothing waits for the device.
    """
    loop = Loop(size, device)
    losses: deque[Tensor] = deque(maxlen=129)
    norms: deque[Tensor] = deque(maxlen=129)

    def clip() -> None:
        norms.append(nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0).detach())

    def allow(loss: Tensor) -> bool:
        losses.append(loss.detach())
        if len(losses) >= 64:
            factor = _within(losses) * _within(norms)
            held = [p.grad for p in loop.parameters if p.grad is not None]
            torch._foreach_mul_(held, factor.to(held[0].dtype))
        return True

    loop.clip, loop.allow = clip, allow
    return loop


def _within(values: deque[Tensor]) -> Tensor:
    past = torch.stack(list(values)[:-1]).float()
    std, mean = torch.std_mean(past)
    return ((values[-1].float() - mean) <= 6.0 * std).float()
