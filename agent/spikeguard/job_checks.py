"""The job as `attach()` finds it: looked at once, refused on all ranks where a guard would spoil
it, and described for the record. Nothing is changed, and no state is created or moved.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from spikeguard.commands.orders import limits_told
from spikeguard.errors import AttachError
from spikeguard.faults import log
from spikeguard.loop.capabilities import RESTORE_ALL, no, unknown
from spikeguard.optim.optimizers import kinds_of, trained_by
from spikeguard.ranks.layout import Job, find_topology, refuse_flat_shards
from spikeguard.ranks.model_parts import (
    Modules,
    named_parameters,
    parameters,
    unrestored_extra_state,
)
from spikeguard.ranks.rank_group import (
    World,
    all_gather,
    few,
    listed,
    raise_first,
    refusal_of,
    verb,
)
from spikeguard.ranks.ranks import Ranks
from spikeguard.settings import Settings
from spikeguard.state.checkpoints import CheckpointDirectory
from spikeguard_protocol import Ability
from spikeguard_protocol.identity import MAX_TAGS, TAG_PATTERN, TAGS_FACT

TAGS_VARIABLE = "SPIKEGUARD_TAGS"


def describe(parts: Modules, optimizers: Sequence[Optimizer], stated: Ranks, world: World) -> Job:
    """What `attach` has been given; raises `AttachError` on all ranks where one must refuse.

    `stated`: what the user says of the ranks. Collective.
    """
    refusal = refusal_of(_check_optimizers, parts, optimizers)
    ranks = all_gather(world, (refusal, "" if refusal else _unsaved_in(parts, optimizers)))
    raise_first([refused for refused, _ in ranks])
    topology = find_topology(parts, stated, world)
    unsaved = next((unsaved for _, unsaved in ranks if unsaved), "")
    return Job(tuple(parts), tuple(optimizers), topology, unsaved)


# ---- an optimizer for each that trains ---------------------------------------------------------


def _check_optimizers(parts: Modules, optimizers: Sequence[Optimizer]) -> None:
    """Raise `AttachError` where `optimizers` do not make every update of `parts`, each once."""
    for part in parts:
        refuse_flat_shards(part)
    owned = Counter(map(id, trained_by(optimizers)))
    training = [(n, p) for n, p in named_parameters(parts) if p.requires_grad]
    loose = [name for name, p in training if id(p) not in owned]
    if loose:
        raise AttachError(
            "optimizer",
            f"{listed(loose)} of the model {verb(loose, 'trains', 'train')} and "
            f"{verb(loose, 'belongs', 'belong')} to another optimizer or to none: a bad update "
            "would be kept from one part of the model and made in the other",
            "Give all optimizers that train the model, in a list, or set requires_grad=False on "
            "what does not train",
        )
    twice = [name for name, p in named_parameters(parts) if owned[id(p)] > 1]
    if twice:
        raise AttachError(
            "optimizer",
            f"{listed(twice)} {verb(twice, 'belongs', 'belong')} to several of the optimizers: "
            "of which one an update is, and what it is put back to, would not be known",
            "Give each parameter to one optimizer",
        )
    backward = [name for name, p in training if hasattr(p, "_in_backward_optimizers")]
    if backward:
        raise AttachError(
            "optimizer",
            f"{listed(backward)} {verb(backward, 'has', 'have')} an optimizer that steps within "
            "the backward pass, when the norm of all gradients is not known yet",
            "Step the optimizers after the backward pass",
        )


def _unsaved_in(parts: Modules, optimizers: Sequence[Optimizer]) -> str:
    """Why the state of one of them cannot be saved and put back; empty if it can."""
    problems = (*map(_unsaved, optimizers), unrestored_extra_state(parts))
    return next(filter(None, problems), "")


def _unsaved(optimizer: Optimizer) -> str:
    """Why the optimizer's state cannot be saved; empty if it can.

    Torch's own way is known to work. Another's `state_dict` is called, as each snapshot will;
    `load_state_dict` is not, since it may change live objects. The first rollback shows whether it
    works.
    """
    kind = type(optimizer)
    if kind.state_dict is Optimizer.state_dict:
        return ""
    try:
        saved = optimizer.state_dict()
    except Exception as error:
        return f"{kind.__name__}.state_dict() raises {error!r:.200}"
    groups = saved.get("param_groups") if isinstance(saved, dict) else None
    if not isinstance(groups, list) or len(groups) != len(optimizer.param_groups):
        return f"{kind.__name__}.state_dict() does not hold its parameter groups"
    if _has_tensor_keys(saved):  # a restart has other tensors
        return f"{kind.__name__}.state_dict() has tensors as keys, which no restart finds again"
    return ""


def _has_tensor_keys(saved: Any) -> bool:
    if isinstance(saved, dict):
        return any(isinstance(k, Tensor) or _has_tensor_keys(v) for k, v in saved.items())
    return isinstance(saved, list | tuple) and any(map(_has_tensor_keys, saved))


def check_saved(scheduler: Any, state: Sequence[Any]) -> None:
    """Raise `AttachError` for a schedule, or an entry of `state=`, whose `state_dict()` raises."""
    named = [("scheduler", scheduler)] if scheduler is not None else []
    for argument, given in (*named, *(("state", item) for item in state)):
        try:
            given.state_dict()
        except Exception as error:
            raise AttachError(
                argument,
                f"{type(given).__name__}.state_dict() raises {error!r:.200}",
                f"Fix it, or leave it out of {argument}= if the run can go back without it",
            ) from None


def check_checkpoints(job: Job, checkpoints: CheckpointDirectory | None) -> None:
    """Raise `AttachError` where checkpoints would be written that nobody can restore."""
    if job.unsaved and checkpoints is not None and not checkpoints.writes_itself:
        raise AttachError(
            "checkpoints",
            f"none could be restored, since {job.unsaved}",
            "Give UserCheckpoints(path, save, load) with the job's own functions, or leave it out",
        )


# ---- what is told of it ----


def facts_of(job: Job, drops: bool, settings: Settings, micro: int, numbers: int) -> dict[str, str]:
    """As text. `drops`: updates can be left out; `micro`: batches a step; `numbers`: parameters of
    the whole model."""
    group = job.optimizers[0].param_groups[0]
    words = ("lr", "betas", "eps", "weight_decay")
    named: dict[str, str] = {word: str(group[word]) for word in words if word in group}
    held = parameters(job.parts)
    return {
        **named,
        "optimizer": kinds_of(job.optimizers),
        "parameters": str(numbers),
        "dtype": str(held[0].dtype).removeprefix("torch."),
        "device": held[0].device.type,
        "micro_batches": str(micro),
        "update_skipper": "drop" if drops else "report",
        "torch": torch.__version__,
        "host": os.uname().nodename,
        **limits_told(settings),
        **tags_told(os.environ),
    }


def tags_told(environment: Mapping[str, str]) -> dict[str, str]:
    """Tags that the job gives its run; what can be none is left out, and said once."""
    given = [tag.strip() for tag in environment.get(TAGS_VARIABLE, "").split(",") if tag.strip()]
    good = [tag for tag in dict.fromkeys(given) if TAG_PATTERN.fullmatch(tag)][:MAX_TAGS]
    if len(good) < len(given):
        log.warning(
            "%s: only %s is told as tags: at most %d, of 1 to 40 letters, digits and ._:=+/-",
            TAGS_VARIABLE, ", ".join(good) or "nothing", MAX_TAGS,
        )  # fmt: skip
    return {TAGS_FACT: ",".join(good)} if good else {}


# ---- state that neither a rollback nor a restart restores, as far as `attach()` sees it ----------
# Communication hooks of DDP and optimizers keep state outside their `state_dict()`: that is named.
# So are tensors in plain attributes of a module, which are in no checkpoint of torch's either:
# whether training changes them is not known.


REMEDY: Final = (
    "Give a schedule as attach(scheduler=...), what else it is in an object of attach(state=[...]) "
    "that saves and loads it. Nothing to do where training does not change it"
)
_OF_OPTIMIZERS: Final = frozenset(vars(torch.optim.SGD([torch.zeros(1)])))
Found = tuple[str, int, int]  # what a person calls it; ids of the object and of its owner


def restore_abilities(
    parts: Modules, optimizers: Sequence[Optimizer], scheduler: Any, given: Sequence[Any]
) -> tuple[Ability, ...]:
    """The row of the table; none where all goes back.

    `given`: the entries of `state=`. What one of them is, holds as an attribute, or reaches through
    its own methods counts as restored by it.
    """
    reached = [each for item in given for each in _reached_by(item)]
    covered = set(map(id, reached))
    found = (*_in_hooks(parts), *_in_attributes(optimizers))
    names = list(dict.fromkeys(name for name, *ids in found if covered.isdisjoint(ids)))
    if scheduler is None and not any(hasattr(each, "get_last_lr") for each in reached):
        # torch's schedules mark the step of their optimizer
        scheduled = [each for each in optimizers if hasattr(each.step, "_wrapped_by_lr_sched")]
        names += [f"the learning-rate schedule of {kinds_of(scheduled)}"] if scheduled else []
    tensors = dict.fromkeys(n for n, *ids in _in_modules(parts) if covered.isdisjoint(ids))
    doubt = f"{few([*tensors])} is not restored: make it a buffer if training changes it"
    if names:
        named = f"state that is not restored: {few(names)}"
        return (no(RESTORE_ALL, f"{named}; {doubt}" if tensors else named, REMEDY),)
    return (unknown(RESTORE_ALL, doubt),) if tensors else ()


def _reached_by(item: Any) -> Iterator[Any]:
    """What an entry of `state=` is, holds, or uses in its two methods."""
    yield item
    for held in getattr(item, "__dict__", {}).values():
        yield from (held, *(held if isinstance(held, list | tuple) else ()))
    for method in (item.state_dict, item.load_state_dict):
        with suppress(TypeError, ValueError):  # no function of Python's
            seen = inspect.getclosurevars(getattr(method, "__func__", method))
            yield from (*seen.nonlocals.values(), *seen.globals.values())


def _in_hooks(parts: Modules) -> Iterator[Found]:
    for wrapper in (part for part in parts if isinstance(part, DistributedDataParallel)):
        for _, state in getattr(wrapper, "_comm_hooks", ()):
            kind = type(state).__name__
            internal = state is None or isinstance(state, ProcessGroup) or kind.startswith("_")
            if not internal:
                yield f"{kind} of a DDP communication hook", id(state), id(wrapper)


def _in_attributes(optimizers: Sequence[Optimizer]) -> Iterator[Found]:
    """Of optimizers that are not torch's and save what torch's do."""
    trained = set(map(id, trained_by(optimizers)))
    for optimizer in optimizers:
        kind = type(optimizer)
        torchs = kind.__module__.startswith("torch.optim.")
        if torchs or kind.state_dict is not Optimizer.state_dict:
            continue
        for name, value in vars(optimizer).items():
            place = f"{kind.__name__}.{name}"
            if isinstance(value, Optimizer) and value.state is not optimizer.state:
                yield f"the state of {type(value).__name__} in {place}", id(value), id(optimizer)
            elif name not in _OF_OPTIMIZERS and _holds_numbers(value, trained):
                yield f"attribute {place}", id(value), id(optimizer)


def _in_modules(parts: Modules) -> Iterator[Found]:
    """Tensors, arrays and queues that are no parameter and no buffer."""
    kept = {id(t) for part in parts for t in (*part.parameters(), *part.buffers())}
    for module in (each for part in parts for each in part.modules()):
        if type(module).__module__.startswith("torch."):
            continue
        for name, value in vars(module).items():
            plain = isinstance(value, dict | list | tuple)  # its own parameters among them
            if not plain and _holds_numbers(value, kept):
                yield f"attribute {type(module).__name__}.{name}", id(value), id(module)


def _holds_numbers(value: Any, kept: set[int]) -> bool:
    """Whether it is, or holds, tensors other than those `kept`, or arrays; a queue may come to
    hold some."""
    if isinstance(value, dict | list | tuple):
        inside = value.values() if isinstance(value, dict) else value
        return any(_holds_numbers(each, kept) for each in inside)
    numpy: Any = sys.modules.get("numpy")
    array = numpy is not None and isinstance(value, numpy.ndarray | numpy.random.Generator)
    tensor = isinstance(value, Tensor) and id(value) not in kept
    return array or tensor or isinstance(value, deque)
