"""State of a job that neither a rollback nor a restart restores, seen at `attach()` as such.

A rollback restores parameters, buffers, the optimizers' `state_dict()`, the schedule and what
`state=` holds. Training code also keeps state in communication hooks of DDP and in an optimizer
inside another. It is named, and only read. Other attributes: `state.changing_attributes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from spikeguard.loop.capabilities import RESTORE_ALL, restore_abilities, yes
from spikeguard.ranks.model_parts import Modules
from spikeguard.state.changing_attributes import ChangingAttributes, reached_by
from spikeguard_protocol import Ability


class UnrestoredState:
    """Of one job, as far as is known; what changes is learnt while the loop trains."""

    def __init__(
        self,
        parts: Modules,
        optimizers: Sequence[Optimizer],
        schedule: Sequence[Any],
        given: Sequence[Any],
    ) -> None:
        """`given`: the entries of `state=`.

        What one of them is, holds as an attribute, or reaches through its own methods counts as
        restored by it.
        """
        covered = {id(each) for item in given for each in reached_by(item)}
        found = (*_in_hooks(parts), *_inner_optimizers(optimizers))
        names = (name for name, *owners in found if covered.isdisjoint(owners))
        self._known = list(dict.fromkeys(names))
        self._loaders = own_loaders(optimizers, (*schedule, *given))
        self._attributes = ChangingAttributes(parts, optimizers, given)
        self._told = False

    def look(self, steps: int) -> bool:
        """Whether something new is known after `steps` steps of this attempt."""
        return self._attributes.look(steps)

    def abilities(self) -> tuple[Ability, ...]:
        """The row of the table; none where all goes back and nothing else was said."""
        found = [*self._known, *self._attributes.changed]
        rows = restore_abilities(found, self._attributes.pending, self._loaders)
        if not rows and self._told:
            rows = (yes(RESTORE_ALL, reason="no attribute has changed that is not restored"),)
        self._told |= bool(rows)
        return rows


def own_loaders(optimizers: Sequence[Optimizer], given: Iterable[Any]) -> list[str]:
    """Classes whose `load_state_dict` is not torch's own, so that only a rollback shows it works.

    `given`: the schedule and the entries of `state=`.
    """
    kinds = [type(each) for each in optimizers]
    own = [kind for kind in kinds if kind.load_state_dict is not Optimizer.load_state_dict]
    own += map(type, given)
    return [k.__name__ for k in dict.fromkeys(own) if not k.__module__.startswith("torch.")]


def _in_hooks(parts: Modules) -> Iterator[tuple[Any, ...]]:
    for wrapper in (part for part in parts if isinstance(part, DistributedDataParallel)):
        for _, state in getattr(wrapper, "_comm_hooks", ()):
            kind = type(state).__name__
            internal = state is None or isinstance(state, ProcessGroup) or kind.startswith("_")
            if not internal:
                yield f"{kind} of a DDP communication hook", id(state), id(wrapper)


def _inner_optimizers(optimizers: Sequence[Optimizer]) -> Iterator[tuple[Any, ...]]:
    for optimizer in optimizers:
        kind = type(optimizer)
        if (
            kind.__module__.startswith("torch.optim.")
            or kind.state_dict is not Optimizer.state_dict
        ):
            continue
        for attribute, value in vars(optimizer).items():
            if isinstance(value, Optimizer) and value.state is not optimizer.state:
                what = f"the state of {type(value).__name__} in {kind.__name__}.{attribute}"
                yield what, id(value), id(optimizer)
