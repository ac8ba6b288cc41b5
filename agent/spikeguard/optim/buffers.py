"""The model's buffers as they were at the last step boundary, put back where an update is left out.

A batch that is not finite spoils running statistics (BatchNorm) in the forward pass, before anybody
can judge it. Only buffers that the loop changes are copied, as their version counters tell without
asking the device. PyTorch's normalisation layers change theirs without counting: theirs are copied
while they train. Cost: a copy of what changes each step; where the decision stays on the device,
three passes over it. At most `BYTES`; what is beyond is not put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from spikeguard.ranks.model_parts import local, onto

BYTES: Final = 64 * 2**20  # of all copies
_WORDS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Place(NamedTuple):
    owner: torch.nn.Module
    key: str
    uncounted: bool  # its owner changes it in training, and no version counter moves


class Buffers:
    """Those of the watched modules."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        owners = [each for module in modules for each in module.modules()]
        self._held = [
            _Place(owner, key, isinstance(owner, _NormBase))
            for owner in owners
            for key in owner._buffers
        ]
        self.any = bool(self._held)
        self._seen: dict[int, tuple[Tensor, int]] = {}  # by place, with the version
        for number, place in enumerate(self._held):
            if (each := _now(place)) is not None:
                self._seen[number] = each, each._version
        self._kept: dict[int, Tensor] = {}
        self._bytes = 0

    @torch.no_grad()
    def keep(self) -> None:
        """At a step boundary: remember those that were changed since the last one."""
        pairs = []
        for number, each in self._changed():
            self._seen[number] = each, each._version
            copy = self._copy_for(number, each)
            pairs += [(copy, each)] if copy is not None else []
        for copies, changed in _grouped(pairs):
            torch._foreach_copy_(copies, changed)

    def _copy_for(self, number: int, each: Tensor) -> Tensor | None:
        """Where it is copied to; None where there is no room."""
        copy = self._kept.get(number)
        if copy is not None and (copy.shape, copy.dtype, copy.device) == (
            each.shape,
            each.dtype,
            each.device,
        ):
            return copy
        size = each.numel() * each.element_size()
        if copy is None and self._bytes + size > BYTES:
            return None
        self._bytes += size if copy is None else 0
        self._kept[number] = made = torch.empty_like(each)
        return made

    @torch.no_grad()
    def put_back(self, left_out: Tensor | None = None) -> None:
        """Undo what this step changed. `left_out`: 1.0 or 0.0, () fp32; by default 1.0."""
        if left_out is not None and left_out.is_cpu:  # nothing to wait for
            if not left_out.item():
                return
            left_out = None
        pairs = []
        for number, each in self._changed():
            copy = self._kept.get(number)
            if copy is not None and copy.shape == each.shape:
                pairs.append((copy, each))
        for copies, changed in _grouped(pairs):
            if left_out is None:
                torch._foreach_copy_(changed, copies)
            else:
                copy_where(left_out, changed, copies)

    def _changed(self) -> Iterator[tuple[int, Tensor]]:
        """Since the last step boundary. What was seen is kept, so that no other takes its place."""
        for number, place in enumerate(self._held):
            each = _now(place)
            if each is None:
                continue
            seen = self._seen.get(number)
            same = seen is not None and seen[0] is each and seen[1] == each._version
            if not same or (place.uncounted and place.owner.training):
                yield number, each


def _now(place: _Place) -> Tensor | None:
    """What lies here of the buffer; an inference tensor counts no versions."""
    each = place.owner._buffers.get(place.key)
    if each is None or each.is_inference():
        return None
    return each if type(each) is Tensor else local(each)


def copy_where(flag: Tensor, changed: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
    """Copy `copies` into `changed`, tensors of one type on one device, where `flag` is 1.0; else
    leave them, bit for bit. `flag`: () fp32 that holds 0.0 or 1.0, not read on the host.

    In whole numbers, which are exact modulo 2**bits, since 0 * NaN is NaN.
    """
    words = _WORDS[changed[0].element_size()]
    now, before = [t.view(words) for t in changed], [t.view(words) for t in copies]
    made = onto(1.0 - flag, changed[0].device, words)
    torch._foreach_sub_(now, before)
    torch._foreach_mul_(now, made)
    torch._foreach_add_(now, before)


def _grouped(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """By device and type, as one call takes them."""
    groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for copy, each in pairs:
        copies, changed = groups.setdefault((each.device, each.dtype), ([], []))
        copies.append(copy)
        changed.append(each)
    yield from groups.values()
