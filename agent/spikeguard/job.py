"""What a job is made of, as `attach()` finds it: which optimizer trains what, and who holds what.

Seen once, from the objects and from what the ranks tell each other; norms, clipping, skipping and
the scaling of rates go by it. What a guard would spoil is refused with the names of the parameters.
Invariants: a refusal is the same on every rank. Nothing is changed here, no step is made, and no
state is created or moved.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import device_mesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from spikeguard.errors import AttachError
from spikeguard.layout import Layout, layout_of, says_replicated
from spikeguard.model_parts import Modules, named_parameters, parameters
from spikeguard.optimizers import trained_by
from spikeguard.world import World, share_each

NAMED = 3  # parameters in a message; the others are counted
STAGES = frozenset({"pp", "pipe", "pipeline", "pipeline_parallel", "stage", "stages"})
ONE_MODEL = (
    "Train without stages, the whole model on every rank (DistributedDataParallel) or sharded over "
    "all of them (fully_shard), or run this job without spikeguard"
)
SAY_COPIES = (
    "if all ranks hold the same there and have the same gradients when the optimizer steps, say "
    "attach(replicated=True)"
)


@dataclass(frozen=True, slots=True)
class Job:
    """Which optimizers train which modules, and how the ranks hold those."""

    parts: tuple[torch.nn.Module, ...]  # one, or those of a model that is cut into several
    optimizers: tuple[Optimizer, ...]  # each parameter that trains belongs to one of them
    layout: Layout
    unsaved: str = ""  # why; empty where state_dict and load_state_dict work

    @property
    def known(self) -> bool:
        """Whether what a rank measures is, or adds up to, what all ranks measure."""
        return self.layout is not Layout.UNKNOWN


def describe(
    parts: Modules, optimizers: Sequence[Optimizer], replicated: bool | None, world: World
) -> Job:
    """What `attach` has been given; raises `AttachError` on all ranks where one must refuse.

    `replicated`: what the user says of the ranks. Collective.
    """
    own = _Seen(_digest(_held(parts)))
    layout = Layout.UNKNOWN
    try:
        layout = layout_of(parts, replicated, bool(_beyond_meshes(parts, world.size)))
        _check_optimizers(parts, optimizers)
        own.unsaved = next(filter(None, map(_unsaved, optimizers)), "")
    except AttachError as error:
        own.optimizer = _plain(error)
    try:
        _check_meshes(parts, replicated, world.size)
    except AttachError as error:
        own.meshes = _plain(error)
    ranks = [_Seen(*json.loads(text)) for text in share_each(world, json.dumps(astuple(own)))]
    _raise_first([seen.optimizer for seen in ranks])
    if len({seen.parameters for seen in ranks}) > 1:
        _refuse_stages([text.split("\n") for text in share_each(world, "\n".join(_held(parts)))])
    _raise_first([seen.meshes for seen in ranks])
    unsaved = next((seen.unsaved for seen in ranks if seen.unsaved), "")
    return Job(tuple(parts), tuple(optimizers), layout, unsaved)


@dataclass(slots=True)
class _Seen:
    """What one rank tells the others."""

    parameters: str  # a digest of their names and shapes
    optimizer: str = ""  # an `AttachError` of its own, as JSON
    meshes: str = ""  # the same, where the ranks do hold the same parameters
    unsaved: str = ""


# ---- an optimizer for each that trains ---------------------------------------------------------


def _check_optimizers(parts: Modules, optimizers: Sequence[Optimizer]) -> None:
    """Raise `AttachError` where `optimizers` do not make every update of `parts`, each once."""
    owned = Counter(map(id, trained_by(optimizers)))
    training = list(_training(parts))
    loose = [name for name, p in training if id(p) not in owned]
    if loose:
        raise AttachError(
            "optimizer",
            f"{_listed(loose)} of the model {_verb(loose, 'trains', 'train')} and "
            f"{_verb(loose, 'belongs', 'belong')} to another optimizer or to none: a bad update "
            "would be kept from one part of the model and made in the other",
            "Give all optimizers that train the model, in a list, or set requires_grad=False on "
            "what does not train",
        )
    twice = [name for name, p in named_parameters(parts) if owned[id(p)] > 1]
    if twice:
        raise AttachError(
            "optimizer",
            f"{_listed(twice)} {_verb(twice, 'belongs', 'belong')} to several of the optimizers: "
            "of which one an update is, and what it is put back to, would not be known",
            "Give each parameter to one optimizer",
        )
    backward = [name for name, p in training if hasattr(p, "_in_backward_optimizers")]
    if backward:
        raise AttachError(
            "optimizer",
            f"{_listed(backward)} {_verb(backward, 'is', 'are')} updated within the backward pass, "
            "before the norm of all gradients is known",
            "Step the optimizers after the backward pass",
        )


def _unsaved(optimizer: Optimizer) -> str:
    """Why the optimizer's state cannot be saved and put back; empty if it can.

    Torch's own way is known to work. Another's is tried: what it saves is given to a stand-in with
    the same tensors, so that nothing is copied and the optimizer's own state and groups stay.
    """
    kind = type(optimizer)
    if (
        kind.state_dict is Optimizer.state_dict
        and kind.load_state_dict is Optimizer.load_state_dict
    ):
        return ""
    try:
        saved = optimizer.state_dict()
    except Exception as error:
        return f"{kind.__name__}.state_dict() raises {error!r:.200}"
    groups = saved.get("param_groups") if isinstance(saved, dict) else None
    if not isinstance(groups, list) or len(groups) != len(optimizer.param_groups):
        return f"{kind.__name__}.state_dict() does not hold its parameter groups"
    other = None
    with suppress(Exception):  # one whose state is computed cannot be tried
        other = _stand_in(optimizer)
    try:
        if other is not None:
            other.load_state_dict(saved)
    except Exception as error:
        return f"{kind.__name__}.load_state_dict() refuses its own state_dict(): {error!r:.200}"
    return ""


def _stand_in(optimizer: Optimizer) -> Optimizer:
    """One with the attributes of `optimizer`, a state and groups of its own, and nobody's hooks."""
    other: Optimizer = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        hooks = name.startswith("_optimizer_") and isinstance(value, dict)
        vars(other)[name] = OrderedDict() if hooks else value
    other.param_groups = [dict(group) for group in optimizer.param_groups]
    other.state = type(optimizer.state)(getattr(optimizer.state, "default_factory", None))
    other.state.update({key: dict(value) for key, value in optimizer.state.items()})
    return other


