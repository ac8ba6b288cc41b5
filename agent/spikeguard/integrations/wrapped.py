"""Attaching to a model that a framework has wrapped for several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

import spikeguard
from spikeguard.ranks.layout import refuse_flat_shards, says_replicated
from spikeguard.registry import make_way


def refuse_found(arguments: Mapping[str, Any], *names: str) -> None:
    """Raise `AttachError` for what is given and the framework says already."""
    for name in names:
        if name in arguments:
            raise spikeguard.AttachError(
                name, "the integration takes it from the framework", "Leave it out"
            )


def attach_within(
    wrapped: torch.nn.Module,
    model: torch.nn.Module,
    optimizer: Any,
    scaler: Any = None,
    **arguments: Any,
) -> spikeguard.Guard:
    """A guard of `model`, which lies in `wrapped`; finishes one that an interrupted loop left.

    `scaler`: the framework's GradScaler, where it has one. Only the wrapper says how the ranks hold
    the model. Raises `AttachError` as `attach`, and for FSDP1, which could not be told from a plain
    model once it is unwrapped.
    """
    refuse_flat_shards(wrapped)
    make_way(model)
    ranks: spikeguard.Ranks = arguments.pop("ranks", None) or spikeguard.Ranks()
    if ranks.replicated is None:
        ranks = replace(ranks, replicated=says_replicated([wrapped]))
    state = [*([] if scaler is None else [scaler]), *arguments.pop("state", ())]
    return spikeguard.attach(model, optimizer, ranks=ranks, state=state, **arguments)


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """`owner.name(...)` becomes `around(the old one, ...)`."""
    inner = getattr(owner, name)
    setattr(owner, name, lambda *args, **named: around(inner, *args, **named))
