"""The loss of a step and L2 norms, which stay on the device.

A loss that is a DTensor is told by this rank's part, since a sum over the ranks here would make
them meet in the loop: where it is still to be added up (`Partial`), as many times the part as parts
are added, so that the mean over all ranks, which the step's vote makes, is the whole.
Cost: each norm reads its tensors once, so its floor is their bytes over the memory bandwidth (350 M
fp32 gradients: 1.4 GB, 0.42 ms at 3.35 TB/s). `_foreach_norm` reaches it but for one launch per
chunk of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial

from spikeguard.faults import MAX_SAID, Faults
from spikeguard.optim.optimizers import names_of
from spikeguard.ranks.layout import Topology
from spikeguard.ranks.model_parts import Modules, is_packed, local, named_parameters, onto, settled


class LossMeter:
    """Weighted mean of a step's micro-batches, on the device."""

    def __init__(self, has_loss: bool = True) -> None:
        """`has_loss`: whether this rank computes one; what it shows otherwise is none."""
        self._has_loss = has_loss
        self._sum: Tensor | None = None
        self._weight: float | Tensor = 0.0

    def add(
        self,
        loss: Tensor | float,
        weight: float | Tensor | None,
        scale: float | Tensor | None = None,
    ) -> None:
        """Note one micro-batch's loss and its weight (tokens; 1 if none is given).

        `scale` makes it the mean of the micro-batch.
        """
        if not self._has_loss:
            return
        share = 1.0 if weight is None else weight
        if not isinstance(loss, Tensor):
            loss = torch.tensor(float(loss))
        elif loss.numel() != 1:
            raise ValueError(f"a loss of shape {tuple(loss.shape)}: give its mean, one number")
        if isinstance(loss, DTensor):
            loss = own_part(loss)
        if isinstance(share, Tensor):
            share = own_part(share).detach().to(torch.float32)
        part = loss.detach().to(torch.float32).reshape(()) * share  # a copy: the loss is the loop's
        if scale is not None:
            part = part * (own_part(scale).detach() if isinstance(scale, Tensor) else scale)
        self._sum = part if self._sum is None else self._sum + part
        self._weight = self._weight + share

    @property
    def mean(self) -> Tensor | None:
        """Weighted mean so far."""
        if self._sum is None or (isinstance(self._weight, float) and self._weight == 1.0):
            return self._sum
        return self._sum / self._weight

    def take(self) -> tuple[Tensor, float | Tensor] | None:
        """Sum and weight, then start anew; None if there was no loss."""
        taken = None if self._sum is None else (self._sum, self._weight)
        self._sum, self._weight = None, 0.0
        return taken


def own_part(value: Tensor) -> Tensor:
    """This rank's part of a () tensor, such that the mean over the ranks is all of it."""
    if not isinstance(value, DTensor):
        return value
    parts = 1
    for dimension, placement in enumerate(value.placements):
        if placement.is_shard():
            raise ValueError("the loss is a DTensor cut among ranks: give its mean")
        if isinstance(placement, Partial) and placement.reduce_op == "sum":
            parts *= value.device_mesh.size(dimension)
    return value.to_local() * parts if parts > 1 else value.to_local()


_HALF = (torch.float16, torch.bfloat16)


def global_norm(tensors: Sequence[Tensor]) -> Tensor | None:
    """L2 over what lies here of all `tensors`: () fp32; None if none. Meets no other rank.

    In the tensors' own order, so that a step which keeps each one's norm has the same bits.
    """
    return _norm_of(each_norm(tensors)) if tensors else None


def each_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """L2 of what lies here of each, () fp32, on its own device. Meets no other rank."""
    own = list(map(local, tensors))
    kinds = {t.dtype for t in own}
    if len(kinds) == 1 and kinds.issubset({torch.float32, *_HALF}):
        return list(torch._foreach_norm(own, 2, dtype=torch.float32))
    norms: dict[int, Tensor] = {}
    for half in (True, False):  # halves in fp32: bf16 keeps three digits
        alike = [(n, t) for n, t in enumerate(own) if (t.dtype in _HALF) is half]
        if alike:
            measured = torch._foreach_norm(
                [t for _, t in alike], 2, dtype=torch.float32 if half else None
            )
            norms |= zip((n for n, _ in alike), measured, strict=True)
    return [norms[place].float() for place in range(len(own))]


