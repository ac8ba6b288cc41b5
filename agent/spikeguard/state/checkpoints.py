"""Where full-state checkpoints lie, which of them are whole, and which may go.

`PATH/checkpoint-00000100-0f3a9c21.0/{.metadata, __0_0.distcp, ..., manifest.json}`: DCP's files
(`dcp_files`), then rank 0's manifest, once every rank has written: a folder without a manifest is
no checkpoint.
Law: only rank 0 writes manifests and removes folders. Never removed to make room: what the server
protects, the newest, the newest that `healthy_after` steps have been built on, and the next that
will be: so there always is one that a spike seen today does not reach.
Reading unpickles: a checkpoint is trusted like the code of the job.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from spikeguard.errors import AttachError
from spikeguard.state.lineage import plain_lineage, read_lineage
from spikeguard.state.replicated_parts import Boxes, Ranks
from spikeguard.state.targets import Target, Tree
from spikeguard_protocol import Medium
from spikeguard_protocol.plain_files import read_plain

MANIFEST = "manifest.json"
FORMAT = 3  # one of another is listed and not read: a resume says so, and begins nothing
MOST_PROTECTED = 5  # kept beyond `keep` while the server asks for it


class CheckpointDirectory:
    """Checkpoints in `path`, one every `every` steps (0: only on demand), the newest `keep`.

    `healthy_after`: steps without a spike after which the server holds one for healthy; a spike
    casts doubt on all that are younger. The newest that old, and the one that will be it next,
    stay beyond `keep`. 0: they do not.
    `background`: written while the loop trains on, from a copy in host memory; one that is due
    before the last is written is left out. False: the loop waits for each.
    """

    on_demand = True  # whether the agent writes and sweeps them, or a framework does
    writes_itself = False  # whether `write_state` writes them, in the loop, instead of DCP

    def __init__(
        self,
        path: str | PathLike[str],
        every: int = 100,
        keep: int = 5,
        healthy_after: int = 100,
        background: bool = True,
    ) -> None:
        self.path = Path(path)
        self.every, self.keep, self.healthy_after = every, keep, healthy_after
        self.background = background
        if every < 0:
            raise AttachError("checkpoints", f"every is {every}", "Give steps, or 0 for none")
        if healthy_after < 0:
            problem = f"healthy_after is {healthy_after}"
            raise AttachError("checkpoints", problem, "Give steps, or 0 for none")
        if keep < 1:
            raise AttachError("checkpoints", f"keep is {keep}", "Keep at least 1")

    def targets(self) -> list[Target]:
        """Every complete checkpoint, oldest step first."""
        found = [read_manifest(folder) for folder in self.path.glob("checkpoint-*")]
        return sorted((t for t in found if t is not None), key=lambda t: (t.step, t.name))

    def find(self, name: str) -> Target | None:
        """The complete checkpoint of that name, if it is still there."""
        return read_manifest(self.path / name)

    def write_state(self, name: str, rank: int, tree: Tree) -> None:
        """This rank's part, where `writes_itself`; raise whatever goes wrong."""
        raise NotImplementedError(
            f"{type(self).__name__} writes through DCP: {name}, {rank}, {tree}"
        )

    def folder(self, name: str) -> Path:
        """Where the checkpoint of that name lies."""
        return self.path / name

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

    def load(self, name: str, rank: int, world_size: int, boxes: Boxes | None = None) -> Tree:
        """This rank's state on the host; raise OSError or ValueError if it cannot be read.

        `boxes`: where this rank's parts lie, for a checkpoint of another number of ranks.
        """
        saved = self.saved_by(name)
        if saved == world_size or boxes is None:
            from spikeguard.state.dcp_files import load  # DCP takes a moment to import

            self.check_ranks(name, world_size)
            return load(self.folder(name), rank)
        from spikeguard.state.resharding import load_resharded

        return load_resharded(self.folder(name), Ranks(rank, world_size, saved), boxes)

    def saved_by(self, name: str) -> int:
        """How many ranks saved it; raise ValueError for one of another format."""
        plain = json.loads(read_plain(self.folder(name) / MANIFEST))
        if plain["format"] != FORMAT:
            raise ValueError(
                f"{name} has format {plain['format']} and this release reads {FORMAT}: resume with "
                "the release that saved it"
            )
        return int(plain["world_size"])

    def check_ranks(self, name: str, world_size: int) -> None:
        """Raise ValueError where another number of ranks saved it."""
        saved = self.saved_by(name)
        if saved != world_size:
            raise ValueError(f"{name} was saved by {saved} ranks; this job has {world_size}")

    def remove(self, name: str) -> None:
        """Delete it: the manifest now, so that it is none any more, the rest beside the loop."""
        folder = self.path / name
        (folder / MANIFEST).unlink(missing_ok=True)
        threading.Thread(target=shutil.rmtree, args=(folder, True), daemon=True).start()

    def superfluous(
        self, abandoned: Iterable[str], protected: frozenset[str], step: int
    ) -> list[str]:
        """Names to remove at `step`: abandoned ones, then the oldest beyond `keep`."""
        gone = set(abandoned)
        live = [target for target in self.targets() if target.name not in gone]
        old = [target.name for target in live[: -self.keep]]
        spared = [name for name in old if name in protected][-MOST_PROTECTED:]
        stand = [target.name for target in live if step - target.step >= self.healthy_after]
        young = [target.name for target in live if step - target.step < self.healthy_after]
        kept = {*spared, *stand[-1:], *young[:1]}
        return sorted(gone) + [name for name in old if name not in kept]


def _manifest(target: Target, world_size: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": target.name,
        "step": target.step,
        "position": target.position,
        "lineage": plain_lineage(target.lineage),
        "world_size": world_size,
    }


def read_manifest(folder: Path) -> Target | None:
    """None for a folder that holds no complete checkpoint."""
    try:
        plain = json.loads(read_plain(folder / MANIFEST))
        lineage = read_lineage(plain["lineage"])
        if lineage[-1].step != plain["step"]:
            return None
        return Target(folder.name, plain["position"], lineage, Medium.DISK)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
