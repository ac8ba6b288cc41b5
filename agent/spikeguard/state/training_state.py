"""Everything that must go back in a rollback: model, optimizer, scheduler, state, random numbers.

Captured at a step boundary only, restored in place, bit for bit: parameters, moments and tensor
learning rates keep their identity, so compiled steps, captured graphs and schedulers stay valid.
Sharded tensors are kept as this rank's shard. Cost: all bytes once over the host link (25 M
parameters with Adam: 300 MB); from CUDA into pinned memory without a host wait.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement
from torch.optim import Optimizer

from spikeguard.optim.optimizers import names_of, trained_by
from spikeguard.ranks.layout import Job
from spikeguard.ranks.model_parts import (
    extra_states,
    is_packed,
    is_taken_apart,
    load_state,
    local,
    named_parameters,
    put_into,
    put_together,
    state_of,
    taken_apart,
)
from spikeguard.ranks.rank_group import listed
from spikeguard.state.lineage import Tree
from spikeguard.state.random_numbers import (
    forget_gpus,
    generators_of,
    put_back,
    random_refusal,
    random_state,
    restore_random_state,
    states_of,
)
from spikeguard.state.replicated_parts import StoredNames, is_plain, shape_mismatch

_PLAIN: Final = (int, float, bool, str)
_NOT_ITS_OWN: Final = {"_opt_called"}  # schedulers mark it so


class OptimizerAttributes:
    """What optimizers keep beside `state_dict()`: counters, random numbers of their own.

    Only what changes while training is saved and put back: an attribute that stays as the optimizer
    was made with is its maker's to choose, also at a restart. Torch's own keep all in their state.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = [each for each in optimizers if not _is_torchs_own(each)]
        self._at_first = [_plain(each) for each in self._optimizers]

    def capture(self) -> list[dict[str, Any]]:
        """Of each the plain values that are not as at first, and where its generators stand."""
        return [
            {
                "plain": {n: value for n, value in _plain(each).items() if first.get(n) != value},
                "generators": states_of(generators_of(vars(each))),
            }
            for each, first in zip(self._optimizers, self._at_first, strict=True)
        ]

    def restore(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """As it was when `saved` was captured."""
        for each, first, kept in zip(self._optimizers, self._at_first, saved, strict=True):
            vars(each).update({**first, **kept["plain"]})
            put_back(generators_of(vars(each)), kept["generators"])


def _plain(optimizer: Optimizer) -> dict[str, Any]:
    held = vars(optimizer).items()
    return {n: value for n, value in held if type(value) in _PLAIN and n not in _NOT_ITS_OWN}


class Laid(NamedTuple):
    """How a DTensor lies on its mesh, where not as its parameter: one number a row or column.

    A rank keeps its part as a plain tensor; a fresh optimizer has no state to tell how it lay.
    """

    placements: tuple[Placement, ...]
    shape: tuple[int, ...]  # of all of it
    stride: tuple[int, ...]


# By the parameter's number in the optimizer's state, and by key.
Layouts: TypeAlias = Mapping[int, Mapping[str, Sequence[Any]]]


def layouts_of(optimizer: Optimizer) -> Layouts:
    """Of what lies otherwise than its parameter; empty as a rule."""
    if _is_torchs_own(optimizer):
        return {}
    found = {}
    for number, parameter in enumerate(trained_by([optimizer])):
        state = optimizer.state.get(parameter)
        if not isinstance(parameter, DTensor) or not isinstance(state, dict):
            continue
        odd = {
            key: Laid(tuple(value.placements), tuple(value.shape), tuple(value.stride()))
            for key, value in state.items()
            if isinstance(value, DTensor)
            and (value.shape, value.placements) != (parameter.shape, parameter.placements)
            and value.device_mesh == parameter.device_mesh
        }
        if odd:
            found[number] = odd
    return found


class TrainingState:
    """The live objects."""

    def __init__(self, job: Job, scheduler: Any = None, extra: Sequence[Any] = ()) -> None:
        """`extra`: whatever else has a `state_dict` and goes back with it."""
        forget_gpus()
        self._saves_optimizer = not job.unsaved  # else the job's own functions save it
        self._modules, self._optimizers = job.parts, job.optimizers
        self._scheduler = scheduler
        self._extra = tuple(extra)
        self.learnt: Any = None  # with state_dict: what the agent itself has learnt
        self._named = {f"model.{n}" for n, _ in named_parameters(job.parts, remove_duplicate=False)}
        several = len(self._optimizers) > 1
        self._names = names_of(self._optimizers) if several else ("optimizer",)
        self._attributes = OptimizerAttributes(self._optimizers)
        self._topology = job.topology
        self.stored = StoredNames(job, self._names)
        self._equal_moments = tuple(
            prefix for prefix, optimizer in self.stored.moments if _is_torchs_own(optimizer)
        )

    def capture(self) -> Tree:
        """References to the live state; copy before the next step changes it."""
        states = (optimizer.state_dict() for optimizer in self._optimizers)
        by_name = zip(self._names, states, strict=True)
        laid = zip(self._names, map(layouts_of, self._optimizers), strict=True)
        layouts = {name: odd for name, odd in laid if odd}
        return {
            "model": state_of(self._modules),
            "optimizer": dict(by_name) if self._saves_optimizer else None,
            "layouts": layouts if self._saves_optimizer else None,
            "attributes": self._attributes.capture() if self._saves_optimizer else None,
            "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None,
            "extra": [item.state_dict() for item in self._extra],
            "random": random_state(),
            "learnt": self.learnt.state_dict() if self.learnt is not None else None,
        }

    def shared(self, name: str, tensor: Tensor) -> bool:
        """Whether ranks hold the tensor `name` of `capture()` together: in parts, or alike."""
        if isinstance(tensor, DTensor):
            return not self._topology.groups  # those that are cut beyond their mesh have one name
        equal = name in self._named or name.startswith(self._equal_moments)
        return self._topology.alike and equal

    def refusal(self, tree: Tree) -> str | None:
        """Why `tree` cannot be restored here; None if it can. Changes nothing."""
        if len(tree["extra"]) != len(self._extra):
            return f"it holds {len(tree['extra'])} entries of state=, the loop {len(self._extra)}"
        if (reason := random_refusal(tree.get("random") or {})) is not None:
            return reason
        if self._scheduler is not None and tree.get("scheduler") is None:
            return "it holds no state of a scheduler, which the loop gives as scheduler="
        if "model" not in tree:  # the job's own functions bring it back
            return None
        saved = tree["optimizer"]
        if set(saved) != set(self._names):
            there, here = (", ".join(sorted(names)) for names in (saved, self._names))
            return f"it holds the state of {there}, the loop has {here}"
        for name, optimizer in zip(self._names, self._optimizers, strict=True):
            before = group_sizes(saved[name]["param_groups"])
            if before != (now := group_sizes(optimizer.param_groups)):
                return f"{name} {_groups_differ(before, now)}{self._not_in_groups()}"
        extra = extra_states(self._modules).keys()  # may be of any shape
        live = {n: _local(t) for n, t in state_of(self._modules).items() if n not in extra}
        return shape_mismatch({n: t for n, t in tree["model"].items() if n not in extra}, live)

    def _not_in_groups(self) -> str:
        """The parameters that a group may have to be made of before `guard.resume()`."""
        owned = set(map(id, trained_by(self._optimizers)))
        loose = [n for n, p in named_parameters(self._modules) if id(p) not in owned]
        return f" (in no group here: {listed(loose)})" if loose else ""

    @torch.no_grad()
    def restore(self, tree: Tree) -> None:
        """Put everything back that `tree` holds; half done if it raises."""
        if "model" in tree:
            self._restore_model(tree["model"])
            for name, optimizer in zip(self._names, self._optimizers, strict=True):
                laid = (tree.get("layouts") or {}).get(name, {})
                restore_optimizer(optimizer, tree["optimizer"][name], laid)
            if tree.get("attributes") is not None:
                self._attributes.restore(tree["attributes"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(copy.deepcopy(tree["scheduler"]))
        for item, kept in zip(self._extra, tree["extra"], strict=True):
            if isinstance(item, Optimizer):
                # in place: one that it shares its groups with keeps them
                restore_optimizer(item, kept, {})
            else:
                item.load_state_dict(_placed(item.state_dict(), kept))
        if self.learnt is not None and tree.get("learnt") is not None:
            self.learnt.load_state_dict(copy.deepcopy(tree["learnt"]))
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        restore_random_state(tree["random"])

    def _restore_model(self, saved: Tree) -> None:
        extra = extra_states(self._modules)
        live = {n: value for n, value in state_of(self._modules).items() if n not in extra}
        if not all(isinstance(value, Tensor) for value in live.values()):
            load_state(self._modules, _placed(live, saved))
            return
        for name, tensor in live.items():
            _placed(tensor, saved[name])
        for name, module in extra.items():
            if name in saved:
                module.set_extra_state(_placed(None, saved[name]))


def group_sizes(groups: Sequence[dict[str, Any]]) -> list[int]:
    """How many parameters each group has."""
    return [len(group["params"]) for group in groups]


def restore_optimizer(optimizer: Optimizer, saved: Tree, layouts: Layouts) -> None:
    """Put a state back in place; first through the optimizer's own `load_state_dict`, if any.

    `layouts`: of what does not lie as its parameter does.
    """
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        kept = _placed(optimizer.state_dict() if optimizer.state else None, saved)
        if not optimizer.state:
            _lay_as_parameters(kept, optimizer, layouts)
        optimizer.load_state_dict(kept)
        if type(optimizer).state_dict is not Optimizer.state_dict:
            return  # torch's, which its own may call, casts moments to the parameter's type
    owned: set[Any] = set()
    for group, kept in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for number, parameter in zip(kept["params"], group["params"], strict=True):
            laid = layouts.get(number, {})
            _restore_entry(optimizer, parameter, saved["state"].get(number), laid)
        owned.update(kept["params"])
        for key, value in kept.items():
            if key != "params":
                group[key] = _placed(group.get(key), value)
    _restore_rest(optimizer, {k: v for k, v in saved["state"].items() if k not in owned})


def _restore_rest(optimizer: Optimizer, kept: Tree) -> None:
    """What the optimizer keeps under names of its own, and not by parameter."""
    state: dict[Any, Any] = optimizer.state
    for key in [key for key in state if not isinstance(key, Tensor) and key not in kept]:
        del state[key]
    for key, value in kept.items():
        state[key] = _placed(state.get(key), value)


def _is_torchs_own(optimizer: Optimizer) -> bool:
    """Whether ranks with equal gradients have equal moments; others may part them among ranks."""
    return type(optimizer).__module__.startswith("torch.optim.")


def _restore_entry(
    optimizer: torch.optim.Optimizer,
    parameter: Tensor,
    kept: Any,
    laid: Mapping[str, Sequence[Any]],
) -> None:
    if kept is None:
        optimizer.state.pop(parameter, None)
        return
    if not isinstance(kept, dict) or is_taken_apart(kept):
        optimizer.state[parameter] = _placed(optimizer.state.get(parameter), kept, parameter)
        return
    live = optimizer.state[parameter]
    for key in [key for key in live if key not in kept]:
        del live[key]
    fused = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    for key, value in kept.items():
        counter = key == "step" and not fused  # as in torch's own load_state_dict
        live[key] = _placed(live.get(key), value, None if counter else parameter, laid.get(key))


def _placed(
    live: Any, kept: Any, like: Tensor | None = None, laid: Sequence[Any] | None = None
) -> Any:
    """A copy of `kept` as a live value: in the tensors that are there, or in new ones, those as
    `like` lies.

    `laid`: how, where not as `like` does.
    """
    if is_taken_apart(kept):
        if isinstance(live, Tensor) and is_packed(live) and put_into(live, kept):
            return live
        return put_together(kept, torch.empty(0) if like is None else like)
    if isinstance(kept, Tensor):
        return _filled(live, kept, like, laid)
    if isinstance(kept, dict):
        old = live if isinstance(live, dict) else {}
        return {key: _placed(old.get(key), value, like) for key, value in kept.items()}
    if type(kept) in (list, tuple) and not is_plain(kept):
        same = isinstance(live, list | tuple) and len(live) == len(kept)
        olds = live if same else [None] * len(kept)
        return type(kept)(_placed(o, value, like) for o, value in zip(olds, kept, strict=True))
    return copy.deepcopy(kept)


def _filled(
    live: Any, kept: Tensor, like: Tensor | None, laid: Sequence[Any] | None = None
) -> Tensor:
    same = isinstance(live, Tensor)
    if same and local(live).shape == kept.shape and live.dtype == kept.dtype:
        home: Tensor = live
    elif like is None:
        home = torch.empty_like(kept, device=live.device if same else None)
    elif laid is not None and isinstance(like, DTensor):
        placements, shape, stride = laid
        home = DTensor.from_local(
            torch.empty_like(kept, device=local(like).device),
            like.device_mesh,
            placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(stride),
        )
    elif kept.shape == local(like).shape:
        home = torch.empty_like(like, dtype=kept.dtype)
    else:
        home = torch.empty_like(kept, device=like.device)
    local(home).copy_(kept)
    return home


def _lay_as_parameters(kept: Tree, optimizer: Optimizer, layouts: Layouts) -> None:
    """Where an optimizer has no state yet: what has a shard's shape lies as its parameter."""
    for number, parameter in enumerate(trained_by([optimizer])):
        state, laid = kept.get("state", {}).get(number), layouts.get(number, {})
        if not isinstance(state, dict) or not isinstance(parameter, DTensor):
            continue
        for key, value in state.items():
            shard = isinstance(value, Tensor) and value.shape == local(parameter).shape
            if key in laid or shard:
                state[key] = _filled(None, value, parameter, laid.get(key))


def _groups_differ(before: list[int], now: list[int]) -> str:
    """What to do where a checkpoint has `before` parameters in its groups, and the loop `now`."""
    if before[: len(now)] == now:
        return (
            f"had {len(before)} parameter groups and has {len(now)}: add those of "
            f"{', '.join(map(str, before[len(now) :]))} parameters with add_param_group() before "
            "guard.resume(), as the loop did when it unfroze them"
        )
    return f"had groups of {before} parameters, and has groups of {now}"


def _local(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return taken_apart(value) if is_packed(value) else local(value)
