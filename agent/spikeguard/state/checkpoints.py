"""Where full-state checkpoints lie, which of them are whole, and which may go; last, those of which
the job itself writes model and optimizer, with functions of its own.

`PATH/checkpoint-00000100-0f3a9c21.0/{.spikeguard, .metadata, __0_0.distcp, ..., manifest.json}`:
our marker, DCP's files (`dcp_files`), then rank 0's manifest, once every rank has written. The
manifest lists the checksums of every file; a folder without one is no checkpoint.
Only rank 0 writes manifests and removes folders. Never removed to make room: what the server
protects, the newest, and of those whose tensors are whole the newest, the newest that
`healthy_after` steps have been built on, and the next that will be: so there always is one that a
spike seen today does not reach.
Reading unpickles: a checkpoint is trusted like the code of the job.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from spikeguard.errors import AttachError
from spikeguard.faults import Faults, log
from spikeguard.ranks.rank_group import World, all_agree
from spikeguard.state import folders
from spikeguard.state.folders import MARKER, FileSums, beside_the_loop, damage, sums_of, sync_folder
from spikeguard.state.lineage import NAME, Target, Tree
from spikeguard.state.replicated_parts import BoxOf, divided, host_copy
from spikeguard.state.snapshots import Staged
from spikeguard_protocol import from_json, to_json

MANIFEST = "manifest.json"
FORMAT = 6  # one of another is not read: a resume says so, and begins nothing
MOST_PROTECTED = 5  # kept beyond `keep` while the server asks for it
ABANDONED = ".abandoned"  # in a checkpoint that a rollback gave up; written to when it may not go
ABANDONED_KEPT_S = 12 * 3600.0  # after the incident: who undoes a rollback in the morning finds it
SWEEP_AFTER_S = 3600.0  # without a write; no checkpoint pauses so long between two of its ranks


@dataclass(frozen=True, slots=True)
class Manifest:
    """What rank 0 says of a checkpoint; `files`: empty where a framework's were not read yet."""

    target: Target
    world_size: int
    files: FileSums


