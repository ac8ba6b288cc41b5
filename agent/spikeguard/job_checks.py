"""The job as `attach()` finds it: looked at once, refused on all ranks where a guard would spoil
it, and described for the record. Nothing is changed, and no state is created or moved.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from spikeguard.commands.orders import limits_told
from spikeguard.errors import AttachError
from spikeguard.faults import log
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
    listed,
    raise_first,
    refusal_of,
    verb,
)
from spikeguard.ranks.ranks import Ranks
from spikeguard.settings import Settings
from spikeguard.state.checkpoints import CheckpointDirectory
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