# ---- which rank holds what ---------------------------------------------------------------------


def _check_meshes(parts: Modules, stated: bool | None, ranks: int) -> None:
    """Raise `AttachError` where it is not known what other ranks hold of a parameter."""
    if ranks == 1:
        return
    for name, parameter in _training(parts):
        stage = _stage_of(parameter) if isinstance(parameter, DTensor) else None
        if stage is not None:
            raise AttachError(
                "model",
                f"the mesh of {name!r} belongs to one with a dimension {stage!r}: a bad update "
                "would be skipped on one pipeline stage and made on the other",
                ONE_MODEL,
            )
    loose = _beyond_meshes(parts, ranks)
    if loose and not (says_replicated(parts) if stated is None else stated):
        raise AttachError(
            "model",
            f"{_listed(loose)} {_verb(loose, 'lies', 'lie')} beside DTensors on all ranks, in "
            "plain tensors or on a mesh of some ranks: what the other ranks hold of it is not "
            "known, so that they could clip and skip differently",
            f"Shard all parameters over a mesh of all ranks (fully_shard(model)); or, {SAY_COPIES}",
        )


def _training(parts: Modules) -> Iterator[tuple[str, Tensor]]:
    return ((n, p) for n, p in named_parameters(parts) if p.requires_grad)


def _beyond_meshes(parts: Modules, ranks: int) -> list[str]:
    """Of a model with DTensors, what trains and lies on no mesh of all ranks."""
    if ranks == 1 or not any(isinstance(p, DTensor) for p in parameters(parts)):
        return []
    return [
        name
        for name, p in _training(parts)
        if not isinstance(p, DTensor) or p.device_mesh.size() != ranks
    ]


def _stage_of(parameter: DTensor) -> str | None:
    """The name of a pipeline's dimension in the mesh that the parameter's one was cut from."""
    mesh: Any = parameter.device_mesh
    whole = mesh
    with suppress(Exception):  # no public name leads to it; before 2.8 it lay elsewhere
        found = getattr(mesh, "_get_root_mesh", None)
        whole = found() if found else device_mesh._mesh_resources.get_root_mesh(mesh)
    for dimension, name in enumerate(whole.mesh_dim_names or ()):
        if name in STAGES and whole.size(dimension) > 1:
            return str(name)
    return None


def _held(parts: Modules) -> list[str]:
    """A line for each parameter, equal on two ranks that hold copies or parts of the same model."""
    return [f"{n} {list(p.shape)}" for n, p in named_parameters(parts)]


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _refuse_stages(held: Sequence[Sequence[str]]) -> None:
    """Raise `AttachError` for the first rank that holds other parameters than rank 0."""
    first = held[0]
    other = next(rank for rank, lines in enumerate(held) if lines != first)
    sides = [(0, _names(first, held[other])), (other, _names(held[other], first))]
    alone = ", ".join(f"rank {rank} alone {_listed(names)}" for rank, names in sides if names)
    raise AttachError(
        "model",
        f"the ranks hold different parameters ({alone or 'in another order'}), as pipeline stages "
        "do: a bad update would be skipped on one rank and made on the other, and each would be "
        "clipped by its own norm",
        ONE_MODEL,
    )


def _names(lines: Sequence[str], others: Sequence[str]) -> list[str]:
    """Of `lines` those that `others` lack, by the parameters' names."""
    known = set(others)
    return [line.partition(" ")[0] for line in lines if line not in known]


# ---- refusals ----------------------------------------------------------------------------------


def _listed(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(repr(name) for name in names[:NAMED]) + more


def _verb(names: Sequence[str], one: str, many: str) -> str:
    return one if len(names) == 1 else many


def _plain(error: AttachError) -> str:
    return json.dumps([error.argument, error.problem, error.remedy])


def _raise_first(refusals: Sequence[str]) -> None:
    """What the lowest rank refuses, on every rank."""
    for rank, refusal in enumerate(refusals):
        if refusal:
            argument, problem, remedy = json.loads(refusal)
            raise AttachError(argument, f"rank {rank}: {problem}" if rank else problem, remedy)