class CheckpointDirectory:
    """Checkpoints in `path`, one every `every` steps (0: only on demand), the newest `keep`.

    `healthy_after`: steps without a spike after which the server holds one for healthy; a spike
    casts doubt on all that are younger. The newest that old, and the one that will be it next,
    stay beyond `keep`. 0: they do not.
    `background`: written while the loop trains on, from a copy in host memory; one that is due
    before the last is written is left out. False: the loop waits for each.
    """

    names = NAME  # of folders that are checkpoints
    on_demand = True  # whether the agent writes them, or a framework does
    feed: Any = None  # what counts the data where a framework owns its iterator; None: as always
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
        for name, steps in (("every", every), ("healthy_after", healthy_after)):
            if steps < 0:
                problem = f"{name} is {steps}"
                raise AttachError("checkpoints", problem, "Give steps, or 0 for none")
        if keep < 1:
            raise AttachError("checkpoints", f"keep is {keep}", "Keep at least 1")

    def targets(self) -> list[Target]:
        """Every complete checkpoint, oldest step first."""
        found = [read_manifest(folder) for folder in self._folders()]
        return sorted((t for t in found if t is not None), key=lambda t: (t.step, t.name))

    def unreadable(self) -> list[str]:
        """Names of those whose manifest is there and damaged, each with what is wrong."""
        problems = []
        for folder in self._folders():
            try:
                open_manifest(folder)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(f"{folder.name}: its {MANIFEST} cannot be used: {error}")
        return problems

    def _folders(self) -> list[Path]:
        found = sorted(self.path.glob("checkpoint-*"))
        return [folder for folder in found if self.names.fullmatch(folder.name)]

    def find(self, name: str) -> Target | None:
        """The complete checkpoint of that name, if it is still there."""
        return read_manifest(self.folder(name)) if self.names.fullmatch(name) else None

    def write_state(self, name: str, rank: int, tree: Tree) -> None:
        """This rank's part, where `writes_itself`; raise whatever goes wrong."""
        raise NotImplementedError

    def folder(self, name: str) -> Path:
        """Where the checkpoint of that name lies."""
        return self.path / name

    def write_manifest(self, target: Target, world_size: int, files: FileSums) -> None:
        """Make the checkpoint complete; rank 0, once every rank has its file."""
        seal_manifest(self.path / target.name, target, world_size, files)
        sync_folder(self.path)

    def complete(self, target: Target, world_size: int) -> None:
        """The same for files that others wrote, which are read for their checksums; OSError."""
        folder = self.path / target.name
        self.write_manifest(target, world_size, sums_of(folder, but=NOT_SUMMED))

    def check(self, name: str, part: int = 0, parts: int = 1) -> None:
        """Read the files again; raise OSError or ValueError, naming what is not as it was written.

        `part` of `parts`: this rank's share, where as many ranks call it.
        """
        folder = self.folder(name)
        problem = damage(folder, open_manifest(folder).files, part, parts)
        if problem is not None:
            raise ValueError(f"{name} is damaged: {problem}")

    def load(self, name: str, rank: int, world_size: int, box_of: BoxOf) -> Tree:
        """This rank's state on the host; raise OSError or ValueError if it cannot be read.

        `box_of`: where this rank's parts lie, for a checkpoint of another number of ranks.
        """
        from spikeguard.state import dcp_files  # DCP takes a moment to import

        saved, folder = open_manifest(self.folder(name)).world_size, self.folder(name)
        if saved == world_size:
            return dcp_files.load(folder, rank)
        return dcp_files.load_resharded(folder, rank, world_size, saved, box_of)

    def remove(self, name: str) -> bool:
        """Delete one that we wrote: at once it is none any more, the rest goes beside the loop."""
        return folders.remove_beside(self.path / name, self.names, first=MANIFEST)

    def superfluous(
        self, abandoned: Collection[str], protected: frozenset[str], step: int
    ) -> list[str]:
        """Names to remove at `step`: the oldest beyond `keep`, and abandoned ones in the end.

        An abandoned one is kept while the server protects anything, as it does during an incident,
        and for `ABANDONED_KEPT_S` after that.
        """
        live = [target for target in self.targets() if target.name not in abandoned]
        over = [n for n in abandoned if self._kept_s(n, bool(protected)) >= ABANDONED_KEPT_S]
        old = live[: -self.keep]
        whole = [target for target in live if target.damage is None]
        kept = [*self.needed(whole, old, protected, step), *whole[-1:]]
        return sorted(over) + [target.name for target in old if target not in kept]

    def needed(
        self, whole: Sequence[Target], old: Sequence[Target], protected: frozenset[str], step: int
    ) -> list[Target]:
        """What a rollback may need: of `old` the protected, and of `whole` the newest that
        `healthy_after` steps have been built on, and the next that will be."""
        spared = [target for target in old if target.name in protected][-MOST_PROTECTED:]
        stand = [target for target in whole if step - target.step >= self.healthy_after]
        young = [target for target in whole if step - target.step < self.healthy_after]
        return [*spared, *stand[-1:], *young[:1]]

    def _kept_s(self, name: str, incident: bool) -> float:
        """Seconds since an abandoned one could have gone; in a file, since attempts are short."""
        note = self.path / name / ABANDONED
        if incident or not note.exists():
            note.touch()
            return 0.0
        return time.time() - note.stat().st_mtime

    def sweep(self) -> None:
        """Remove what a crash left without a manifest; at start, rank 0 only.

        A folder that was written to lately may be another live attempt's, still being saved.
        """
        for folder in self._folders():
            if not (folder / MANIFEST).exists() and _age_s(folder) > SWEEP_AFTER_S:
                folders.remove(folder, self.names)


NOT_SUMMED = (MANIFEST, f".{MANIFEST}", MARKER, ABANDONED)


