"""The one checkpoint that may be on its way to disk while the loop trains on.

The state is copied to host memory that is used again for the next one; a thread writes it.
Law: one in flight on all ranks: whether another may begin is voted on, since ranks finish apart.
It counts as a checkpoint once every rank has written, when rank 0 adds the manifest; a process
that dies before leaves a folder that is none, and the earlier checkpoints untouched.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from spikeguard.checkpoints import CheckpointDirectory
from spikeguard.faults import Faults
from spikeguard.host_copies import HostCopies
from spikeguard.shared_parts import Part
from spikeguard.targets import Target, Tree
from spikeguard.world import World, all_agree

Divided = Callable[[], tuple[Tree, dict[str, Part]]]  # each rank's own, and what all share

LET_GO_S = 5.0  # for a thread that has nothing left to do


@dataclass(frozen=True, slots=True)
class Finished:
    """How a save ended on this rank; on rank 0 the manifest stands where `problem` is None."""

    target: Target
    problem: BaseException | None


class Saves:
    """What is on its way; nothing or one."""

    def __init__(
        self, world: World, directory: CheckpointDirectory, faults: Faults, copies: HostCopies
    ) -> None:
        self._world, self.directory, self._faults = world, directory, faults
        self._copies = copies
        self._buffers: Tree = {}
        self._target: Target | None = None
        self._written: Future[None] | None = None
        self._thread: threading.Thread | None = None  # of DCP's, that wrote last

    @property
    def busy(self) -> bool:
        """Whether this rank still writes."""
        return self._written is not None and not self._written.done()

    def begin(self, target: Target, divided: Divided) -> bool:
        """Copy the state and have it written; False if a rank cannot, or writes still. Collective.

        `divided` collects it, from objects of the loop's that may fail: that is this rank's no.
        What it returns may refer to live tensors: they are copied before this returns, or on CUDA
        before anything that is queued later.
        """
        staged = None
        if self.busy:
            self._faults.note(
                "checkpoint", f"{self._target and self._target.name} is still written"
            )
        else:
            with self._faults.shield("checkpoint"):
                staged = self._staged(target.step, *divided())
        if not all_agree(self._world, staged is not None) or staged is None:
            return False
        self._target, self._written = target, Future()
        with self._faults.shield("checkpoint"):
            self._write(target, staged, self._written)
        return True

    def _staged(self, step: int, own: Tree, parts: dict[str, Part]) -> Any:
        from spikeguard.dcp_files import Staged  # DCP takes a moment to import: not with the agent

        live = {"own": own, "parts": {name: part.tensor for name, part in parts.items()}}
        self._buffers, copied = self._copies.take(live, self._buffers, step)
        tensors = self._buffers["parts"]
        here = {name: part.copied(tensors[name]) for name, part in parts.items()}
        return Staged(self._buffers["own"], here, copied)

    def _write(self, target: Target, staged: Any, written: Future[None]) -> None:
        from spikeguard.dcp_files import save

        def done(saved: Future[Any]) -> None:
            self._thread = threading.current_thread()
            problem = saved.exception()
            try:
                if problem is None and self._world.leads:
                    self.directory.write_manifest(target, self._world.size)
            except Exception as error:
                problem = error
            if problem is None:
                written.set_result(None)
            else:
                written.set_exception(problem)

        try:
            folder = self.directory.folder(target.name)
            saved = save(folder, self._world.rank, staged, self._world.ties.saving)
        except BaseException as error:  # DCP's own is no Exception
            written.set_exception(error)
            raise
        saved.add_done_callback(done)

    def finished(self, wait_s: float = 0.0) -> Finished | None:
        """The save that has ended since it was last asked for; None if none has.

        With `wait_s` its thread has ended too: until then it holds the group that it wrote on,
        which would outlive the attempt.
        """
        if wait_s:
            self._wait(wait_s)
        if self._written is None or self._target is None:
            return None
        if not self._written.done():
            return None
        ended = Finished(self._target, self._written.exception())
        self._target = self._written = None
        return ended

    def _wait(self, wait_s: float) -> None:
        if self._written is not None:
            concurrent.futures.wait([self._written], wait_s)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and not self.busy:
            thread.join(min(wait_s, LET_GO_S))
