"""The data order: where the loop stands in it, what it leaves out, and how it goes back.

Position p is one optimizer step's batch, `micro_batches` items of the loader. A loader with
`state_dict` and `load_state_dict` is rewound by its state, any other re-iterable by starting its
pass again with the random numbers it began with and counting. What is left out is read, named and
thrown away, unless the loader has `skip_to(position)`: its next item is then the first of that
position, and `names_of(position)`, if it has that too, says what lay there. An iterator without
those two can be read once: forward only, nothing goes back over it.
A loop may fetch items before the step that comes first is made. What was fetched and not trained
stands in a queue: a snapshot or checkpoint says where the data stood before it, so that going back
or a restart fetches it again. What a loop holds while it is taken back it trains first, and the
guard undoes those steps (`undoing`): the items that complete them are copies that do not count.
Where another thread fetches, they stand.
Law: what is left out draws no random numbers of the job, so a run with a skip equals one that
never had those batches. The loader's own errors are the loop's and pass through. Items may be
fetched by another thread: what that one counts is written by it alone.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from time import perf_counter
from typing import Any, TypeVar

from spikeguard.data.batch_names import Names
from spikeguard.data.by_position import ByPosition
from spikeguard.data.loader_marks import NOT_AGAIN, Fetched, Mark, counts_of, has_state, lies_before
from spikeguard.data.skip_log import SkipLog
from spikeguard.data.skips import Skips
from spikeguard.errors import ResumeError
from spikeguard.measure.kept_items import KeptItems
from spikeguard.state.targets import Tree
from spikeguard.state.training_state import random_state, restore_random_state

Batch = TypeVar("Batch")

MIXED = "items of two guard.batches() go into one step, and one of them is not rewound"
SETTLED = 3  # steps until a loop is said to fetch ahead; so many alike: micro_batches may be wrong
IN_DOUBT = 16  # steps until that is judged


class DataFeed:
    """Hands micro-batches to the loop."""

    restarts = False  # whether going back takes a new attempt

    def __init__(self, ledger: Skips, micro_batches: int, replay_limit_s: float = math.inf) -> None:
        self.ledger = ledger
        self.position = 0  # the next one to be trained
        self.in_use = False
        self.stopped = False
        self.steps = self.handed = 0  # steps made; items that were handed out
        self.ahead = 0  # most items that were handed out before the step in front of theirs
        self.items_per_step: float | None = None  # where the loop takes other than `micro_batches`
        self.mixed = False  # the loop takes items of two loaders at once
        self.unusual = False  # the loop has shown something that nobody was told of
        self.mark_every = 10  # positions, where the loop fetches ahead
        self.left_out: SkipLog | None = None  # where it is told what was left out
        self.items: KeptItems | None = None  # where somebody can name them
        self.micro_batches = micro_batches
        self._replay_limit_s = replay_limit_s
        self._waited_s = 0.0  # for the loader, of `_waits` items
        self._waits = 0
        self._loader: Any = None
        self._loaders = 0  # how many there were
        self._before: dict[str, Any] = {}  # what was counted when the loader was taken
        self._open: object | None = None  # the iterator that is counted
        self._beside: list[list[int]] = []  # items of others that are open
        self._next = 0  # the position of the next item to be fetched
        self._micro = 0  # items of that position that were handed out
        self._fetched: deque[Fetched] = deque()  # and not trained
        self._left_over: int | None = None  # a position begun with the last items of a pass
        self._stale = 0  # of these, the first were fetched before the run was taken back
        self._returns = 0  # how often it was
        self.undoing = 0  # steps to come of what was held when it was, which the guard undoes
        self._filler = 0  # items that complete them and do not count
        self._handed_before = 0  # the last step
        self._ahead_told = 0
        self._fetched_by: int | None = None  # which thread
        self.alike = self.taken = 0  # steps in a row that took as many items, not micro_batches
        self._marks: list[Mark] = []
        self._read = 0  # items read since the pass began
        self._pass = 0
        self._pass_random: Tree | None = None
        self._rewind: Tree | None = None

    def is_beside(self, loader: Iterable[Any]) -> bool:
        """Whether another loader's items are under way, so that those of `loader` do not count."""
        return self._open is not None and loader is not self._loader

    def take(self, loader: Iterable[Any]) -> None:
        """The loop's data come from `loader`; raises `ResumeError` where it cannot go on there."""
        if loader is not self._loader:
            if self._before.get("steps") == self.steps:  # an evaluation's: no step was made of it
                vars(self).update(self._before)
            self._before = counts_of(self)
            self._loaders += loader is not self._loader
        self.in_use, self._loader = True, loader
        if isinstance(loader, ByPosition):
            loader.micro_batches = self.micro_batches
        if self._rewind is not None and self._rewind.get("pass", 1) > 1 and self.read_once:
            stands = f"the run stands in pass {self._rewind['pass']}"
            raise ResumeError(f"{stands}, and {NOT_AGAIN}")

    @property
    def read_once(self) -> bool:
        """Whether what was read of the loader is gone; asked of its type, since `iter` may act."""
        return isinstance(self._loader, Iterator) and not has_state(self._loader)

    @property
    def threaded(self) -> bool:
        """Whether another thread than this one, which makes the steps, fetches the items."""
        return self._fetched_by not in (None, get_ident())

    @property
    def _in_doubt(self) -> bool:
        """Whether more items than expected may rather be a wrong `micro_batches`, not told yet."""
        more = self.alike >= SETTLED and self.taken > self.micro_batches
        return more and self.steps <= IN_DOUBT and not self.threaded

    @property
    def held(self) -> int:
        """Positions of steps to come of which the loop has items."""
        return len(self._fetched)

    @property
    def unread(self) -> int:
        """The first position of which the loop has nothing."""
        return self._next + (self._micro > 0)

    def batches(self) -> Iterator[Any]:
        """Yield micro-batches until the loader, which was taken, ends or the run is stopped."""
        iterator: Iterator[Any] | None = None if self._rewind is not None else self._opened()
        self._open = mine = object()
        try:
            while not self.stopped:
                if self._rewind is not None or iterator is None:
                    iterator = self._reopened()
                if self._micro == 0:
                    iterator = self._past_skips(iterator)
                    if self.ahead and self._next % self.mark_every == 0:
                        self._mark()
                returns = self._returns
                item = Fetched(self._next, self._pass, self._read, self._pass_random)
                began = perf_counter()
                batch = next(iterator)
                self._waited_s += perf_counter() - began
                self._waits += 1
                while self._filler and not self.stopped:
                    self._filler -= 1
                    yield self._copied(batch)
                with self._shield:
                    self._count(item, returns)
                    if self.items is not None:
                        self.items.add(item.position, batch)
                yield batch
        except StopIteration:
            return
        finally:
            if self._open is mine:
                self._open = None

    def batches_beside(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield what does not count: an evaluation's as a rule, which ends before the next step."""
        mine = [0]
        self._beside.append(mine)
        try:
            for batch in loader:
                if self.stopped:
                    return
                mine[0] += 1
                yield batch
        finally:
            self._beside[:] = [other for other in self._beside if other is not mine]

    def _count(self, item: Fetched, returns: int) -> None:
        """The loop gets an item; `returns`: as many as when it was asked for."""
        if returns != self._returns:  # the run was taken back while another thread fetched it
            self._fetched.append(item)
            self._stale += 1
            return
        if not self._fetched:
            self.position = item.position
        if self._micro == 0 and item.position != self._left_over:
            self._fetched.append(item)
        self._fetched_by = get_ident()
        self._read += 1
        self.handed += 1
        if self._micro + 1 < self.micro_batches:
            self._micro += 1
        else:
            self._next += 1
            self._micro = 0

    def finish_step(self) -> int:
        """The loop made a step of what it was given; returns the position that went into it."""
        self.steps += 1
        handed = self.handed
        taken, self._handed_before = handed - self._handed_before, handed
        fetched = self._fetched
        done = fetched.popleft().position if fetched else self.position
        if fetched or self._stale or self._beside:
            self._finish_unusual(done, taken)
        elif taken == self.micro_batches:
            self.position, self.alike = done + 1, 0
        elif handed:
            self._finish_unusual(done, taken)
        else:  # the loop reads nothing through the guard
            self.position = self._next = done + 1
        return done

    def _finish_unusual(self, done: int, taken: int) -> None:
        """The rest of a step for which the loop took more or fewer items, or had some before."""
        stale, self._stale = self._stale > 0, max(0, self._stale - 1)
        self.alike = self.alike + 1 if taken == self.taken and self.alike else 1
        self.taken = taken
        if taken == self.micro_batches:
            self.alike = 0
        if self._beside and not self.mixed and any(items[0] for items in self._beside):
            self.mixed = self.unusual = True
        if self.items_per_step is not None:  # a position is a step, whatever went into it
            self._fetched.clear()
            self.position = self._next = done + 1
            self._stale = self._micro = 0
            return
        if len(self._fetched) > self._stale:
            self.position = self._fetched[self._stale].position
            self._note_ahead()
            return
        if not stale and not self._stale and (self._next <= done or self._micro):
            self._next, self._micro = done + 1, 0
        self.position = self._next

    def _note_ahead(self) -> None:
        whole = (len(self._fetched) - self._stale - 1) * self.micro_batches
        self.ahead = max(self.ahead, whole + (self._micro or self.micro_batches))
        told = self.ahead <= 2 * self._ahead_told
        if not told and self.steps >= SETTLED and not self._in_doubt:
            self._ahead_told, self.unusual = self.ahead, True

    def capture(self) -> Tree:
        """Where the data stands, for a snapshot."""
        pending = self.left_out.pending() if self.left_out is not None else ""
        tree: Tree = {"position": self.position, "kind": "none", "left_out": pending}
        if not self.in_use:
            return tree
        now = Fetched(self.position, self._pass, self._read, self._pass_random)
        ahead = len(self._fetched) > self._stale and not self._in_doubt
        first = self._fetched[self._stale] if ahead else now
        if has_state(self._loader):
            return {**tree, "kind": "state", "loaders": self._loaders, **self._state_at(first, now)}
        counted = {"pass": first.number, "read": first.read, "pass_random": first.random}
        return {**tree, "kind": "count", **counted}

    def _state_at(self, first: Fetched, now: Fetched) -> Tree:
        """The loader's state before `first`, or one from before that and what is to be read."""
        if first is not now:
            for mark in reversed(self._marks):
                if mark.number == first.number and mark.read <= first.read:
                    return {"loader": copy.deepcopy(mark.state), "again": first.read - mark.read}
        return {"loader": copy.deepcopy(self._loader.state_dict()), "again": 0}

    def _mark(self) -> None:
        """Remember the loader's state; those that nothing fetched lies behind are let go."""
        if not has_state(self._loader):
            return
        with self._shield:
            state = copy.deepcopy(self._loader.state_dict())
            self._marks.append(Mark(self._pass, self._read, state))
            oldest = self._fetched[0] if self._fetched else None
            while len(self._marks) > 1 and lies_before(self._marks[1], oldest):
                del self._marks[0]

    def refusal(self, tree: Tree) -> str | None:
        """Why the data cannot go back there from here; None if it can."""
        if tree["kind"] == "none" or not self.in_use:
            return "the loop does not take its data from guard.batches()"
        if self.mixed:
            return MIXED
        if self.read_once:
            return NOT_AGAIN
        if tree["kind"] == "state" and not has_state(self._loader):
            return "the loader has no load_state_dict()"
        if tree["kind"] == "state" and tree.get("loaders", self._loaders) != self._loaders:
            return "the target lies in an earlier loader than the one given to guard.batches() last"
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
        self.position = self._next = tree["position"]
        self._stale, self._returns = len(self._fetched), self._returns + 1
        self._undo_stale()
        self._micro, self._left_over = 0, None
        if self.items is not None:
            self.items.clear()
        self._rewind = {**tree, "random": random_numbers} if tree["kind"] != "none" else None
        if self.left_out is not None and (pending := tree.get("left_out")):
            with self.left_out.shield:
                self.left_out.take_up(pending)

    def _undo_stale(self) -> None:
        """The steps of what the loop holds are to be undone, unless another thread fetches."""
        self.undoing = 0 if self.threaded else self._stale
        held = (self._stale - 1) * self.micro_batches + (self._micro or self.micro_batches)
        self._filler = self.undoing * self.micro_batches - held if self.undoing else 0

    def let_stale_stand(self) -> None:
        """What is held is trained first after all, as not all ranks hold as much."""
        self.undoing = self._filler = 0

    def undo_step(self) -> bool:
        """The loop made a step of what it held; whether that was the last one to be undone."""
        self._fetched.popleft()
        self._stale -= 1
        self.undoing -= 1
        self._handed_before = self.handed
        return not self.undoing

    def _copied(self, item: Any) -> Any:
        """`item` for a step that is undone: the loop may change it in place."""
        with self._shield:
            return copy.deepcopy(item)
        return item

    @property
    def stale(self) -> int:
        """Positions of which the loop held items when the run was taken back, not trained yet."""
        return self._stale

    def _opened(self) -> Iterator[Any]:
        self._pass_random = None if has_state(self._loader) else random_state()
        if self.steps == 0 and self._fetched:  # looked at before the loop began
            self._next = self._fetched[0].position
            self._fetched.clear()
            self.handed = self._handed_before
        self.handed -= self._micro  # left of the pass before: they go into the next step
        self._left_over = self._next if self._micro else None
        self._pass += 1
        self._read = self._micro = 0
        iterator: Iterator[Any] = iter(self._loader)
        self._marks.clear()
        self._mark()
        return iterator

    def _reopened(self) -> Iterator[Any]:
        point, self._rewind = self._rewind, None
        assert point is not None
        if point["kind"] == "state" and has_state(self._loader):
            self._loaders = point.get("loaders", self._loaders)
            self._marks = [Mark(self._pass, self._read, point["loader"])]
            self._loader.load_state_dict(copy.deepcopy(point["loader"]))
            iterator: Iterator[Any] = iter(self._loader)
            self._discard(iterator, point.get("again", 0))
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
        self._discard(iterator, point.get("read", point["position"] * self.micro_batches))
        return iterator

    @property
    def _shield(self) -> AbstractContextManager[Any]:
        """Around what is the agent's own between the loop and its loader."""
        return self.left_out.shield if self.left_out is not None else nullcontext()

    def _past_skips(self, iterator: Iterator[Any]) -> Iterator[Any]:
        end = self._next
        with self._shield:
            end = self.ledger.end_of_skip(self._next)
        if end == self._next:
            return iterator
        numbers: Tree | None = None
        with self._shield:
            numbers = random_state()
        try:
            if hasattr(self._loader, "skip_to"):
                self._skip_to(end)
                iterator = iter(self._loader)
                self._mark()
            while self._next < end:
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
        first, names, log = self._next, list[Names](), self.left_out
        if log is not None:
            with log.shield:
                names = log.names_of(self._loader, first, end)
        self._loader.skip_to(end)
        self._next = end
        self._marks.clear()  # what was jumped over was not read
        if log is not None:
            with log.shield:
                log.pass_by(first, end, names)

    def _leave_out(self, iterator: Iterator[Any]) -> None:
        """Read one position past; where the data ends within it, what was read is told too."""
        names, log, read = Names(), self.left_out, self._read
        try:
            for _ in range(self.micro_batches):
                item = next(iterator)
                self._read += 1
                if log is not None:
                    with log.shield:
                        log.name(names, item)
        finally:
            if log is not None and self._read > read:
                with log.shield:
                    log.leave(self._next, names)
        self._next += 1

    def _discard(self, iterator: Iterator[Any], count: int) -> None:
        for _ in range(count):
            next(iterator)
            self._read += 1
