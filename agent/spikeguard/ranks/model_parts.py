"""The modules that `attach()` was given: one model, or the parts of one.

Invariants: a parameter has one name, the same at every start and on every rank that holds it. The
parts of a pipeline keep the names that they have in the whole model; only where two parts use a
name for different parameters or buffers does every name begin with the part's place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spikeguard.ranks.shards import local

Modules = Sequence[nn.Module]
EXTRA = "_extra_state"  # torch's own name


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module under DistributedDataParallel, torch.compile and Lightning Fabric."""
    while isinstance(model := uncovered(model), torch.nn.parallel.DistributedDataParallel):
        model = model.module
    return model


def uncovered(model: nn.Module) -> nn.Module:
    """What lies under torch.compile and Lightning Fabric, which say nothing of the ranks."""
    for cover in ("_orig_mod", "_forward_module"):
        if isinstance(inner := getattr(model, cover, None), nn.Module):
            return uncovered(inner)
    return model


def named_parameters(
    parts: Modules, remove_duplicate: bool = True
) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter of the parts, as their own modules name it; a shared one once."""
    seen: set[int] = set()
    for prefix, part in _prefixed(parts):
        for name, parameter in part.named_parameters(prefix, remove_duplicate=remove_duplicate):
            if not remove_duplicate or id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter


def named_modules(parts: Modules) -> dict[str, nn.Module]:
    """Every module in the parts by name."""
    return {n: m for prefix, part in _prefixed(parts) for n, m in part.named_modules(prefix=prefix)}


def state_of(parts: Modules) -> dict[str, Any]:
    """What `state_dict()` says of each part, by the names of all.

    Where its hooks hand out copies, as those that split a fused weight do, the tensors themselves:
    what is copied into a copy changes nothing.
    """
    return {
        f"{prefix}.{name}" if prefix else name: value
        for prefix, part in _prefixed(parts)
        for name, value in _live_state(part).items()
    }


def _live_state(part: nn.Module) -> dict[str, Any]:
    state = part.state_dict()
    own = dict(part.named_parameters(remove_duplicate=False))
    if all(name in state and _lies_in(state[name], p) for name, p in own.items()):
        return state
    shown = extra_states([part])
    extra = {n: state[n] if n in state else m.get_extra_state() for n, m in shown.items()}
    return {**own, **_saved_buffers(part), **extra}


def extra_states(parts: Modules) -> dict[str, nn.Module]:
    """The modules that keep more than tensors (`get_extra_state`), by that state's name."""
    return {
        f"{name}.{EXTRA}" if name else EXTRA: module
        for name, module in named_modules(parts).items()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


def unrestored_extra_state(parts: Modules) -> str:
    """Which module shows extra state and takes none back; empty where none does."""
    for name, module in extra_states(parts).items():
        if type(module).set_extra_state is nn.Module.set_extra_state:
            return f"{type(module).__name__} has no set_extra_state() ({name})"
    return ""


def _saved_buffers(part: nn.Module) -> dict[str, Tensor]:
    """Those that a state dict holds."""
    return {
        name: buffer
        for prefix, module in part.named_modules()
        for name, buffer in module.named_buffers(prefix, recurse=False)
        if name.rpartition(".")[2] not in module._non_persistent_buffers_set
    }


def _lies_in(value: Any, parameter: Tensor) -> bool:
    """Whether `value` is the memory of `parameter`."""
    return isinstance(value, Tensor) and local(value).data_ptr() == local(parameter).data_ptr()


def load_state(parts: Modules, state: dict[str, Any]) -> None:
    """Give each part what `state_of` has taken from it, through its own `load_state_dict`."""
    for prefix, part in _prefixed(parts):
        own = f"{prefix}." if prefix else ""
        mine = set(part.state_dict()) if not prefix else set()
        part.load_state_dict(
            {
                name.removeprefix(own): value
                for name, value in state.items()
                if (name.startswith(own) if prefix else name in mine)
            }
        )


def parameters(parts: Modules) -> list[Tensor]:
    """The same without names."""
    return [parameter for _, parameter in named_parameters(parts)]


def _prefixed(parts: Modules) -> list[tuple[str, nn.Module]]:
    """The modules inside, each with what its names begin with; mostly nothing."""
    inside = [unwrapped(part) for part in parts]
    if len(inside) == 1:
        return [("", inside[0])]
    held = [
        {n: id(t) for n, t in (*part.named_parameters(), *_saved_buffers(part).items())}
        for part in inside
    ]
    counted = Counter(name for names in held for name in names)
    alike = any(
        count > 1 and len({names[name] for names in held if name in names}) > 1
        for name, count in counted.items()
    )
    return [(str(place) if alike else "", part) for place, part in enumerate(inside)]
