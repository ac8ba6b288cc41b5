"""Loops whose iterator belongs to a framework: positions, data left out, going back by a restart.

A rollback is written into the journal on every rank's yes, then the attempt ends on all ranks with
`EXIT_ROLL_BACK`. The next start sets aside what was abandoned, resumes from the target and leaves
the batches out. What is left out is fixed while an attempt lives, so a framework may read ahead.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor

import spikeguard
from spikeguard.commands.journal import Journal
from spikeguard.data.feed import DataFeed
from spikeguard.data.reading import capture_start, restore_start, tell_epoch
from spikeguard.errors import ResumeError, RollbackByRestart
from spikeguard.faults import log
from spikeguard.guard import Guard, guard_of
from spikeguard.loop.attempt import log_resumed
from spikeguard.optim.lr_scale import LrScale
from spikeguard.ranks.layout import refuse_flat_shards, says_replicated
from spikeguard.ranks.rank_group import broadcast, first_problem, join_world, leave_world
from spikeguard.settings import read_connection
from spikeguard.state.checkpoints import MANIFEST, CheckpointDirectory, read_manifest
from spikeguard.state.lineage import Skips, Target, Tree, is_abandoned
from spikeguard.state.random_numbers import (
    Generators,
    generators_in,
    put_back,
    random_state,
    restore_random_state,
    states_of,
)
from spikeguard.state.replicated_parts import BoxOf
from spikeguard_protocol import Medium, RunId, from_json, to_json


class FrameworkFeed(DataFeed):
    """Counts the positions that a framework's own iterator hands to its loop."""

    restarts = True

    def __init__(self, skips: Skips, micro_batches: int) -> None:
        super().__init__(skips, micro_batches)
        self.in_use = True
        self.begun: Tree | None = None  # what the pass under way began with
        self.generators: Generators = {}  # of the loader
        self.resumed: Tree | None = None  # what `capture` returned, until the first pass

    @property
    def unread(self) -> int:
        """The next position; what the framework has read beyond it nobody knows."""
        return self.position

    def capture(self) -> Tree:
        """As for any loop, with what the order of the pass was drawn from."""
        return {**super().capture(), "begun": self.begun, "drawn": states_of(self.generators)}

    def begin_pass(self, loader: Iterable[Any], inside: bool) -> None:
        """Have `loader` draw the order that it drew before a restart; `inside`: of a pass that was
        begun then."""
        resumed, self.resumed = self.resumed or {}, None
        with self.faults.shield("data"):
            self.generators = generators_in(loader)
            self.begun = resumed.get("begun") if inside else None
            if self.begun is not None:
                restore_start(loader, self.generators, self.begun)
            else:
                put_back(self.generators, resumed.get("drawn", {}))
                self.begun = capture_start(loader, self.generators)

    def finish_step(self) -> int:
        """The framework made a step of the next position that is not left out."""
        self.steps += 1
        done = self.skips.end_of_skip(self.position)
        self.position = done + 1
        return done


