"""One pass over a loader: begun, counted, and taken up again where a snapshot says.

What a pass begins with is put back with it: the job's global random numbers, the generators that
loader, samplers and dataset hold, the epoch that these were set to, and whether workers were
running already: the first `iter()` of a DataLoader with `persistent_workers` draws a number that
later ones do not.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from spikeguard.faults import log
from spikeguard.state.lineage import Tree
from spikeguard.state.random_numbers import (
    Generators,
    generators_in,
    put_back,
    random_state,
    restore_random_state,
    states_of,
)

READ_ONCE = "the loader is an iterator, which can be read once"
READ_ONCE_REMEDY = (
    "Give guard.batches() one with state_dict() and load_state_dict(), or one that is no iterator "
    "and begins anew each time"
)
COUNTS = ("_num_iter_calls", "iteration")  # Fabric's and Accelerate's loaders set epochs by them
AGAIN_S = 600.0  # of reading data again to go back, where it can only be counted
NOT_AGAIN = f"{READ_ONCE}. {READ_ONCE_REMEDY}"


class Mark(NamedTuple):
    """A loader's state when `read` items of the pass were read."""

    read: int
    state: Any
    generators: Tree


class Peeked(NamedTuple):
    """An item that was read to be compared, and the random numbers after it."""

    item: Any
    random: Tree
    generators: Tree


