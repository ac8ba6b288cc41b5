"""The gradients' L2 norms over all ranks, each part of the model counted once.

Invariants: no value is read on the host. Where ranks hold different parts (`Topology.parted`), each
adds up the squares of its own, divided by how many ranks hold a copy, and one all-reduce on the
job's default group makes the sum, equal to the bit on all ranks. It is 16 bytes: the sum, and how
many ranks cannot leave out this update, since then none may. Where a clipping rule wants each
parameter's norm it is 8 bytes for each and 8 more. All ranks make it, also one that has no gradient
in this step. Where every rank holds all of the model nobody meets.
A rank that fails to measure its part meets the others all the same, who would wait for it: its part
is missing in the sum, on all ranks alike, and counted as a fault.
Where the GPU waits: the stream for the slowest rank, in that all-reduce; with gloo the host does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from spikeguard.faults import MAX_SAID, Faults
from spikeguard.measure.norms import combine, each_norm, global_norm, own_norm_of, stack
from spikeguard.measure.parameters import Parameters
from spikeguard.topology.layout import Topology
from spikeguard.topology.shards import settled

REST = "not in the model"  # the row of what a rank's optimizers train besides, where ranks differ


class ByLayer(NamedTuple):
    """One step's norms on their device."""

    names: tuple[str, ...]
    norms: Tensor  # (n,) fp32


class GlobalNorms:
    """Of the gradients of what `listed` holds."""

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
        """Of the rows of `each`: this rank's parameters or, where ranks hold different, all."""
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
        return self._whole_norm()[0]

    def with_parts(self) -> tuple[Tensor, ByLayer]:
        """Where ranks hold different parts: `norm`, by the same reduction and to the same bit, and
        of each row the norm of this rank's part. Squares of the parts add up over the ranks.
        """
        norm, held = self._whole_norm()
        squares = self._zeros(len(self.names))
        if held is not None:
            self._add_squares(squares, *held)
        return norm, ByLayer(tuple(self.names), squares.sqrt().float())

    def _whole_norm(self) -> tuple[Tensor, tuple[list[int], list[Tensor], list[int]] | None]:
        """Over all ranks; and of this rank's gradients rows, norms, and how many hold each."""
        numbers, held = self._zeros(2), None
        try:
            rows, gradients, copies = self._held()
            norms = each_norm(gradients)
            own = own_norm_of(norms, copies)
            if own is not None:
                numbers[0] = own.double().square()
                held = rows, norms, copies
        except Exception as error:
            self._note_missing(error)
        return self._summed(numbers)[0].sqrt().float(), held

    def each(self) -> tuple[Tensor, Tensor] | None:
        """The norm of all, and of each row, (n,) fp32, 0 where there is no gradient."""
        if self._topology.parted:
            squares = self._all_squares()
            return squares.sum().sqrt().float(), squares.sqrt().float()
        norms = each_norm([p.grad for p in self._listed.tensors if p.grad is not None])
        whole = combine(norms)
        return None if whole is None else (whole, self._spread(norms))

    def by_name(self) -> tuple[Tensor | None, ByLayer | None]:
        """`norm`, to the same bit, and that of each parameter that has a gradient, where this rank
        holds all of the model.

        It is that of the norms of each, so what is stacked for it is what is told.
        """
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
            self._add_squares(squares, rows, each_norm(gradients), copies)
        except Exception as error:
            self._note_missing(error)
        return self._summed(squares)

    def _add_squares(
        self, squares: Tensor, rows: list[int], norms: list[Tensor], copies: list[int]
    ) -> None:
        """This rank's part of each row's square."""
        if norms:
            own = torch.stack([norm.to(norms[0].device) for norm in norms]).double().square()
            index, shares = self._rows(rows, copies, squares.device)
            squares.index_add_(0, index, self._placed(own) * shares)

    def _note_missing(self, error: Exception) -> None:
        said = f"this rank's part of the gradients' norm is missing in it, on all ranks: {error!r}"
        self._faults.note("clip", said[:MAX_SAID])

    def _held(self) -> tuple[list[int], list[Tensor], list[int]]:
        """Rows, gradients as their parameters lie, and how many ranks hold the same of each."""
        listed, copies = self._listed.tensors, self._known_copies()
        held = [
            (row, settled(p.grad, p), count)
            for row, p, count in zip(self.own_rows, listed, copies, strict=True)
            if p.grad is not None
        ]
        return [row for row, _, _ in held], [g for _, g, _ in held], [c for _, _, c in held]

    def _known_copies(self) -> list[int]:
        listed = self._listed.tensors
        self._copies += [self._topology.copies(p) for p in listed[len(self._copies) :]]
        return self._copies

    def _spread(self, norms: list[Tensor]) -> Tensor:
        """(n,) fp32, one for each parameter, 0 where it has no gradient."""
        found = iter(norms)
        absent = torch.zeros_like(norms[0])
        device = norms[0].device
        return torch.stack(
            [absent if p.grad is None else next(found).to(device) for p in self._listed.tensors]
        )

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
        return numbers[:-1]

    def _zeros(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float64, device=self._device())

    def _placed(self, squares: Tensor) -> Tensor:
        return squares.to(self._device(), non_blocking=True)

    def _device(self) -> torch.device:
        """On which the job's ranks meet; gradients may lie on the host."""
        first = self._listed.tensors[0]
        if isinstance(first, DTensor):
            return torch.device(first.device_mesh.device_type)
        return first.device
