"""Ranks of a test: forked processes that meet over gloo and play scenes, one after another."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .forks import FORKS, ended, started

Scene = Callable[[Path, int, int], Any]  # (a folder of its own, rank, ranks) -> what JSON can hold
Told = list[dict[str, Any]]  # by every rank, of every scene


def play(folder: Path, size: int, scenes: Mapping[str, Scene], **environment: str) -> Told:
    """What each of `size` ranks returned from every scene, by the scene's name."""
    assert ended(begin(folder, size, scenes, **environment)) == [0] * size
    return [{name: told_by(folder, name, rank) for name in scenes} for rank in range(size)]


def begin(
    folder: Path, size: int, scenes: Mapping[str, Scene], **environment: str
) -> list[ForkServerProcess]:
    """The ranks, which meet in a file of `folder`; `environment` is added to theirs."""
    folder.mkdir(exist_ok=True)
    meeting = f"file://{folder}/meeting-{len(list(folder.iterdir()))}"
    given = (size, folder, meeting, dict(scenes), environment)
    return started([FORKS.Process(target=_play, args=(rank, *given)) for rank in range(size)])


def named(*scenes: Scene) -> dict[str, Scene]:
    """By the names of the functions."""
    return {scene.__name__: scene for scene in scenes}


def told_by(folder: Path, name: str, rank: int) -> Any:
    return json.loads((folder / f"{name}-{rank}.json").read_text())


def _play(
    rank: int,
    size: int,
    folder: Path,
    meeting: str,
    scenes: Mapping[str, Scene],
    environment: Mapping[str, str],
) -> None:
    local = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(value) for name, value in local.items()} | dict(environment)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    for name, scene in scenes.items():
        told = scene(folder / name, rank, size)
        (folder / f"{name}-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def here(tensor: Tensor) -> Tensor:
    """A copy of the part that lies on this rank."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def own(model: nn.Module) -> list[Tensor]:
    """This rank's parts of the parameters."""
    return [here(parameter) for parameter in model.parameters()]


def bits_of(model: nn.Module, optimizers: Sequence[Any]) -> list[Tensor]:
    """This rank's parts of weights, moments, momenta and counters."""
    states = [state for each in optimizers for state in each.state.values()]
    held = [value for state in states for value in state.values()]
    return [*own(model), *(here(each) for each in held if isinstance(each, Tensor))]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """To the bit."""
    return len(one) == len(other) and all(map(torch.equal, one, other))