class Reading:
    """`number` counts the passes from 1; `read` the items that the loop got or passed by."""

    def __init__(
        self,
        loader: Any,
        number: int,
        point: Tree | None = None,
        shield: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Open the loader; `point`: where to go on, from a snapshot.

        `shield`: around what is the agent's own; None: its failures are raised.
        """
        self.loader, self.number, self.read = loader, number, 0
        self._shield = shield if shield is not None else nullcontext()
        self.generators: Generators = {}
        self.epochs: dict[str, int] = {}  # when it began
        with self._shield:
            self.generators = generators_in(loader)
        self.start: Tree | None = None  # of a loader without a state
        self.marks: list[Mark] = []
        self.ended, self.resumed = False, point is not None
        self.rest = 0  # items to be read past first
        self._then: Tree | None = None  # random numbers of the item behind them
        self._peeked: Peeked | None = None
        if point is None:
            self._begin()
        elif point.get("begins"):
            self._tell(point)
            self._begin_from(point)
        else:
            self._tell(point)
            self._then = point["random"] or random_state()
            self._go_back(point)
        with self._shield:
            self.epochs = epochs_of(loader)

    def _begin(self) -> None:
        if not has_state(self.loader):
            with self._shield:
                self.start = capture_start(self.loader, self.generators)
        self.iterator: Iterator[Any] = iter(self.loader)

    def _tell(self, point: Tree) -> None:
        with self._shield:
            if point.get("counted"):
                set_epochs(self.loader, {}, point["epoch"])
            for name, count in (point.get("start") or point).get("counts", {}).items():
                setattr(self.loader, name, count)

    def _begin_from(self, point: Tree) -> None:
        """A pass that had not begun when the snapshot was taken."""
        if point["random"] is not None:
            with self._shield:
                restore_random_state(point["random"])
        if point["kind"] == "state" and has_state(self.loader):
            self.loader.load_state_dict(copy.deepcopy(point["loader"]))
        with self._shield:
            put_back(self.generators, point["generators"])
        self._begin()

    def _go_back(self, point: Tree) -> None:
        if point["kind"] == "state" and has_state(self.loader):
            with self._shield:
                set_epochs(self.loader, point["epochs"])
            self.loader.load_state_dict(copy.deepcopy(point["loader"]))
            self.iterator = iter(self.loader)
            with self._shield:
                put_back(self.generators, point["generators"])
            self.rest = point["again"]
            self.read = point["read"] - self.rest
            self.marks = [Mark(self.read, point["loader"], point["generators"])]
            return
        self.rest, self.start = point["read"], point.get("start")
        if self.start is not None:
            with self._shield:
                restore_start(self.loader, self.generators, self.start)
        self.iterator = iter(self.loader)

    def peek(self) -> Any:
        """The next item, which `next` hands out once more."""
        if not self.rest and self._then is not None:
            restore_random_state(self._then)
        item = self._read()
        self._peeked = Peeked(item, random_state(), states_of(self.generators))
        return item

    def pass_by(self, see_first: Callable[[Any], None]) -> None:
        """Read what lies before the place to go on from, once; shows the first item of the pass."""
        then, self._then = self._then, None
        if then is None or (not self.rest and self._peeked is not None):
            return
        while self.rest:
            item = self.next()
            if self.read == 0:
                with self._shield:
                    see_first(item)
            self.rest -= 1
            self.read += 1
        with self._shield:
            restore_random_state(then)

    def next(self) -> Any:
        """The next item of the loader; who takes it counts it."""
        peeked, self._peeked = self._peeked, None
        if peeked is not None:
            with self._shield:
                restore_random_state(peeked.random)
                put_back(self.generators, peeked.generators)
            return peeked.item
        return self._read()

    def _read(self) -> Any:
        try:
            return next(self.iterator)
        except StopIteration:
            self.ended = True
            raise

    def read_past(self, items: int) -> None:
        """Read so many and hand out none."""
        for _ in range(items):
            self.next()
            self.read += 1

    def jump(self, position: int, items: int) -> None:
        """Go to `position`, `items` on, without reading what lies between."""
        self._peeked = None
        self.loader.skip_to(position)
        self.iterator = iter(self.loader)
        self.read += items
        self.marks.clear()  # what was jumped over was not read

    def mark(self, oldest: int) -> None:
        """Remember the loader's state; those that no item from `oldest` on needs are let go."""
        if has_state(self.loader):
            self.marks.append(self._mark())
            while len(self.marks) > 1 and self.marks[1].read <= oldest:
                del self.marks[0]

    def capture(self, read: int) -> Tree:
        """How to read on from the item before which `read` of the pass were read."""
        stateful = has_state(self.loader)
        if self.ended and read >= self.read:
            point = {"pass": self.number + 1, "read": 0, "begins": True}
            held = self._by(self._mark()) if stateful else {"kind": "count"}
            held |= {"counts": counts_of(self.loader), "epochs": epochs_of(self.loader)}
            return {"generators": states_of(self.generators), **held, **point}
        point = {"pass": self.number, "read": read}
        if not stateful:
            return {"kind": "count", "start": self.start, **point}
        mark = next((m for m in reversed(self.marks) if m.read <= read < self.read), None)
        mark = mark or self._mark()
        return {**self._by(mark), **point, "again": max(0, read - mark.read)}

    def _by(self, mark: Mark) -> Tree:
        epochs = epochs_of(self.loader)
        state = {"loader": mark.state, "generators": mark.generators}
        return {"kind": "state", "epochs": epochs, **state}

    def _mark(self) -> Mark:
        state = copy.deepcopy(self.loader.state_dict())
        return Mark(self.read, state, states_of(self.generators))


class Fetched(NamedTuple):
    """A position of which the loop has items, and the place in the data before them."""

    position: int
    reading: Reading
    read: int


@dataclass(slots=True)
class Cursor:
    """Where the loop stands in one loader."""

    loader: Any = None
    serial: int = 0  # which loader of the run it is
    taken_at: int = -1  # step
    position: int = 0  # the next one to be trained
    next: int = 0  # the position of the next item to be fetched
    micro: int = 0  # items of that position that were handed out
    handed: int = 0  # items
    left_over: int | None = None  # a position begun with the last items of a pass
    left: int = 0  # how many, until a step tells whether the next pass has the rest of it
    fetched: deque[Fetched] = field(default_factory=deque)  # and not trained
    reading: Reading | None = None
    rewind: Tree | None = None  # where to go on at the next item

    @property
    def passes(self) -> int:
        """How many were begun."""
        return self.reading.number if self.reading is not None else 0

    def copied(self) -> Cursor:
        return replace(self, fetched=self.fetched.copy())

    def count(self, item: Fetched, micro: int) -> bool:
        """The loop gets an item, of `micro` a position; whether a position is whole with it."""
        if not self.fetched:
            self.position = item.position
        if self.micro == 0 and item.position != self.left_over:
            self.fetched.append(item)
        item.reading.read += 1
        self.handed += 1
        self.micro += 1
        whole = self.micro >= micro
        if whole:
            self.next, self.micro = self.next + 1, 0
        return whole

    def across_passes(self, taken: int, micro: int) -> int:
        """A step took `taken` items since a pass ended within a position of `micro`: where those
        were the rest of it, what was fetched behind them belongs to later positions. Returns how
        many the step took."""
        left, first, reading = self.left, self.left_over, self.reading
        self.left = 0
        if taken != micro - left or first is None or reading is None:
            return taken
        self.handed += left
        items = left + reading.read  # of the position that was begun, and those behind it
        while self.fetched and self.fetched[-1].position > first:
            self.fetched.pop()
        for number in range(1, -(-items // micro)):
            self.fetched.append(Fetched(first + number, reading, number * micro - left))
        self.next, self.micro = first + items // micro, items % micro
        return micro

    def refusal(self, tree: Tree, in_epochs: bool) -> str | None:
        """Why the loader that the loop is in cannot go back to `tree`; None if it can."""
        if tree["kind"] == "state" and not has_state(self.loader):
            return "the loader has no load_state_dict()"
        if tree["loaders"] != self.serial:
            return (
                "the target lies in an earlier loader than the one given to guard.batches() last: "
                "give it the same loader in each pass"
            )
        assert self.reading is not None
        if tree["kind"] == "count" and tree["pass"] != self.reading.number and not in_epochs:
            return (
                "the target lies in an earlier pass over a loader that has no state_dict(), and a "
                "loop that counts its passes itself would make one too many: write `for epoch in "
                "guard.epochs(E)`, or guard.epochs() where the loop counts steps"
            )
        return None


def has_state(loader: Any) -> bool:
    """Whether it can say where it stands, and go back there; Accelerate's shows methods anyhow."""
    shows = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    return shows and bool(getattr(loader, "use_stateful_dataloader", True))


OTHER_REMEDY = (
    "Give it state_dict() and load_state_dict(), or keep its random generator in an attribute of "
    "loader, sampler or dataset. Settings.rollback_on_other_data=True goes back all the same"
)


def too_long(items: int, again_s: float) -> str | None:
    """Why `items` are not read again in about `again_s`; None if that may be."""
    if again_s <= AGAIN_S:
        return None
    return (
        f"reading {items} items again would take about {again_s:.0f} s, over "
        f"{AGAIN_S:g} s: give the loader state_dict() and load_state_dict()"
    )


# ---- what a pass begins with ---------------------------------------------------------------------


def capture_start(loader: Any, generators: Generators) -> Tree:
    """What a pass that begins now begins with."""
    return {
        "random": random_state(),
        "generators": states_of(generators),
        "epochs": epochs_of(loader),
        "counts": counts_of(loader),
        "running": getattr(loader, "_iterator", None) is not None and keeps_workers(loader),
    }


def restore_start(loader: Any, generators: Generators, start: Tree) -> None:
    """Have the next `iter(loader)` begin the pass that began with `start`."""
    set_epochs(loader, start.get("epochs", {}))
    if keeps_workers(loader):
        running = getattr(loader, "_iterator", None) is not None
        if running and not start["running"]:
            loader._iterator = None  # ends the workers: the next begin as the first did
        elif start["running"] and not running:
            iter(loader)
    put_back(generators, start.get("generators", {}))
    restore_random_state(start["random"])


def counts_of(loader: Any) -> dict[str, int]:
    """How many passes a framework's loader has counted."""
    held = {name: getattr(loader, "__dict__", {}).get(name) for name in COUNTS}
    return {name: count for name, count in held.items() if type(count) is int}


def epochs_of(loader: Any) -> dict[str, int]:
    """What those of its parts that have `set_epoch` are set to, where they say so."""
    epochs = {role: getattr(each, "epoch", None) for role, each in _told_epochs(loader)}
    return {role: epoch for role, epoch in epochs.items() if type(epoch) is int}


def set_epochs(loader: Any, epochs: Mapping[str, int], silent: int | None = None) -> None:
    """The same parts, back to what they were set to; to `silent` those that do not say."""
    said = epochs_of(loader)
    for role, each in _told_epochs(loader):
        epoch = epochs.get(role, said[role]) if role in said else silent
        if epoch is not None and epoch != said.get(role):
            each.set_epoch(epoch)


def tell_epoch(loader: Any, epoch: int, but: Mapping[str, int] | None = None) -> None:
    """Set all of them to `epoch`; not those that the loop has set itself since they were `but`."""
    now = epochs_of(loader)
    for role, each in _told_epochs(loader):
        if but is None or role not in now or now[role] == but.get(role, 0):
            each.set_epoch(epoch)


def is_earlier(loader: Any, point: Tree) -> bool:
    """Whether the loop has set a part of it to an epoch before that of `point`; says so. Never
    where the loader counts its passes itself, and once where the loop sets no other epoch."""
    saved = point.get("epochs") or (point.get("start") or {}).get("epochs", {})
    now = {} if counts_of(loader) else epochs_of(loader)
    # of a pass that was at its end, where the loop has counted with the passes
    over = point["pass"] - 2 if point.get("begins") else -1
    due = {role: epoch + (epoch == over) for role, epoch in saved.items()}
    early = [role for role in now if now[role] < due.get(role, 0)]
    if not early or point.get("asked") == now:
        return False
    point["asked"] = now
    log.warning(
        "epoch %d was trained before the restart, and the run goes on in epoch %d: guard.batches() "
        "has nothing to give in it. Write `for epoch in guard.epochs(E)`, so that the loop does "
        "nothing else in it either", now[early[0]], due[early[0]],
    )  # fmt: skip
    return True


def _told_epochs(loader: Any) -> Iterator[tuple[str, Any]]:
    batches = getattr(loader, "batch_sampler", None)
    parts = {
        "loader": loader,
        "sampler": getattr(loader, "sampler", None),
        "batch_sampler": batches,
        "batch_sampler.sampler": getattr(batches, "sampler", None),
        "dataset": getattr(loader, "dataset", None),
    }
    seen = set[int]()
    for role, each in parts.items():
        if callable(getattr(each, "set_epoch", None)) and id(each) not in seen:
            seen.add(id(each))
            yield role, each


def other_order(loader: Any, how: str) -> str:
    """What is said of a loader that gives other items, with the reason where one shows."""
    unseen = keeps_workers(loader) and "dataset" in dict(_told_epochs(loader))
    why = ", as workers that persist do not see its dataset's set_epoch()" if unseen else ""
    return f"the loader does not give the same items again{why}: {how}"


def keeps_workers(loader: Any) -> bool:
    """Whether a second `iter(loader)` takes the workers of the first."""
    return getattr(loader, "persistent_workers", False) is True
