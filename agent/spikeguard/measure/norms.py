"""L2 norms that stay on the device.

Law: no value is read on the host here. Cost: each norm reads its tensors once, so its floor is
their bytes over the memory bandwidth (350 M fp32 gradients: 1.4 GB, 0.42 ms at 3.35 TB/s, 70 ms at
20 GB/s of host memory). `_foreach_norm` reaches it but for one launch per chunk of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from spikeguard.topology.packed import is_packed
from spikeguard.topology.shards import local

_HALF = (torch.float16, torch.bfloat16)


def global_norm(tensors: Sequence[Tensor]) -> Tensor | None:
    """L2 over what lies here of all `tensors`: () fp32; None if none. Meets no other rank."""
    return _plain_norm([local(t) for t in tensors]) if tensors else None


def each_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """L2 of what lies here of each, () fp32, on its own device. Meets no other rank."""
    return _each_plain_norm([local(t) for t in tensors])


def own_norm(tensors: Sequence[Tensor], copies: Sequence[int] | None = None) -> Tensor | None:
    """L2 of what lies here of `tensors`, () fp32; all ranks' squares count each part once.

    `copies`: of each, how many ranks hold the same part; by default none but this one. Meets no
    other rank.
    """
    if copies is None:
        return global_norm(tensors)
    return own_norm_of(each_norm(tensors), copies)


def own_norm_of(norms: Sequence[Tensor], copies: Sequence[int]) -> Tensor | None:
    """`own_norm` of tensors whose own norms are known, to the same bit."""
    by_copies: dict[int, list[Tensor]] = {}
    for norm, count in zip(norms, copies, strict=True):
        by_copies.setdefault(count, []).append(norm)
    return combine([shared_out(_norm_of(held), count) for count, held in by_copies.items()])


def shared_out(norm: Tensor, copies: int) -> Tensor:
    """A part's norm such that the squares of the `copies` ranks that hold it count it once."""
    return norm if copies == 1 else norm * float(copies) ** -0.5


def _each_plain_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    norms: dict[int, Tensor] = {}
    if tensors and all(t.dtype is torch.float32 for t in tensors):
        return list(torch._foreach_norm(list(tensors)))
    halves = [(n, t) for n, t in enumerate(tensors) if t.dtype in _HALF]
    full = [(n, t) for n, t in enumerate(tensors) if t.dtype not in _HALF]
    if full:
        measured = torch._foreach_norm([t for _, t in full])
        norms |= zip((n for n, _ in full), measured, strict=True)
    if halves:  # accumulated and returned in fp32: bf16 keeps three digits
        measured = torch._foreach_norm([t for _, t in halves], 2, dtype=torch.float32)
        norms |= zip((n for n, _ in halves), measured, strict=True)
    return [norms[place].float() for place in range(len(tensors))]


def combine(norms: Sequence[Tensor]) -> Tensor | None:
    """L2 of several norms, () fp32 on the first one's device."""
    if len(norms) <= 1:
        return norms[0].float() if norms else None
    return _norm_of(norms)


def stack(norms: Sequence[Tensor]) -> Tensor | None:
    """(n,) fp32 on the first one's device; None if there are none."""
    if not norms:
        return None
    device = norms[0].device
    like = [  # two calls that change nothing would take longer than the stacking
        n if n.dtype is torch.float32 and n.device == device else n.float().to(device)
        for n in norms
    ]
    return torch.stack(like)


def _norm_of(norms: Sequence[Tensor]) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(stack(norms))
    return total


def _plain_norm(tensors: Sequence[Tensor]) -> Tensor:
    """In the tensors' own order, so that a step which keeps each one's norm has the same bits."""
    return _norm_of(_each_plain_norm(tensors))


def gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients there are."""
    return [p.grad for p in parameters if p.grad is not None]


def second_moments(optimizers: Iterable[torch.optim.Optimizer]) -> dict[Tensor, Tensor]:
    """Adam's `exp_avg_sq` by parameter, in every optimizer that has one.

    Not those in a form of 8 bits or less: to read one would be to unpack it.
    """
    kept = ((p, state.get("exp_avg_sq")) for each in optimizers for p, state in each.state.items())
    return {p: moment for p, moment in kept if isinstance(moment, Tensor) and not is_packed(moment)}


def by_device(tensors: Iterable[Tensor]) -> dict[torch.device, list[Tensor]]:
    """The same tensors, those of one device together."""
    found: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device, []).append(tensor)
    return found


def sampled_rows(named: Sequence[tuple[str, Tensor]], share: float) -> list[tuple[str, int]]:
    """One matrix per block and how many of its first rows, together at most `share` of all.

    A block is the parameter's name up to its first number (`blocks.3`). Its smallest matrix is
    taken whole where the budget allows, its first rows otherwise: fixed for the whole run.
    """
    blocks: dict[str, tuple[str, Tensor]] = {}
    for name, tensor in named:
        if tensor.ndim >= 2 and tensor.requires_grad:
            known = blocks.get(_block(name))
            if known is None or tensor.numel() < known[1].numel():
                blocks[_block(name)] = (name, tensor)
    budget = share * sum(t.numel() for _, t in named) / max(1, len(blocks))
    rows = [(n, t, int(budget // (t.numel() // len(t)))) for n, t in blocks.values() if t.numel()]
    return [(name, min(len(tensor), count)) for name, tensor, count in rows if count]


def _block(name: str) -> str:
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1] if numbers else parts[:-1])