def own_norm(tensors: Sequence[Tensor], copies: Sequence[int] | None = None) -> Tensor | None:
    """L2 of what lies here of `tensors`, () fp32; all ranks' squares count each part once.

    `copies`: of each, how many ranks hold the same part; by default none but this one. Meets no
    other rank.
    """
    if copies is None:
        return global_norm(tensors)
    by_copies: dict[int, list[Tensor]] = {}
    for norm, count in zip(each_norm(tensors), copies, strict=True):
        by_copies.setdefault(count, []).append(norm)
    return combine([shared_out(_norm_of(held), count) for count, held in by_copies.items()])


def shared_out(norm: Tensor, copies: int) -> Tensor:
    """A part's norm such that the squares of the `copies` ranks that hold it count it once."""
    return norm if copies == 1 else norm * float(copies) ** -0.5


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


def gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients there are."""
    return [p.grad for p in parameters if p.grad is not None]


def second_moments(optimizers: Iterable[torch.optim.Optimizer]) -> dict[Tensor, Tensor]:
    """Adam's `exp_avg_sq` by parameter, in every optimizer that has one.

    Not those in a form of 8 bits or less: to read one would be to unpack it.
    """
    kept = ((p, state.get("exp_avg_sq")) for each in optimizers for p, state in each.state.items())
    return {p: moment for p, moment in kept if isinstance(moment, Tensor) and not is_packed(moment)}


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


class Parameters:
    """What a step is judged by, row by row: the model's, and what else the optimizers train.

    One that takes no gradient now may take one later (a layer is unfrozen, a group is added), so
    all are listed. The list only grows: what is kept by row stays in its row.
    """

    def __init__(self, modules: Modules, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._modules, self._optimizers = modules, tuple(optimizers)
        self.names: list[str] = []
        self.tensors: list[Tensor] = []
        self._known: set[int] = set()
        self._groups = 0
        self.grow()

    @property
    def outdated(self) -> bool:
        """Whether an optimizer was given a group since `grow` was called."""
        return self._count() != self._groups

    def grow(self) -> None:
        """Add what was not there before: first the model's, then the optimizers' own."""
        self._groups = self._count()
        for name, parameter in named_parameters(self._modules):
            self._add(name, parameter)
        names = names_of(self._optimizers) if len(self._optimizers) > 1 else ("optimizer",)
        for optimizer, name in zip(self._optimizers, names, strict=True):
            for number, group in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(group["params"]):
                    self._add(f"{name}.{number}.{place}", parameter)

    def _count(self) -> int:
        count = 0
        for optimizer in self._optimizers:
            count += len(optimizer.param_groups)
        return count

    def _add(self, name: str, parameter: Tensor) -> None:
        if id(parameter) not in self._known:
            self._known.add(id(parameter))
            self.names.append(name)
            self.tensors.append(parameter)

    @property
    def trained(self) -> list[Tensor]:
        """Those that take a gradient now."""
        return [p for p in self.tensors if p.requires_grad]


REST = "not in the model"  # the row of what a rank's optimizers train besides, where ranks differ


class ByLayer(NamedTuple):
    """One step's norms on their device."""

    names: tuple[str, ...]
    norms: Tensor  # (n,) fp32


