"""Checkpoints of which the job itself writes model and optimizer, with functions of its own.

`PATH/checkpoint-.../{whatever save(folder) writes, rank-00000.pt, ..., manifest.json}`: beside it
lies what the agent has to take back too (scheduler, `state=`, random numbers, data position).
Law: the job's functions are called at a step boundary, on every rank, never beside the loop. What
they raise is a checkpoint that was not made, or a rollback that ends the attempt: since `load`
changes live weights, it is called only after every rank has voted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path

import torch

from spikeguard.errors import AttachError
from spikeguard.state.checkpoints import CheckpointDirectory
from spikeguard.state.host_copies import host_copy
from spikeguard.state.lineage import Tree
from spikeguard.state.replicated_parts import Boxes

THEIRS = ("model", "optimizer", "layouts", "attributes")


class UserCheckpoints(CheckpointDirectory):
    """`save(folder)` writes model and optimizer, `load(folder)` puts them back in place."""

    writes_itself = True

    def __init__(
        self,
        path: str | PathLike[str],
        save: Callable[[Path], object],
        load: Callable[[Path], object],
        every: int = 100,
        keep: int = 5,
        healthy_after: int = 100,
    ) -> None:
        super().__init__(path, every, keep, healthy_after, background=False)
        for name, function in (("save", save), ("load", load)):
            if not callable(function):
                problem = f"{name} is a {type(function).__name__}"
                raise AttachError("checkpoints", problem, "Give a function of the folder")
        self._save, self._load = save, load

    def write_state(self, name: str, rank: int, tree: Tree) -> None:
        """The job's part, then the agent's; raise whatever goes wrong."""
        folder = self.folder(name)
        _told(self._save, folder)
        own = host_copy({key: value for key, value in tree.items() if key not in THEIRS})
        temporary = folder / f".{_rank_file(rank)}"
        with temporary.open("wb") as file:
            torch.save(own, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / _rank_file(rank))

    def load(self, name: str, rank: int, world_size: int, boxes: Boxes | None = None) -> Tree:
        """The agent's part, on the host; the job's follows with `put_back`."""
        del boxes  # what the job's own functions read is the job's
        self.check_ranks(name, world_size)
        path = self.folder(name) / _rank_file(rank)
        tree: Tree = torch.load(path, map_location="cpu", weights_only=False)
        return tree

    def put_back(self, name: str) -> None:
        """Have the job restore model and optimizer; half done if it raises."""
        _told(self._load, self.folder(name))


def _told(function: Callable[[Path], object], folder: Path) -> None:
    """Call the job's; DCP's own failure is no Exception and would pass every guard."""
    try:
        function(folder)
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"{error}"[:500]) from error


def _rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"
