"""How far one optimizer step moved the parameters: |theta after - theta before| / lr, weight decay
included, by the rate that the step really used, so that a change of the rate does not move it.

Cost: the sample is cloned before each step (at most `SHARE` of the parameters); the exact norm
keeps one buffer the size of this rank's parameters, made at its first use, and reads and writes the
parameters' bytes four times. Of sharded parameters this rank measures its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spikeguard.faults import log
from spikeguard.measure.norms import combine, global_norm, sampled_rows, shared_out
from spikeguard.optim.optimizers import trained_by
from spikeguard.ranks.layout import Topology
from spikeguard.ranks.model_parts import Modules, local, named_parameters
from spikeguard.settings import GIB, Settings

SHARE = 0.05  # of all parameters, cloned before each step


@dataclass(frozen=True, slots=True)
class Stretch:
    """Parts of one parameter group's tensors that equally many ranks hold."""

    group: int
    held_by: int
    tensors: list[Tensor]


class Moved:
    """The movement of what `find` names, kept apart by learning rate.

    Asked at the first step only: FSDP2 may move its shards until the first forward pass.
    """

    def __init__(self, find: Callable[[], list[Stretch]], parted: bool = False) -> None:
        """`parted`: what moved here is told also where it is nothing, to be added to others'."""
        self._find, self._parted = find, parted
        self._stretches: list[Stretch] = []
        self._before: list[list[Tensor]] | None = None
        self.armed = False
        self.moved: list[Tensor] = []  # differences of the last step, until the next one

    @torch.no_grad()
    def before_step(self) -> None:
        """Remember where the parameters stand."""
        if self._before is None:
            self._stretches = self._find()
            self._before = [[torch.empty_like(t) for t in s.tensors] for s in self._stretches]
        for kept, stretch in zip(self._before, self._stretches, strict=True):
            torch._foreach_copy_(kept, stretch.tensors)
        self.armed = True

    @torch.no_grad()
    def after_step(self, rates: Sequence[Any]) -> Tensor | None:
        """The L2 norm of the movement over the rates, () fp32; None where there is none."""
        if not self.armed or self._before is None:
            return None
        self.armed = False
        self.moved = []
        norms = []
        for kept, stretch in zip(self._before, self._stretches, strict=True):
            rate = rates[stretch.group]
            if isinstance(rate, Tensor) or (rate is not None and rate > 0.0):
                torch._foreach_sub_(kept, stretch.tensors)
                self.moved += kept
                norm = global_norm(kept)
                norms += [shared_out(norm, stretch.held_by) / rate] if norm is not None else []
        whole = combine(norms)
        return torch.zeros(()) if whole is None and self._parted else whole


@torch.no_grad()
def unchanged(measured: Sequence[Moved]) -> Tensor | None:
    """Share of elements that the last step left bit for bit, () fp32; None where there are none.

    Reads the differences once more.
    """
    moved = [part for each in measured for part in each.moved]
    whole = sum(part.numel() for part in moved)
    if not whole:
        return None
    changed = [torch.count_nonzero(part).to(moved[0].device) for part in moved]
    return 1.0 - torch.stack(changed).sum() / whole


def all_parameters(optimizer: torch.optim.Optimizer, topology: Topology) -> Moved:
    """The movement of everything that one optimizer trains."""
    groups = [list(group["params"]) for group in optimizer.param_groups]
    return Moved(lambda: _stretches(groups, {}, topology), topology.parted)


def samples_of(
    modules: Modules,
    optimizers: Sequence[torch.optim.Optimizer],
    topology: Topology,
) -> list[Moved]:
    """The movement of a fixed sample, what each optimizer trains of it.

    One matrix per block, at most `SHARE` of the parameters. Of a sharded matrix every rank takes
    its share from its own rows, so the work is shared alike.
    """
    named = list(named_parameters(modules))
    rows = dict(sampled_rows(named, SHARE))
    chosen = {id(p): rows[name] for name, p in named if name in rows}
    samples = []
    for each in optimizers:
        groups = [[p for p in g["params"] if id(p) in chosen] for g in each.param_groups]
        samples.append(Moved(partial(_stretches, groups, chosen, topology), topology.parted))
    return samples


def _stretches(
    groups: Sequence[Sequence[Tensor]], rows: dict[int, int], topology: Topology
) -> list[Stretch]:
    """This rank's part of each parameter, or of `rows[id(parameter)]` rows of it."""
    found: dict[tuple[int, int], list[Tensor]] = {}
    for number, group in enumerate(groups):
        for parameter in group:
            key = (number, topology.copies(parameter))
            found.setdefault(key, []).append(_part(parameter, rows.get(id(parameter))))
    return [Stretch(number, held_by, parts) for (number, held_by), parts in found.items()]


def _part(parameter: Tensor, rows: int | None) -> Tensor:
    """What lies here; of `rows` of all rows as large a share as of all rows lies here."""
    part = local(parameter.detach())
    return part if rows is None else part[: -(-rows * len(part) // len(parameter))]


def fits(optimizers: Sequence[torch.optim.Optimizer], settings: Settings) -> bool:
    """Whether the copy of the parameters that the exact update_norm takes may be made."""
    own = [local(parameter) for parameter in trained_by(optimizers)]
    size = sum(part.numel() * part.element_size() for part in own)
    if size > settings.exact_update_bytes:
        log.info(
            "update_norm is measured of a sample alone: the exact one would take %.3g GiB of the "
            "device on this rank (Settings.exact_update_bytes is %.3g GiB)",
            size / GIB,
            settings.exact_update_bytes / GIB,
        )
    return size <= settings.exact_update_bytes