class LeavingOut:
    """A framework's loader without what was skipped, begun where the resumed checkpoint stands.

    Several passes are one long data order, where the loader has a length; a step that a framework
    makes of what is left at the end of a pass is a position too. Samplers are told the pass that is
    counted here: a framework counts epochs by its own steps, which a skip leaves behind. What is
    read past draws no random numbers of the job. `feed` is asked at the first item: the guard
    exists by then.
    """

    def __init__(self, loader: Iterable[Any], feed: Callable[[], FrameworkFeed]) -> None:
        self._loader, self._feed = loader, feed
        self._pass: int | None = None  # the one under way
        self._end: int | None = None  # position behind it, once its last item was read

    def __iter__(self) -> Iterator[Any]:
        feed = self._feed()
        micro, length = feed.micro_batches, self._length()
        each = -(-length // micro) if length else 0  # positions of a pass
        begin, past = self._next_pass(feed, each)
        numbers = random_state()
        feed.begin_pass(self._loader, past > 0)
        for item, batch in enumerate(self._loader):
            position = begin + item // micro
            if item + 1 == length:
                self._end = begin + each
            if item < past or feed.skips.leaves_out(position):
                continue
            if past:
                restore_random_state(numbers)
                past = 0
            if feed.items is not None:
                feed.items.add(position, batch)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # TypeError where it has none, as it should

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def prepared(self, by: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
        """What a framework makes of a loader that nobody has wrapped, each rank's part of it."""
        self._loader = by(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """The framework's own count; of use only where passes cannot be counted."""
        if not self._length():
            tell_epoch(self._loader, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: where the data stands lies beside the checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing, for the same reason."""

    def _next_pass(self, feed: FrameworkFeed, each: int) -> tuple[int, int]:
        """The position at which it begins, and how many of its items were trained on before."""
        if self._pass is not None:
            self._pass += 1
            begin, past = feed.position if self._end is None else self._end, 0
        else:
            self._pass = feed.position // each if each else 0
            begin = self._pass * each
            past = (feed.position - begin) * feed.micro_batches
        self._end = None
        if each:
            tell_epoch(self._loader, self._pass)
        return begin, past

    def _length(self) -> int | None:
        """Items of a pass; None where it has no end."""
        try:
            return len(self)
        except TypeError:
            return None


class HostedCheckpoints(CheckpointDirectory):
    """Checkpoints of which a framework owns the content; the manifest beside it is ours."""

    names = re.compile(r"checkpoint-[0-9]+")
    feed = FrameworkFeed
    on_demand = False  # whether a checkpoint can be asked for
    writes_itself = True

    def load(self, name: str, rank: int, world_size: int, box_of: BoxOf) -> Tree:
        """What a rollback by restart has to know, once the framework's own files were read.

        The order ends this job, so it is refused where the next start could not load them. Raises
        ValueError or OSError.
        """
        del world_size, box_of
        try:
            self.read_back(self.folder(name), rank)
        except Exception as error:
            said = str(error).strip().partition("\n")[0]
            raise ValueError(f"{name} could not be loaded at the next start: {said}") from error
        return {"lr_scale": self.kept(name, 0).get("lr_scale")}

    def read_back(self, folder: Path, rank: int) -> None:
        """Read what the framework will, in the way it will; raise whatever goes wrong."""

    def not_ours(self, newest: int) -> str:
        """The newest checkpoint after step `newest` that the framework wrote without a guard.

        Empty where there is none.
        """
        del newest
        return ""

    def write_state(self, name: str, rank: int, tree: Tree) -> None:
        """What the framework knows nothing of: the rate's scale, how the data began, and the random
        numbers where it keeps none."""
        file = self._own(name, rank)
        file.parent.mkdir(parents=True, exist_ok=True)  # rank 0 may not have begun to write
        torch.save({key: tree.get(key) for key in ("lr_scale", "data", "random")}, file)

    def kept(self, name: str, rank: int) -> Tree:
        """What was written so; empty where that rank did not exist, or its file is not whole."""
        file = self._own(name, rank)
        try:
            return dict(torch.load(file, weights_only=False)) if file.exists() else {}
        except Exception as error:
            log.warning("%s cannot be read (%s): data may come in another order", file, error)
            return {}

    def _own(self, name: str, rank: int) -> Path:
        return self.path / name / f"spikeguard-{rank:05d}.pt"

    def set_aside(self, target: Target) -> None:
        """A rollback gave it up. Nothing by default: our own go once nobody may want them back."""

    def adopt(self, name: str, guard: Guard) -> None:
        """The framework has written `PATH/name` at this step boundary; all ranks."""
        parts = guard._p
        folder, scale, rank = self.path / name, parts.rates.scale, parts.world.rank
        if rank == 0 and (folder / MANIFEST).exists() and read_manifest(folder) is None:
            said = f"a {MANIFEST} that spikeguard did not write lies in it"
            raise FileExistsError(errno.EEXIST, said, str(folder))
        self.write_state(name, rank, {"lr_scale": to_json(scale), "data": parts.feed.capture()})
        if rank:
            return
        target = Target(name, parts.feed.position, parts.progress.lineage, Medium.DISK)
        self.write_manifest(target, parts.world.size, {})
        guard._report(target.record())


def read_tensors(path: Path, weights_only: bool | None = True) -> None:
    """Unpickle what `torch.save` wrote, if it is there; raise ValueError, whatever goes wrong.

    Tensors stay in the file where its format allows it, so that this takes no memory.
    """
    try:
        if path.exists():
            mapped = is_zipfile(path)  # not so what torch wrote before 1.6
            torch.load(path, map_location="cpu", weights_only=weights_only, mmap=mapped)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines()]
        said = next((line for line in lines if "Unsupported" in line), str(error))
        raise ValueError(f"{path.name}: {said}") from error


def resumable(checkpoints: HostedCheckpoints, home: Path, run: RunId) -> Target | None:
    """The checkpoint to go on from: the newest that is whole and that no rollback has abandoned.

    Rank 0 sets those aside that one has. Collective where `torch.distributed` is initialised.
    Raises `ResumeError` where the framework has written newer ones without a guard, and where there
    are checkpoints and all are damaged.
    """
    allowed = theirs = ""
    world = join_world()
    if world.leads:
        allowed = _newest_first(checkpoints, home, run)
        newest = checkpoints.find(allowed.split()[0]) if allowed else None
        theirs = checkpoints.not_ours(newest.step if newest is not None else 0)
    problems: list[str] = []
    try:
        allowed, theirs = broadcast(world, (allowed, theirs))
        if theirs:
            begins = f"at {allowed.split()[0]}" if allowed else "at step 0"
            raise ResumeError(
                f"{theirs} was written without spikeguard, which would begin {begins}. Give its "
                "path to the framework for this start, in place of checkpoint(), to go on from it; "
                "or choose an empty folder to begin anew"
            )
        for name in allowed.split():
            try:
                checkpoints.check(name, world.rank, world.size)
                problem = None
            except (OSError, ValueError) as error:
                problem = str(error)
            if (problem := first_problem(world, problem)) is None:
                return checkpoints.find(name)
            log.warning("checkpoint %s was passed over: %s", name, problem)
            problems.append(problem)
    finally:
        leave_world(world)
    if problems:
        raise ResumeError(
            f"no checkpoint in {checkpoints.path} could be used; repair one or name an empty "
            f"folder to begin anew. {'; '.join(problems)}"
        )
    return None


def _newest_first(checkpoints: HostedCheckpoints, home: Path, run: RunId) -> str:
    journal = Journal(home / "journal.jsonl", run)
    names = []
    for target in reversed(checkpoints.targets()):
        if is_abandoned(target.lineage, journal.abandonments):
            checkpoints.set_aside(target)
        else:
            names.append(target.name)
    return "\n".join(names)


def continue_from(guard: Guard, target: Target) -> None:
    """The framework has restored `target`: count on from there. Before the first step."""
    parts = guard._p
    parts.progress.continue_from(target.lineage, parts.progress.segment)
    parts.feed.position = target.position
    if parts.recovery.checkpoints is not None:
        assert isinstance(parts.recovery.checkpoints, HostedCheckpoints)
        kept = parts.recovery.checkpoints.kept
        if (scale := kept(target.name, 0).get("lr_scale")) is not None:
            parts.rates.scale = parts.journal.accepted(from_json(LrScale, scale))
        assert isinstance(parts.feed, FrameworkFeed)
        parts.feed.resumed = kept(target.name, parts.world.rank).get("data")
    parts.recovery.take_up_scale(target)
    log_resumed(parts, target)


def show_tokens(guard: Guard, batch: Any) -> None:
    """A framework's micro-batch, where it names its token ids as Hugging Face's do."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if isinstance(ids, Tensor):
        guard.tokens(ids)


def step_or_end(guard: Guard) -> None:
    """`guard.step()`; where a rollback was ordered the attempt is ended in good order."""
    try:
        guard.step()
    except RollbackByRestart as ending:
        guard.finish(ending.reason)
        raise


# ---- attaching to a model that a framework has wrapped for several ranks -----------------------


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
    if (earlier := guard_of(model)) is not None:
        log.warning("attempt %s of this model was not finished: it is now", earlier.attempt)
        earlier.finish("interrupted")
    ranks: spikeguard.Ranks = arguments.pop("ranks", None) or spikeguard.Ranks()
    if ranks.replicated is None:
        ranks = replace(ranks, replicated=says_replicated([wrapped]))
    state = [*([] if scaler is None else [scaler]), *arguments.pop("state", ())]
    return spikeguard.attach(model, optimizer, ranks=ranks, state=state, **arguments)


class HostedLoop:
    """A framework's loop that is watched; `guard` exists from the beginning of training on."""

    def __init__(self, checkpoints: HostedCheckpoints, arguments: Mapping[str, Any]) -> None:
        """`arguments`: as for `spikeguard.attach`."""
        self._checkpoints, self._arguments = checkpoints, dict(arguments)
        home = self._arguments.pop("directory", None)
        self._home = Path(home or checkpoints.path / "spikeguard")
        self.guard: spikeguard.Guard | None = None

    def _resumable(self) -> Target | None:
        """The newest checkpoint that no rollback has abandoned. Raises `ResumeError`."""
        given = self._arguments.get
        named = read_connection(given("run"), given("project"), given("server"), given("token"))
        return resumable(self._checkpoints, self._home, named.run)

    def _feed(self) -> FrameworkFeed:
        """The positions; raise if the loader is read before training has begun."""
        feed = self.guard._p.feed if self.guard is not None else None
        if not isinstance(feed, FrameworkFeed):
            raise RuntimeError("the watched loader was read before its training began")
        return feed

    def _begin(self, resumed: Target | None, step: int, **found: Any) -> Guard:
        """Attach, and count on from where the framework resumed: `resumed`, or a `step` of its own.

        `found`: what the framework says, as for `attach_within`.
        """
        if self.guard is not None:  # of a pass that an error ended
            self.guard.finish()
        found |= {"checkpoints": self._checkpoints, "directory": self._home}
        self.guard = guard = attach_within(**found, **self._arguments)
        if resumed is not None:
            continue_from(guard, resumed)
        elif step:
            guard.resume(step)
        return guard


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """`owner.name(...)` becomes `around(the old one, ...)`."""
    inner = getattr(owner, name)
    setattr(owner, name, lambda *args, **named: around(inner, *args, **named))
