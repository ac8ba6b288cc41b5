"""What can be asked of the tensors in a state: their checksums, and which are not finite."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from spikeguard.state.file_sums import THREADS
from spikeguard.state.replicated_parts import is_mark, is_plain
from spikeguard.topology.packed import is_packed, taken_apart
from spikeguard.topology.shards import local


def named_tensors(tree: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested dicts, lists and tuples, by its place; this rank's shard of each."""
    if isinstance(tree, Tensor):
        if is_packed(tree):
            yield from named_tensors(taken_apart(tree), place)
        else:
            yield place, local(tree).detach()
    elif isinstance(tree, dict) and not is_mark(tree):
        for key, value in tree.items():
            yield from named_tensors(value, f"{place}.{key}" if place else str(key))
    elif type(tree) in (list, tuple) and not is_plain(tree):
        for number, value in enumerate(tree):
            yield from named_tensors(value, f"{place}.{number}")


def checksums(tree: Any, threads: int = THREADS) -> dict[str, int]:
    """`zlib.crc32` of the bytes of every tensor, all on the host, by its place."""
    tensors = dict(named_tensors(tree))
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(tensors, pool.map(_crc, tensors.values()), strict=True))


def _crc(tensor: Tensor) -> int:
    if not tensor.numel():
        return 0
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)


def not_finite(tree: Any) -> frozenset[str]:
    """Places of the floating-point tensors that hold a NaN or an infinity.

    Reads each tensor once where it lies, with one launch for many and one host wait for each
    device and dtype. A tensor whose norm overflows is read a second time, with another wait.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[tuple[str, Tensor]]] = {}
    for place, tensor in named_tensors(tree):
        if tensor.numel() and tensor.layout is torch.strided and not tensor.is_meta:
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            if real.is_floating_point():
                kinds.setdefault((real.device, real.dtype), []).append((place, real))
    doubtful: list[tuple[str, Tensor]] = []
    for (_, dtype), pairs in kinds.items():
        if dtype.itemsize == 1:  # float8 has no norm in torch
            doubtful += pairs
            continue
        norms = torch.stack(torch._foreach_norm([tensor for _, tensor in pairs]))
        finite = norms.isfinite().tolist()
        doubtful += [pair for pair, sound in zip(pairs, finite, strict=True) if not sound]
    return frozenset(place for place, tensor in doubtful if not _is_finite(tensor))


def _is_finite(tensor: Tensor) -> bool:
    wide = tensor.float() if tensor.element_size() == 1 else tensor  # float8 has no order in torch
    return bool(torch.stack(torch.aminmax(wide)).isfinite().all())
