"""What an optimizer keeps beside `state` and `param_groups`: counters, random numbers of its own.

Its `state_dict()` has none of it, and what goes back without it goes on differently.
Invariants: only what changes while training is saved and put back; an attribute that stays as the
optimizer was made with is its maker's to choose, also at a restart. Nothing of torch's own
optimizers, which keep all in their state.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.optim import Optimizer

_PLAIN: Final = (int, float, bool, str)
_NOT_ITS_OWN: Final = {"_opt_called"}  # schedulers mark it so


class OptimizerAttributes:
    """Of several optimizers, beside how they were at `attach()`."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = tuple(optimizers)
        self._at_first = [_attributes(each) for each in optimizers]

    def capture(self) -> list[dict[str, Any]]:
        """What is not as it was at first, one dict for each optimizer."""
        return [
            {name: value for name, value in _attributes(each).items() if first.get(name) != value}
            for each, first in zip(self._optimizers, self._at_first, strict=True)
        ]

    def restore(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """As it was when `saved` was captured."""
        for each, first, kept in zip(self._optimizers, self._at_first, saved, strict=True):
            for name, value in {**first, **kept}.items():
                _put_back(each, name, value)


def _attributes(optimizer: Optimizer) -> dict[str, Any]:
    if type(optimizer).__module__.startswith("torch.optim."):
        return {}
    found = {name: _value(held) for name, held in vars(optimizer).items()}
    return {n: v for n, v in found.items() if v is not None and n not in _NOT_ITS_OWN}


def _value(held: Any) -> Any:
    """None for what is not plain."""
    if isinstance(held, random.Random):
        return held.getstate()
    if isinstance(held, torch.Generator):
        return held.get_state().tolist()
    return held if type(held) in _PLAIN else None


def _put_back(optimizer: Optimizer, name: str, value: Any) -> None:
    held = vars(optimizer).get(name)
    if isinstance(held, random.Random):
        kind, numbers, spare = value
        held.setstate((kind, tuple(numbers), spare))
    elif isinstance(held, torch.Generator):
        held.set_state(torch.tensor(value, dtype=torch.uint8))
    elif held != value:
        setattr(optimizer, name, value)
