"""The data order: where the loop stands in it, what it leaves out, and how it goes back.

Position p is one optimizer step's batch, `micro_batches` items of the loader. A loader with
`state_dict` and `load_state_dict` is rewound by its state, any other re-iterable by starting its
pass again with the random numbers it began with and counting. What is left out is read, named and
thrown away, unless the loader has `skip_to(position)`: its next item is then the first of that
position, and `names_of(position)`, if it has that too, says what lay there. An iterator without
those two can be read once: forward only, nothing goes back over it.
Law: what is left out draws no random numbers of the job, so a run with a skip equals one that
never had those batches. The loader's own errors are the loop's and pass through.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, TypeVar

from spikeguard.errors import ResumeError
from spikeguard.ledger import Ledger
from spikeguard.left_out_log import LeftOutLog
from spikeguard.naming import Names
from spikeguard.targets import Tree
from spikeguard.training_state import random_state, restore_random_state

Batch = TypeVar("Batch")

READ_ONCE = "the loader is an iterator, which can be read once"
READ_ONCE_REMEDY = (
    "Give guard.batches() one with state_dict() and load_state_dict(), or one that is no iterator "
    "and begins anew each time"
)


class DataFeed:
    """Hands micro-batches to the loop."""

    restarts = False  # whether going back takes a new attempt

    def __init__(
        self, ledger: Ledger, micro_batches: int, replay_limit_s: float = math.inf
    ) -> None:
        self.ledger = ledger
        self.position = 0  # the next one to be read
        self.in_use = False
        self.stopped = False
        self.left_out: LeftOutLog | None = None  # where it is told what was left out
        self._micro_batches = micro_batches
        self._replay_limit_s = replay_limit_s
        self._waited_s = 0.0  # for the loader, of `_waits` items
        self._waits = 0
        self._loader: Any = None
        self._micro = 0  # items of the current position that were handed out
        self._read = 0  # items read since the pass began
        self._pass = 0
        self._pass_random: Tree | None = None
        self._rewind: Tree | None = None

    def take(self, loader: Iterable[Any]) -> None:
        """The loop's data come from `loader`; raises `ResumeError` where it cannot go on there."""
        self.in_use, self._loader = True, loader
        if self._rewind is not None and self._rewind.get("pass", 1) > 1 and self.read_once:
            stands = f"the run stands in pass {self._rewind['pass']}"
            raise ResumeError(f"{stands}, and {READ_ONCE}. {READ_ONCE_REMEDY}")

    @property
    def read_once(self) -> bool:
        """Whether what was read of the loader is gone; asked of its type, since `iter` may act."""
        return isinstance(self._loader, Iterator) and not _has_state(self._loader)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield micro-batches until the loader ends or the run is stopped."""
        self.take(loader)
        iterator: Iterator[Any] | None = None if self._rewind is not None else self._opened()
        while not self.stopped:
            try:
                if self._rewind is not None or iterator is None:
                    iterator = self._reopened()
                if self._micro == 0:
                    iterator = self._past_skips(iterator)
                began = perf_counter()
                batch = next(iterator)
                self._waited_s += perf_counter() - began
                self._waits += 1
            except StopIteration:
                return
            self._read += 1
            self._micro += 1
            yield batch

    def finish_step(self) -> int:
        """The loop made a step of what it was given; returns the position that went into it."""
        done = self.position
        self.position += 1
        self._micro = 0
        return done

    def capture(self) -> Tree:
        """Where the data stands, for a snapshot."""
        pending = self.left_out.pending() if self.left_out is not None else ""
        tree: Tree = {"position": self.position, "kind": "none", "left_out": pending}
        if not self.in_use:
            return tree
        if _has_state(self._loader):
            return {**tree, "kind": "state", "loader": copy.deepcopy(self._loader.state_dict())}
        counted = {"pass": self._pass, "read": self._read, "pass_random": self._pass_random}
        return {**tree, "kind": "count", **counted}

    def refusal(self, tree: Tree) -> str | None:
        """Why the data cannot go back there from here; None if it can."""
        if tree["kind"] == "none" or not self.in_use:
            return "the loop does not take its data from guard.batches()"
        if self.read_once:
            return f"{READ_ONCE}. {READ_ONCE_REMEDY}"
        if tree["kind"] == "state" and not _has_state(self._loader):
            return "the loader has no load_state_dict()"
        if tree["kind"] == "count" and tree["pass"] != self._pass:
            return "the target lies in an earlier pass over a loader that has no state_dict()"
        return self._too_long(tree["read"]) if tree["kind"] == "count" else None

    def _too_long(self, items: int) -> str | None:
        """Why so many items are not to be read again; None if that takes no longer than allowed."""
        again_s = items * self._waited_s / max(self._waits, 1)
        if again_s <= self._replay_limit_s:
            return None
        return (
            f"reading {items} items again would take about {again_s:.0f} s, over replay_limit_s "
            f"({self._replay_limit_s:g} s): give the loader state_dict() and load_state_dict()"
        )

    def restore(self, tree: Tree, random_numbers: Tree) -> None:
        """Go back at the next batch; the loader is touched only then."""
        self.position = tree["position"]
        self._micro = 0
        self._rewind = {**tree, "random": random_numbers} if tree["kind"] != "none" else None
        if self.left_out is not None and (pending := tree.get("left_out")):
            with self.left_out.shield:
                self.left_out.take_up(pending)

    def _opened(self) -> Iterator[Any]:
        self._pass_random = None if _has_state(self._loader) else random_state()
        self._pass += 1
        self._read = self._micro = 0
        return iter(self._loader)

    def _reopened(self) -> Iterator[Any]:
        point, self._rewind = self._rewind, None
        assert point is not None
        if point["kind"] == "state" and _has_state(self._loader):
            self._loader.load_state_dict(copy.deepcopy(point["loader"]))
            iterator: Iterator[Any] = iter(self._loader)
        else:
            iterator = self._recounted(point)
        restore_random_state(point["random"])
        return iterator

    def _recounted(self, point: Tree) -> Iterator[Any]:
        if point.get("pass_random"):
            restore_random_state(point["pass_random"])
            self._pass_random, self._pass = point["pass_random"], point["pass"]
        iterator: Iterator[Any] = iter(self._loader)
        self._read = 0
        self._discard(iterator, point.get("read", point["position"] * self._micro_batches))
        return iterator

    @property
    def _shield(self) -> AbstractContextManager[Any]:
        """Around what is the agent's own between the loop and its loader."""
        return self.left_out.shield if self.left_out is not None else nullcontext()

    def _past_skips(self, iterator: Iterator[Any]) -> Iterator[Any]:
        end = self.position
        with self._shield:
            end = self.ledger.end_of_skip(self.position)
        if end == self.position:
            return iterator
        numbers: Tree | None = None
        with self._shield:
            numbers = random_state()
        try:
            if hasattr(self._loader, "skip_to"):
                self._skip_to(end)
                iterator = iter(self._loader)
            while self.position < end:
                self._leave_out(iterator)
        finally:
            if numbers is not None:
                with self._shield:
                    restore_random_state(numbers)
            if self.left_out is not None:
                with self.left_out.shield:
                    self.left_out.settle()
        return iterator

    def _skip_to(self, end: int) -> None:
        """Nothing is read: the loader says itself what lay there, if it can."""
        first, names, log = self.position, list[Names](), self.left_out
        if log is not None:
            with log.shield:
                names = log.names_of(self._loader, first, end)
        self._loader.skip_to(end)
        self.position = end
        if log is not None:
            with log.shield:
                log.pass_by(first, end, names)

    def _leave_out(self, iterator: Iterator[Any]) -> None:
        """Read one position past; where the data ends within it, what was read is told too."""
        names, log, read = Names(), self.left_out, self._read
        try:
            for _ in range(self._micro_batches):
                item = next(iterator)
                self._read += 1
                if log is not None:
                    with log.shield:
                        log.name(names, item)
        finally:
            if log is not None and self._read > read:
                with log.shield:
                    log.leave(self.position, names)
        self.position += 1

    def _discard(self, iterator: Iterator[Any], count: int) -> None:
        for _ in range(count):
            next(iterator)
            self._read += 1


def _has_state(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
