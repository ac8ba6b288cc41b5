"""What of the model lies here: sharded tensors (DTensor: FSDP2, tensor parallelism) and tensors
that are made of others, and the modules that `attach()` was given: one model, or the parts of
one.

Nothing here is read on the host. `settled` alone makes ranks meet, and only where the gradients
that the backward pass left lie otherwise than their parameters. A parameter has one name, the same
at every start and on every rank that holds it; only where two parts use a name for different things
does every name begin with the part's place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def onto(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """`tensor` on `device`. What comes to the host is waited for, as the host computes with it at
    once; a copy to another device is queued there before what uses it."""
    return tensor.to(device, dtype, non_blocking=device.type != "cpu")


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of `tensor`; a plain tensor is its own, a sparse gradient its sums."""
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether any of `tensors` is spread over ranks."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def settled(gradient: Tensor, parameter: Tensor) -> Tensor:
    """`gradient` as its parameter lies: sums over ranks that were still to be made are made."""
    if not isinstance(gradient, DTensor) or not isinstance(parameter, DTensor):
        return gradient
    if gradient.placements == parameter.placements:
        return gradient
    return gradient.redistribute(placements=parameter.placements)


def coordinates(parameter: Tensor) -> list[int]:
    """Which part of it lies here: this rank's places along what cuts it."""
    if not isinstance(parameter, DTensor):
        return []
    placed = zip(parameter.device_mesh.get_coordinate() or [], parameter.placements, strict=True)
    return [n for n, placement in placed if not isinstance(placement, Replicate)]


# ---- tensors that are made of other tensors ----------------------------------------------------
# Codes and scales of 8-bit moments, as torchao keeps them. Read as one tensor such a value is
# unpacked, and packed again it need not have the same bits; so a state that goes to the host and
# back holds the tensors inside, under a mark.

_MARK = "spikeguard.packed"


def is_packed(tensor: Tensor) -> bool:
    """Whether this rank's part of `tensor` is made of other tensors."""
    return type(tensor) is not Tensor and is_traceable_wrapper_subclass(local(tensor))


def taken_apart(tensor: Tensor) -> dict[str, Any]:
    """The tensors inside this rank's part, and what it takes to make it of them."""
    here: Any = local(tensor)
    names, context = here.__tensor_flatten__()
    inside = {name: getattr(here, name) for name in names}
    how = {"kind": type(here), "context": context, "size": tuple(here.shape)}
    return {_MARK: {**how, "stride": tuple(here.stride())}, "inside": inside}


def is_taken_apart(value: Any) -> bool:
    """Whether `value` is what `taken_apart` returns, or a copy of it."""
    return isinstance(value, dict) and _MARK in value


def put_into(live: Tensor, kept: Mapping[str, Any]) -> bool:
    """Fill a live tensor of the same kind with what was kept; whether it could be."""
    here: Any = local(live)
    if type(here) is not kept[_MARK]["kind"] or tuple(here.shape) != kept[_MARK]["size"]:
        return False
    for name, tensor in kept["inside"].items():
        getattr(here, name).copy_(tensor)
    return True


def put_together(kept: Mapping[str, Any], like: Tensor) -> Tensor:
    """A new tensor of what was kept, where `like` lies and, where it is one, a DTensor as it is."""
    how = kept[_MARK]
    inside = {name: tensor.to(local(like).device) for name, tensor in kept["inside"].items()}
    size, stride = torch.Size(how["size"]), how["stride"]
    made: Tensor = how["kind"].__tensor_unflatten__(inside, how["context"], size, stride)
    if isinstance(like, DTensor):
        return DTensor.from_local(
            made, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
        )
    return made


# ---- modules and their names ------------------------------------------------------------------


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
    for name, parameter in own.items():
        value = state.get(name)
        if not isinstance(value, Tensor) or local(value).data_ptr() != local(parameter).data_ptr():
            break
    else:
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
