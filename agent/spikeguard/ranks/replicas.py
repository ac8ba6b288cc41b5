"""Whether ranks that hold the same weights still hold the same, bit for bit.

DDP and HSDP make replicas equal at their start and trust them ever after: a flipped bit on one
device, or an optimizer that decided alone, parts them in silence. At the steps that `compares_at`
names, and wherever a snapshot is taken, each rank adds up the bits of its parameters on the device;
the sums travel with the step's vote (`agreement`) and are compared K steps later, so nobody waits.
Of a job whose ranks hold different parts those are compared that hold the very same
(`Topology.same_as`).
Exact. Integers are added modulo 2**64, in which no order and no number of threads matters, and
any single change of a weight changes the sum; tensors count with different odd factors, so that
two of them cannot change places. Nothing is read on the host here.
Cost: the parameters' bytes once, and two launches a tensor, in such a step. Where no two ranks hold
the same nothing is added up.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spikeguard.ranks.model_parts import local, onto

REPLICAS_APART = "replicas_apart"  # ranks whose weights are not those of the most, where compared
REPLICA_APART = "replica_apart"  # the lowest of those ranks, where there are any
LOW, HIGH = "replica_bits_low", "replica_bits_high"  # on their way to the comparison
WORD = 24  # bits that a float32 holds exactly
_WORD_OF: Mapping[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}


def compares_at(step: int, every: int) -> bool:
    """Whether weights are compared at the end of `step`: at the first, and at one in `every`.

    Which one is as good as random and the same on all ranks, so that weights which are averaged
    every so many steps are not always compared right after they were.
    """
    stretch = step // every
    return step == 1 or step % every == zlib.crc32(b"%d" % stretch) % every


@torch.no_grad()
def bits_of(parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """48 bits that stand for all bits of `parameters`: two () fp32 that hold whole numbers."""
    device = parameters[0].device
    own = [local(p.detach()) for p in parameters]
    sums = torch.stack([onto(summed_bits(part), device) for part in own])
    factors = torch.arange(len(parameters), dtype=torch.int64, device=device) * 2 + 1
    total = (sums * factors).sum()
    mask = 2**WORD - 1
    high = ((total >> WORD) & mask) ^ ((total >> 2 * WORD) & mask)
    return {LOW: (total & mask).float(), HIGH: high.float()}


def summed_bits(tensor: Tensor) -> Tensor:
    """Its bits as integers, added modulo 2**64: () int64. As wide ones as it can be cut into."""
    flat = tensor.reshape(-1)
    size = flat.element_size()
    whole = 8 // size if size < 8 else 1
    if flat.numel() % whole == 0 and flat.storage_offset() % whole == 0:
        return flat.view(torch.int64).sum()
    return flat.view(_WORD_OF[size]).sum(dtype=torch.int64)


def number_of(values: Mapping[str, float]) -> float:
    """The 48 bits as one whole number from 1 on, exact in a double; 0.0 where there are none."""
    if LOW not in values or HIGH not in values:
        return 0.0
    return values[HIGH] * 2.0**WORD + values[LOW] + 1.0


def ranks_apart(numbers: Sequence[float], same_as: Sequence[int] = ()) -> tuple[int, ...]:
    """The ranks whose number is not that of the most; among as many, that of the lowest rank.

    `same_as`: of each rank the first that holds the same; those alone are compared with each other.
    """
    held = list(zip(same_as or [0] * len(numbers), numbers, strict=True))
    usual: dict[int, float] = {}
    for (group, number), _ in Counter(held).most_common():  # first seen first among as many
        usual.setdefault(group, number)
    return tuple(rank for rank, (group, number) in enumerate(held) if number != usual[group])