class GlobalNorms:
    """Of the gradients of what `listed` holds, over all ranks, each part of the model once.

    Where ranks hold different parts (`Topology.parted`) each adds up the squares of its own,
    divided by how many ranks hold a copy. One all-reduce of 16 bytes on the job's default group
    makes the sum, and says how many ranks cannot leave out this update, since then none may. All
    ranks make it, also one without gradients, or one that fails to measure its part: that part is
    missing in the sum, on all ranks alike, and counted as a fault.
    The device waits there for the slowest rank; with gloo the host does.
    """

    def __init__(
        self,
        topology: Topology,
        listed: Parameters,
        can_skip: Callable[[], bool],
        faults: Faults,
    ) -> None:
        """`can_skip`: whether this rank can leave out the update that these gradients make."""
        self._topology, self._listed, self._can_skip = topology, listed, can_skip
        self._faults = faults
        self.unable: Tensor | None = None  # ranks that cannot, () fp64, once ranks have met
        self._copies: list[int] = []
        self._made: tuple[list[int], Tensor, Tensor] | None = None
        self._told: tuple[tuple[frozenset[int], int], tuple[str, ...]] | None = None

    @property
    def names(self) -> Sequence[str]:
        """This rank's parameters or, where ranks hold different ones, all."""
        rows = self._topology.rows
        return (*rows, REST) if rows else self._listed.names

    @property
    def own_rows(self) -> Sequence[int]:
        """The row of each parameter of this rank."""
        listed = len(self._listed.tensors)
        if not self._topology.rows:
            return range(listed)
        own = self._topology.own_rows
        return (*own, *[len(self._topology.rows)] * (listed - len(own)))

    def norm(self) -> Tensor | None:
        """Of all gradients, () fp32; None if no rank can have any."""
        if not self._topology.parted:
            return global_norm([p.grad for p in self._listed.tensors if p.grad is not None])
        return self._whole_norm()

    def _whole_norm(self) -> Tensor:
        """Over all ranks."""
        numbers = self._zeros(2)
        try:
            _, gradients, copies = self._held()
            own = own_norm(gradients, copies)
            if own is not None:
                numbers[0] = own.double().square()
        except Exception as error:
            self._note_missing(error)
        return self._summed(numbers)[0].sqrt().float()

    def by_name(self) -> tuple[Tensor | None, ByLayer | None]:
        """`norm`, to the same bit, and that of each parameter.

        Where ranks hold different parts by a second reduction, which all of them make; elsewhere it
        is that of the norms of each, so what is stacked for it is what is told.
        """
        if self._topology.parted:
            norm = self._whole_norm()
            return norm, ByLayer(tuple(self.names), self._all_squares().sqrt().float())
        listed = self._listed.tensors
        without = frozenset(row for row, p in enumerate(listed) if p.grad is None)
        stacked = stack(each_norm([p.grad for p in listed if p.grad is not None]))
        if stacked is None:
            return None, None
        if self._told is None or self._told[0] != (without, len(listed)):
            names = self._listed.names
            told = tuple(name for row, name in enumerate(names) if row not in without)
            self._told = (without, len(listed)), told
        return torch.linalg.vector_norm(stacked), ByLayer(self._told[1], stacked)

    def _all_squares(self) -> Tensor:
        """(n,) fp64, the square of each row's norm over all ranks."""
        squares = self._zeros(len(self.names) + 1)
        try:
            rows, gradients, copies = self._held()
            if norms := each_norm(gradients):
                own = torch.stack([norm.to(norms[0].device) for norm in norms]).double().square()
                index, shares = self._rows(rows, copies, squares.device)
                squares.index_add_(0, index, onto(own, self._device()) * shares)
        except Exception as error:
            self._note_missing(error)
        return self._summed(squares)

    def _note_missing(self, error: Exception) -> None:
        said = f"this rank's part of the gradients' norm is missing in it, on all ranks: {error!r}"
        self._faults.note("clip", said[:MAX_SAID])

    def _held(self) -> tuple[list[int], list[Tensor], list[int]]:
        """Rows, gradients as their parameters lie, and how many ranks hold the same of each."""
        listed, copies = self._listed.tensors, self._copies
        copies += [self._topology.copies(p) for p in listed[len(copies) :]]
        held = [
            (row, settled(p.grad, p), count)
            for row, p, count in zip(self.own_rows, listed, copies, strict=True)
            if p.grad is not None
        ]
        return [row for row, _, _ in held], [g for _, g, _ in held], [c for _, _, c in held]

    def _rows(
        self, rows: list[int], copies: list[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """On the device, made once as long as the same parameters have gradients: where each goes,
        and which share of it is this rank's."""
        if self._made is None or self._made[0] != rows:
            shares = torch.tensor(copies, dtype=torch.float64).reciprocal()
            self._made = rows, torch.tensor(rows, device=device), shares.to(device)
        return self._made[1:]

    def _summed(self, numbers: Tensor) -> Tensor:
        """Squares over all ranks, in place; behind them is room for `unable`."""
        if self._topology.ranks > 1:
            if not self._can_skip():
                numbers[-1:].fill_(1.0)
            dist.all_reduce(numbers)
            self.unable = numbers[-1]
        return numbers[:-1].to(self._home)  # waited for where gradients lie on the host

    def _zeros(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float64, device=self._device())

    def _device(self) -> torch.device:
        """On which the job's ranks meet; gradients may lie on the host."""
        first = self._listed.tensors[0]
        if isinstance(first, DTensor) and self._topology.ranks > 1:
            return torch.device(first.device_mesh.device_type)
        return self._home

    @property
    def _home(self) -> torch.device:
        """On which gradients lie."""
        return local(self._listed.tensors[0]).device
