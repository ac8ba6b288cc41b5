"""Checkpoints that a framework also prunes: the few that a rollback needs outlive it.

Each one is hard-linked into `PATH/spikeguard/kept/` at the step boundary after it was written, when
every rank has written its part; it costs room only once the framework has removed its own.
Law: at most `MOST_PROTECTED` that the server protects stay, the newest that `healthy_after` steps
have been built on, and the one that will be it next. Nothing is copied: where the file system makes
no links, none is kept.
A thread reads what was kept for its checksums, and the next step boundary writes them into the
manifest. What the framework wrote is never removed: a checkpoint that a rollback gave up is moved
to `PATH/spikeguard/abandoned/`, out of the way of the framework's own pruning and its next save.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import secrets
import shutil
import threading
from concurrent.futures import Future
from os import PathLike
from pathlib import Path

from spikeguard.faults import Faults, log
from spikeguard.guard import Guard
from spikeguard.integrations.framework_loop import HostedCheckpoints
from spikeguard.state.checkpoints import (
    MANIFEST,
    MOST_PROTECTED,
    NOT_SUMMED,
    read_manifest,
    seal_manifest,
)
from spikeguard.state.file_sums import FileSum, beside_the_loop, sums_of
from spikeguard.state.owned_folders import MARKER, claim, remove, remove_beside
from spikeguard.state.targets import Target

BEGUN = re.compile(
    r"\.checkpoint-[0-9]+\.[0-9a-f]{8}"
)  # links on their way, by some process's token


class KeptCheckpoints(HostedCheckpoints):
    """What lies in `PATH`, and what was kept of it."""

    def __init__(self, path: str | PathLike[str], healthy_after: int = 100) -> None:
        super().__init__(path, every=0, healthy_after=healthy_after)
        self._kept = self.path / "spikeguard" / "kept"
        self._abandoned = self.path / "spikeguard" / "abandoned"
        self._token = secrets.token_hex(4)  # of this process, in the names of what it has begun
        self._swept = False
        self._due: str | None = None  # written at the last step boundary
        self._protected: frozenset[str] = frozenset()
        self._summing: list[tuple[Target, Future[dict[str, FileSum]]]] = []

    def targets(self) -> list[Target]:
        """Every complete checkpoint, oldest step first."""
        own = super().targets()
        names = {target.name for target in own}
        more = [target for target in self._held() if target.name not in names]
        return sorted((*own, *more), key=lambda t: (t.step, t.name))

    def find(self, name: str) -> Target | None:
        """The complete checkpoint of that name, if it is still there."""
        return super().find(name) or read_manifest(self._kept / name)

    def folder(self, name: str) -> Path:
        """The framework's own where it is whole."""
        own, kept = self.path / name, self._kept / name
        return kept if not (own / MANIFEST).exists() and (kept / MANIFEST).exists() else own

    def adopt(self, name: str, guard: Guard) -> None:
        """The framework has written `PATH/name` at this step boundary; rank 0."""
        super().adopt(name, guard)
        self._due = name

    def keep_back(self, guard: Guard) -> bool:
        """At a step boundary, before the framework prunes: keep what is due, let go of the rest.

        Returns whether anything was let go.
        """
        parts = guard._p
        protected = parts.inbox.protected
        if not parts.world.leads:
            return False
        self._seal_summed(parts.world.size)
        if self._due is None and protected == self._protected:
            return False
        due, self._due, self._protected = self._due, None, protected
        if due is not None:
            self._sweep()
            self._take_in(due, parts.faults)
            self._begin_sums(due)
        unwanted = self._unwanted(protected, parts.progress.steps)
        for name in unwanted:
            self._let_go(name)
        return unwanted != []

    def settle(self, guard: Guard) -> None:
        """At the end of training: give the newest its checksums too."""
        world = guard._p.world
        if self._due is not None and world.size == 1:  # else a rank may still be writing its part
            self._begin_sums(self._due)
        concurrent.futures.wait([done for _, done in self._summing], guard._p.settings.flush_s)
        self._seal_summed(world.size)

    def set_aside(self, target: Target) -> None:
        """Move one that a rollback gave up to where the framework neither prunes nor writes."""
        segment = target.segment
        aside = self._abandoned / f"{target.name}-{segment.attempt[:8]}.{segment.number}"
        for place in (self.path / target.name, self._kept / target.name):
            if read_manifest(place) != target:
                continue
            if aside.exists():
                self._let_go(target.name)
                continue
            self._abandoned.mkdir(parents=True, exist_ok=True)
            place.rename(aside)
            log.warning(
                "%s was given up by a rollback: it lies in %s now. Remove it when nobody needs it",
                target.name,
                aside,
            )

    def _begin_sums(self, name: str) -> None:
        """Read the files beside the loop."""
        target = self.find(name)
        if target is not None:  # one that is pruned meanwhile stays without
            self._summing.append((target, beside_the_loop(lambda: self._sums_of(name))))

    def _sums_of(self, name: str) -> dict[str, FileSum]:
        try:
            return sums_of(self.path / name, but=NOT_SUMMED)
        except OSError:
            return sums_of(self._kept / name, but=NOT_SUMMED)

    def _seal_summed(self, world_size: int) -> None:
        """Write into the manifests what was read since; in the loop, where nobody prunes."""
        ended = [each for each in self._summing if each[1].done()]
        self._summing = [each for each in self._summing if each not in ended]
        for target, done in ended:
            for folder in (self.path / target.name, self._kept / target.name):
                if done.exception() is None and read_manifest(folder) == target:
                    seal_manifest(folder, target, world_size, done.result())

    def _held(self) -> list[Target]:
        """Oldest step first."""
        found = [read_manifest(folder) for folder in self._kept.glob("checkpoint-*")]
        return sorted((t for t in found if t is not None), key=lambda t: (t.step, t.name))

    def _unwanted(self, protected: frozenset[str], step: int) -> list[str]:
        held = self._held()
        spared = [target.name for target in held if target.name in protected][-MOST_PROTECTED:]
        stand = [target.name for target in held if step - target.step >= self.healthy_after]
        young = [target.name for target in held if step - target.step < self.healthy_after]
        wanted = {*spared, *stand[-1:], *young[:1]}
        return [target.name for target in held if target.name not in wanted]

    def _take_in(self, name: str, faults: Faults) -> None:
        """Whole or not at all."""
        place, fresh = self._kept / name, self._kept / f".{name}.{self._token}"
        try:
            claim(fresh)
            unmarked = shutil.ignore_patterns(MARKER)
            source = self.path / name
            shutil.copytree(
                source, fresh, ignore=unmarked, copy_function=os.link, dirs_exist_ok=True
            )
            remove(place, self.names)
            fresh.replace(place)
        except OSError as error:  # another file system, or one without links
            remove(fresh, BEGUN)
            faults.note("checkpoint", f"{name} goes when the framework removes it: {error}")

    def _sweep(self) -> None:
        """Once: what a process that was killed had begun to copy is freed beside the loop."""
        stale = [] if self._swept else list(self._kept.glob(".checkpoint-*"))
        self._swept = True
        for folder in stale:
            threading.Thread(target=remove, args=(folder, BEGUN), daemon=True).start()

    def _let_go(self, name: str) -> None:
        """It is none any more at once; what it takes is freed beside the loop."""
        remove_beside(self._kept / name, self.names, first=MANIFEST)
