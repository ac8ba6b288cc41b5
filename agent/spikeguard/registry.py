"""Which models and optimizers have a guard that has not finished: one each.

Two would hook an optimizer twice, and each would count the other's steps; two of one model, with an
optimizer each, would take its weights back with the moments of one alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

import torch

from spikeguard.faults import log

if TYPE_CHECKING:
    from spikeguard.guard import Guard

_GUARDS: Final[WeakKeyDictionary[Any, ref[Any]]] = WeakKeyDictionary()


def enter(guard: Any, *watched: Any) -> None:
    """From here on `guard` is that of each of `watched`."""
    for each in watched:
        _GUARDS[each] = ref(guard)


def leave(*watched: Any) -> None:
    """Make way for another guard."""
    for each in watched:
        _GUARDS.pop(each, None)


def held_by(watched: Any) -> Any:
    """The guard of a model or an optimizer, None where it has none that goes on."""
    found = _GUARDS.get(watched)
    guard = None if found is None else found()
    return None if guard is None or guard.ended else guard


def guard_of(watched: torch.nn.Module | torch.optim.Optimizer) -> Guard | None:
    """The guard of a model or an optimizer, as `attach` was given it; None once it has finished."""
    found: Guard | None = held_by(watched)
    return found


def make_way(model: torch.nn.Module) -> None:
    """Finish the guard that a loop which was interrupted has left on `model`, if there is one."""
    earlier = guard_of(model)
    if earlier is not None:
        log.warning("attempt %s of this model was not finished: it is now", earlier.attempt)
        earlier.finish("interrupted")
