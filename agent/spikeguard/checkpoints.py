"""Full-state checkpoints that the agent writes: one file a rank and rank 0's manifest.

`PATH/checkpoint-00000100-0f3a9c21.0/{rank-00000.pt, ..., manifest.json}`. A file appears whole or
not at all (written beside, fsync, renamed), the manifest last, after every rank has its file: a
folder without a manifest is no checkpoint.
Law: only rank 0 writes manifests and removes folders; what is protected, and the newest, is never
removed to make room. Cost: the loop waits while its state is written (bytes over the disk's rate).
Reading unpickles: a checkpoint is trusted like the code of the job.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from spikeguard.errors import AttachError
from spikeguard.lineage import plain_lineage, read_lineage
from spikeguard.targets import Target, Tree
from spikeguard_protocol import Medium, ProtocolError

MANIFEST = "manifest.json"
FORMAT = 2
MOST_PROTECTED = 5  # kept beyond `keep` while the server asks for it


class CheckpointDirectory:
    """Checkpoints in `path`, one every `every` steps (0: only on demand), the newest `keep`."""

    on_demand = True  # whether the agent writes and sweeps them, or a framework does

    def __init__(self, path: str | PathLike[str], every: int = 100, keep: int = 5) -> None:
        self.path = Path(path)
        self.every = every
        self.keep = keep
        if every < 0:
            raise AttachError("checkpoints", f"every is {every}", "Give steps, or 0 for none")
        if keep < 1:
            raise AttachError("checkpoints", f"keep is {keep}", "Keep at least 1")

    def targets(self) -> list[Target]:
        """Every complete checkpoint, oldest step first."""
        found = [_read_manifest(folder) for folder in self.path.glob("checkpoint-*")]
        return sorted((t for t in found if t is not None), key=lambda t: (t.step, t.name))

    def find(self, name: str) -> Target | None:
        """The complete checkpoint of that name, if it is still there."""
        return _read_manifest(self.path / name)

    def write_state(self, name: str, rank: int, tree: Tree) -> None:
        """This rank's file; raise OSError if it cannot be written."""
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{_rank_file(rank)}"
        with temporary.open("wb") as file:
            torch.save(tree, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / _rank_file(rank))

    def write_manifest(self, target: Target, world_size: int) -> None:
        """Make the checkpoint complete; rank 0, once every rank has its file."""
        folder = self.path / target.name
        temporary = folder / f".{MANIFEST}"
        with temporary.open("w") as file:
            json.dump(_manifest(target, world_size), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / MANIFEST)
        _sync(folder)
        _sync(self.path)

    def load(self, name: str, rank: int, world_size: int) -> Tree:
        """This rank's state on the host; raise OSError or ValueError if it cannot be read."""
        folder = self.path / name
        saved = json.loads((folder / MANIFEST).read_text())["world_size"]
        if saved != world_size:
            raise ValueError(f"{name} was saved by {saved} ranks; this job has {world_size}")
        tree: Tree = torch.load(folder / _rank_file(rank), map_location="cpu", weights_only=False)
        return tree

    def remove(self, name: str) -> None:
        """Delete it: first the manifest, so that a crash half-way leaves no checkpoint."""
        folder = self.path / name
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def superfluous(self, abandoned: Iterable[str], protected: frozenset[str]) -> list[str]:
        """Names to remove now: abandoned ones, then the oldest beyond `keep`."""
        gone = set(abandoned)
        live = [t.name for t in self.targets() if t.name not in gone]
        old = live[: -self.keep]
        spared = [name for name in old if name in protected][-MOST_PROTECTED:]
        return sorted(gone) + [name for name in old if name not in spared]


def _rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def _manifest(target: Target, world_size: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": target.name,
        "step": target.step,
        "position": target.position,
        "lineage": plain_lineage(target.lineage),
        "world_size": world_size,
    }


def _read_manifest(folder: Path) -> Target | None:
    """None for a folder that holds no complete checkpoint of a known format."""
    try:
        plain = json.loads((folder / MANIFEST).read_text())
        if plain["format"] != FORMAT:
            return None
        lineage = read_lineage(plain["lineage"])
        if lineage[-1].step != plain["step"]:
            return None
        return Target(folder.name, plain["position"], lineage, Medium.DISK)
    except (OSError, ValueError, KeyError, TypeError, IndexError, ProtocolError):
        return None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
