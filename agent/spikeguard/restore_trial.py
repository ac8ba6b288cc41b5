"""Tries at `attach()` whether a schedule and what else goes back takes its own state again.

A copy of each is given the state that the original shows. What refuses there would end the attempt
in the middle of a rollback. The optimizers are tried in `job`, without a step.
Invariants: the original, the model, the optimizers and all random numbers stay as they are. What is
large, or holds the model, or cannot be copied is not tried and counts as sound.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from spikeguard.errors import AttachError
from spikeguard.job_checks import stand_in
from spikeguard.state.training_state import random_state, restore_random_state
from spikeguard.topology.model_parts import Modules

MOST_OBJECTS = 10_000  # that are copied for a trial
MOST_BYTES = 64 * 2**20
_PLAIN = (int, float, complex, bool, type(None), type)


def check_restored(
    modules: Modules,
    optimizers: Sequence[torch.optim.Optimizer],
    scheduler: Any,
    state: Sequence[Any],
) -> None:
    """Raise `AttachError` for a schedule, or an entry of `state`, that takes no state back."""
    named = [("scheduler", scheduler)] if scheduler is not None else []
    numbers = random_state()
    try:
        for argument, given in (*named, *(("state", item) for item in state)):
            problem = _refusal(given, modules, optimizers)
            if problem:
                remedy = f"Mend it, or leave it out of {argument}= if the run can go back without"
                raise AttachError(argument, problem, remedy)
    finally:
        restore_random_state(numbers)


def _refusal(given: Any, modules: Modules, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Why the state that `given` shows cannot be put back; empty if it can, or was not tried."""
    kind = type(given).__name__
    try:
        saved = given.state_dict()
    except Exception as error:
        return f"{kind}.state_dict() raises {error!r:.200}"
    stands = {id(each): stand_in(each) for each in optimizers}
    owned = [t for part in modules for t in (*part.parameters(), *part.buffers(), *part.modules())]
    other = _copied(given, stands, {id(each) for each in owned})
    try:
        if other is not None:
            other.load_state_dict(copy.deepcopy(saved))
    except Exception as error:
        return f"{kind}.load_state_dict() refuses its own state_dict(): {error!r:.200}"
    return ""


def _copied(given: Any, stands: Mapping[int, Any], owned: set[int]) -> Any:
    """A copy that reaches copies alone; None where there is none that is small."""
    with suppress(Exception):  # locks, files, generators
        if _is_small(given, stands, owned):
            return copy.deepcopy(given, dict(stands))
    return None


def _is_small(given: Any, stands: Mapping[int, Any], owned: set[int]) -> bool:
    """Whether a copy takes little, and reaches nothing of the model's."""
    seen: set[int] = set(stands)
    waiting, held = [given], 0
    while waiting:
        value = waiting.pop()
        if id(value) in owned or isinstance(value, nn.Module):
            return False
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen.add(id(value))
        held += _bytes(value)
        if len(seen) > MOST_OBJECTS or held > MOST_BYTES:
            return False
        if isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif not isinstance(value, Tensor | str | bytes):
            waiting += getattr(value, "__dict__", {}).values()
    return True


def _bytes(value: Any) -> int:
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