def seal_manifest(folder: Path, target: Target, world_size: int, files: FileSums) -> None:
    """Write it whole or not at all, with a checksum of its own; raise OSError."""
    plain = {"format": FORMAT, "manifest": to_json(Manifest(target, world_size, files))}
    temporary = folder / f".{MANIFEST}"
    with temporary.open("w") as file:
        json.dump({**plain, "crc32": _crc(plain)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST)
    sync_folder(folder)


def open_manifest(folder: Path) -> Manifest:
    """That of a checkpoint; raise OSError, FileNotFoundError for none, or ValueError."""
    try:
        plain = json.loads((folder / MANIFEST).read_bytes())
        if plain["format"] != FORMAT:
            raise ValueError(
                f"{folder.name} has format {plain['format']} and this release reads {FORMAT}: "
                "resume with the release that saved it"
            )
        if plain.pop("crc32", None) != _crc(plain):
            raise ValueError("it has changed since it was written")
        manifest: Manifest = from_json(Manifest, plain["manifest"])
        return replace(manifest, target=replace(manifest.target, name=folder.name))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no manifest of ours: {type(error).__name__}") from error


def read_manifest(folder: Path) -> Target | None:
    """None for a folder that holds no complete checkpoint."""
    try:
        return open_manifest(folder).target
    except (OSError, ValueError):
        return None


def _crc(plain: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def _age_s(folder: Path) -> float:
    """Seconds since anything in `folder` was written; 0.0 for one that vanished meanwhile."""
    try:
        newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return 0.0
    return time.time() - newest


# ---- of which the job itself writes model and optimizer ----------------------------------------


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
        theirs = {key: value for key, value in tree.items() if key not in THEIRS}
        own = host_copy(divided(theirs, lambda *_: False)[0])
        with (folder / _rank_file(rank)).open("wb") as file:
            torch.save(own, file)
            file.flush()
            os.fsync(file.fileno())

    def load(self, name: str, rank: int, world_size: int, box_of: BoxOf) -> Tree:
        """The agent's part, on the host; the job's follows with `put_back`."""
        del box_of  # what the job's own functions read is the job's
        saved = open_manifest(self.folder(name)).world_size
        if saved != world_size:
            raise ValueError(f"{name} was saved by {saved} ranks; this job has {world_size}")
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


LET_GO_S = 5.0  # for a thread that has nothing left to do


class Saves:
    """The one checkpoint that may be on its way to disk while the loop trains on.

    The state is copied to host memory (`snapshots`), or lies there already as the snapshot of the
    same step; a thread writes it. What the job wrote itself a thread reads for its checksums.
    One in flight on all ranks: whether another may begin is voted on, since ranks finish apart.
    It counts as a checkpoint once every rank has written, when rank 0 adds the manifest; a process
    that dies before leaves a folder that is none, and the earlier checkpoints untouched.
    """

    def __init__(self, world: World, directory: CheckpointDirectory, faults: Faults) -> None:
        self._world, self.directory, self._faults = world, directory, faults
        self._staged: Staged | None = None  # held until it is written
        self._target: Target | None = None
        self._written: Future[Any] | None = None
        self._thread: threading.Thread | None = None  # of DCP's, that wrote last

    @property
    def busy(self) -> bool:
        """Whether this rank still writes."""
        return self._written is not None and not self._written.done()

    @property
    def under_way(self) -> bool:
        """Whether one was begun that nobody took note of yet."""
        return self._written is not None

    def begin(self, target: Target, stage: Callable[[], Staged]) -> bool:
        """Have what `stage` returns written; False if a rank cannot, or writes still. Collective.

        `stage` copies the state, from objects of the loop's that may fail: that is this rank's no.
        """
        staged = None
        if self._written is not None:
            log.info(
                "no checkpoint at this step: %s is still being written",
                self._target and self._target.name,
            )
        else:
            with self._faults.shield("checkpoint"):
                staged = stage()
        if not all_agree(self._world, staged is not None) or staged is None:
            if staged is not None:
                staged.release()
            return False
        self._target, self._written, self._staged = target, Future(), staged
        with self._faults.shield("checkpoint"):
            try:
                self._write(target, staged)
            except BaseException as error:  # DCP's own is no Exception
                self._written.set_exception(error)
                raise
        return True

    def _write(self, target: Target, staged: Staged) -> None:
        from spikeguard.state.dcp_files import save

        def complete(sums: FileSums, damage: str | None) -> None:
            self._target = replace(target, damage=damage)
            self.directory.write_manifest(self._target, self._world.size, sums)

        def ended(_: Future[Any]) -> None:
            self._thread = threading.current_thread()

        folder = self.directory.folder(target.name)
        self._written = save(folder, self._world.rank, staged, self._world.ties.saving, complete)
        self._written.add_done_callback(ended)

    def follow(self, target: Target, complete: Callable[[], None]) -> None:
        """The job has written `target` itself: have its files read by `complete`, in a thread."""
        self._target, self._written = target, beside_the_loop(complete)

    def finished(self, wait_s: float = 0.0) -> Target | None:
        """The checkpoint that is whole since this was last asked; None if none is.

        With `wait_s` its thread has ended too: until then it holds the group that it wrote on,
        which would outlive the attempt.
        """
        if wait_s:
            self._wait(wait_s)
        written, target, staged = self._written, self._target, self._staged
        if written is None or not written.done():
            return None
        self._target = self._written = self._staged = None
        if staged is not None:
            staged.release()
        problem = written.exception()
        if problem is not None:
            from spikeguard.state.dcp_files import cause_of

            self._faults.note("checkpoint", f"checkpoint: {cause_of(problem)}")
        return target if problem is None else None

    def _wait(self, wait_s: float) -> None:
        if self._written is not None:
            concurrent.futures.wait([self._written], wait_s)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and not self.busy:
            thread.join(min(wait_s, LET_GO_S))
