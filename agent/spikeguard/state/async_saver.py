"""The one checkpoint that may be on its way to disk while the loop trains on.

The state is copied to host memory (`snapshots`), or lies there already as the snapshot of the
same step; a thread writes it. What the job wrote itself a thread reads for its checksums.
One in flight on all ranks: whether another may begin is voted on, since ranks finish apart.
It counts as a checkpoint once every rank has written, when rank 0 adds the manifest; a process
that dies before leaves a folder that is none, and the earlier checkpoints untouched.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from spikeguard.faults import Faults, log
from spikeguard.ranks.rank_group import World, all_agree
from spikeguard.state.checkpoints import CheckpointDirectory
from spikeguard.state.file_sums import FileSums, beside_the_loop
from spikeguard.state.lineage import Target
from spikeguard.state.snapshots import Staged

LET_GO_S = 5.0  # for a thread that has nothing left to do


class Saves:
    """What is on its way; nothing or one."""

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
            self._faults.note("checkpoint", problem)
        return target if problem is None else None

    def _wait(self, wait_s: float) -> None:
        if self._written is not None:
            concurrent.futures.wait([self._written], wait_s)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and not self.busy:
            thread.join(min(wait_s, LET_GO_S))
