"""The optimizers that train the model, found in whatever holds them: a list, a dict, torchtitan's
OptimizersContainer, whatever iterates its optimizers or has them as `.optimizers`.

No state is asked for, since a container may make a step to have one. A wrapper that trains by the
groups of the optimizer inside it is itself the one that is watched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from spikeguard.errors import AttachError
from spikeguard.optim.lr_scale import LrScale

TAKES_RATES = "ZeroRedundancyOptimizer"  # gives its inner one the groups' rates at each step
FABRIC = "_FabricOptimizer"  # Lightning's: it steps the one inside, whose groups it shows


def optimizers_in(given: Any) -> tuple[Optimizer, ...]:
    """Those that make the updates, each once; raises `AttachError` where there is none."""
    found = tuple({id(each): each for each in _spread(given)}.values())
    if not found:
        raise AttachError("optimizer", f"{_kind(given)} holds no optimizer", _GIVE)
    return found


_GIVE = "Give the torch.optim.Optimizer that trains the model, or a list of those that do"


def names_of(optimizers: Sequence[Optimizer]) -> tuple[str, ...]:
    """The class of each; those of one class are counted in the order given."""
    kinds = [_kind(each) for each in optimizers]
    many = {kind for kind, count in Counter(kinds).items() if count > 1}
    met: Counter[str] = Counter()
    names = []
    for kind in kinds:
        names.append(f"{kind}.{met[kind]}" if kind in many else kind)
        met[kind] += 1
    return tuple(names)


def kinds_of(optimizers: Sequence[Optimizer]) -> str:
    """Their classes in one line: `AdamW + Muon`."""
    return " + ".join(dict.fromkeys(map(_kind, optimizers)))


def trained_by(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """The parameters in the groups of all of them."""
    return [p for each in optimizers for group in each.param_groups for p in group["params"]]


def _spread(given: Any) -> Iterator[Optimizer]:
    if any(each.__name__ == FABRIC for each in type(given).__mro__):
        given = given.optimizer
    inner = _held(given)
    if isinstance(given, Optimizer) and not (inner and _trains_by_others(given, inner)):
        yield _checked(given)
        return
    if not inner and not _is_container(given):
        paths = [path for path, _ in islice(_inner(given, "optimizer", 2), 2)]
        remedy = f"Give those inside, in a list: {', '.join(paths)}" if paths else _GIVE
        raise AttachError("optimizer", f"it is a {_kind(given)}", remedy)
    for each in inner:
        yield from _spread(each)


def _inner(given: Any, path: str, depth: int) -> Iterator[tuple[str, Optimizer]]:
    """Optimizers that `given` keeps among its attributes, through as many objects that are no
    modules, with how they are reached."""
    for name, value in getattr(given, "__dict__", {}).items():
        several: Any = [("", value)]
        if isinstance(value, list | tuple | dict):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            several = [(f"[{key!r:.40}]", each) for key, each in items]
        for at, each in several:
            if isinstance(each, Optimizer) and each is not given:
                yield f"{path}.{name}{at}", each
            elif depth > 1 and not isinstance(each, Module | type):
                yield from _inner(each, f"{path}.{name}{at}", depth - 1)


def _held(given: Any) -> list[Any]:
    """What a container holds, in its order; empty for what is none."""
    held = getattr(given, "optimizers", given)
    held = held.values() if isinstance(held, Mapping) else held
    if not isinstance(held, Iterable) or isinstance(held, str | Tensor):
        return []
    items = []
    for each in held:
        if not (_is_container(given) or isinstance(each, Optimizer) or hasattr(each, "optimizers")):
            return []
        if each is not given:
            items.append(each)
    return items


def _is_container(given: Any) -> bool:
    return isinstance(given, list | tuple | Mapping)


def _checked(optimizer: Optimizer) -> Optimizer:
    """Raise `AttachError` for one that only wraps another and does not iterate it."""
    inner = list(_inner(optimizer, "optimizer", 1))
    remedy = f"Give the one inside, {inner[0][0]}" if inner else _GIVE
    kind = _kind(optimizer)
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        problem = f"{kind} has no step hooks, as it wraps another optimizer"
        raise AttachError("optimizer", problem, remedy)
    if _trains_by_others(optimizer, [each for _, each in inner]):
        kinds = ", ".join(_kind(each) for _, each in inner)
        raise AttachError(
            "optimizer",
            f"{kind} holds optimizers ({kinds}) that train by parameter groups of their own: its "
            "groups have no learning rate that counts, and its state cannot be put back",
            remedy if len(inner) == 1 else "Give those inside, in a list",
        )
    return optimizer


def _trains_by_others(optimizer: Optimizer, inner: Iterable[Optimizer]) -> bool:
    """Whether the groups that count are those of the optimizers inside."""
    if any(each.__name__ == TAKES_RATES for each in type(optimizer).__mro__):
        return False
    own = {id(group) for group in getattr(optimizer, "param_groups", ())}
    return any(
        id(group) not in own for each in inner for group in getattr(each, "param_groups", ())
    )


def _kind(given: Any) -> str:
    return type(given).__name__


# ---- their learning rates, lowered for some steps in a way that no scheduler ever sees -----------
# Multiplied in the step pre-hook and put back exactly in the post-hook: a change left in the group
# would be kept for ever by CosineAnnealingLR and lost after one step by LambdaLR.


def has_rates(optimizer: Optimizer) -> bool:
    """Whether every group has a rate that can be scaled; some optimizers keep None there."""
    return all(isinstance(g.get("lr"), Tensor | Real) for g in optimizer.param_groups)


def factor_of(scale: LrScale, step: int, rate: Tensor | Real | float) -> float | Tensor:
    """What multiplies every rate at `step`, where the first group's is `rate`, a number or a ()
    tensor; waits for no device."""
    factor = scale.at(step)
    if scale.cap is None or factor == 1.0:
        return factor
    if isinstance(rate, Tensor):
        return torch.clamp(scale.cap / rate, min=factor, max=1.0)
    return max(factor, min(1.0, scale.cap / float(rate))) if rate else 1.0


class ScaledRates:
    """The learning rates of every group of every optimizer, each during its own step."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = tuple(optimizers)
        self.lent: list[tuple[dict[str, Any], Any]] = []  # groups and what to put back
        self.scale: LrScale | None = None
        self.everywhere = True  # the other ranks' optimizers have rates too

    @property
    def usable(self) -> bool:
        """Whether a factor would change every group's rate; groups may be added while training."""
        return self.everywhere and all(map(has_rates, self._optimizers))

    def before_step(self, step: int, number: int = 0) -> list[Any]:
        """Scale those of one optimizer for `step`; returns what it will use, floats or () tensors.

        None stands for a group that has no rate, which nothing scales.
        """
        if self.lent:
            self.after_step()
        groups = self._optimizers[number].param_groups
        if self.scale is not None and self.scale.at(step) != 1.0 and self.usable:
            factor = factor_of(self.scale, step, self._optimizers[0].param_groups[0]["lr"])
            for group in groups:
                rate = group["lr"]
                self.lent.append((group, rate.clone() if isinstance(rate, Tensor) else rate))
                if isinstance(rate, Tensor):
                    rate.mul_(factor)
                else:
                    group["lr"] = rate * (float(factor) if isinstance(factor, Tensor) else factor)
        return [group.get("lr") for group in groups]

    def after_step(self) -> None:
        """Put the rates back, bit for bit."""
        while self.lent:
            group, rate = self.lent.pop()
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
