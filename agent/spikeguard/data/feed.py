"""The data order: where the loop stands in it, what it leaves out, and how it goes back.

Position p is one optimizer step's batch, `micro_batches` items of the loader. A loader with
`state_dict` and `load_state_dict` is rewound by its state, any other re-iterable by beginning its
pass again (`reading`) and counting; an iterator without a state is read once. What is left out is
read past, unless the loader has `skip_to(position)`, and draws no random numbers of the job. A loop
may fetch items ahead of its steps, in a thread too; snapshots and checkpoints note the place before
them. A rollback waits until the loop has trained what it holds: the position that it has begun is
handed out whole, what follows is read from the target, and the run is put back after those steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import RLock, get_ident
from time import perf_counter
from typing import Any

from spikeguard.data.by_position import ByPosition
from spikeguard.data.fingerprints import Fingerprints, WayBack, had_before, look_back
from spikeguard.data.reading import (
    NOT_AGAIN,
    OTHER_REMEDY,
    Cursor,
    Fetched,
    Reading,
    has_state,
    is_earlier,
    other_order,
    tell_epoch,
    too_long,
)
from spikeguard.errors import ResumeError
from spikeguard.faults import Faults
from spikeguard.measure.batch_ring import KeptItems
from spikeguard.state.lineage import Skips, Tree
from spikeguard.state.random_numbers import random_state, restore_random_state
from spikeguard.state.replicated_parts import difference

MIXED = "items of two guard.batches() go into one step, and one of them is not rewound"
SETTLED = 3  # steps until a loop is said to fetch ahead


class DataFeed:
    """Hands micro-batches to the loop."""

    restarts = False  # whether going back takes a new attempt

    def __init__(self, skips: Skips, micro_batches: int) -> None:
        self.skips = skips
        self.in_use = self.stopped = self.in_epochs = False
        self.steps = 0  # made
        self.epoch = 0  # of `guard.epochs`
        self.ahead = 0  # items that were handed out before the step in front of theirs, about
        self.items_per_step: float | None = None  # where the loop takes other than `micro_batches`
        self.mixed = False  # the loop takes items of two loaders at once
        self.unusual = False  # the loop has shown something that nobody was told of
        self.alike = self.taken = 0  # steps in a row that took as many items, not micro_batches
        self.mark_every = 10  # positions, where the loop fetches ahead
        self.faults = Faults()
        self.items: KeptItems | None = None  # where somebody can name them
        self.fingerprints = Fingerprints()
        self.other_allowed = False  # whether a rollback may go on with other data
        self.other = ""  # what was found to be other data after the newest rollback
        self.micro_batches = micro_batches
        self._waited_s, self._waits = 0.0, 0  # for the loader, and for how many items
        self._at = Cursor()
        self._before: Cursor | None = None  # in the loader before this one
        self._open: object | None = None  # the iterator that is counted
        self._beside: list[list[int]] = []  # items of others that are open
        self._target: Tree | None = None  # that is read from after so many more positions:
        self._still_whole = 0
        self.counting = RLock()  # while it is held no other thread hands out an item
        self._handed_before = 0  # items, at the last step
        self._fetched_by: int | None = None  # which thread
        self._way_back: WayBack | None = None

    @property
    def position(self) -> int:
        """The next one to be trained."""
        return self._at.position

    @position.setter
    def position(self, position: int) -> None:
        """Before the first item, where the loop has set its data there itself."""
        self._at.position = self._at.next = position

    @property
    def handed(self) -> int:
        """Items that were handed out."""
        return self._at.handed

    def is_beside(self, loader: Iterable[Any]) -> bool:
        """Whether another loader's items are under way, so that those of `loader` do not count."""
        return self._open is not None and loader is not self._at.loader

    def take(self, loader: Iterable[Any]) -> None:
        """The loop's data come from `loader`; raises `ResumeError` where it cannot go on there."""
        if loader is not self._at.loader:
            if self._before is not None and self._at.taken_at == self.steps:
                self._at = self._before  # it was an evaluation: no step was made of it
                self.fingerprints.forget(self._at.passes + 1)
            self._before = self._at.copied()
            if loader is not self._at.loader:
                self._at.serial += 1
            self._at.loader, self._at.taken_at = loader, self.steps
        self.in_use = True
        if isinstance(loader, ByPosition):
            loader.micro_batches = self.micro_batches
        point = self._at.rewind
        if point is not None and point.get("pass", 1) > 1 and self.read_once:
            raise ResumeError(f"the run stands in pass {point['pass']}, and {NOT_AGAIN}")

    @property
    def read_once(self) -> bool:
        """Whether what was read of the loader is gone; asked of its type, since `iter` may act."""
        return isinstance(self._at.loader, Iterator) and not has_state(self._at.loader)

    @property
    def threaded(self) -> bool:
        """Whether another thread than this one, which makes the steps, fetches the items."""
        return self._fetched_by not in (None, get_ident())

    @property
    def _in_doubt(self) -> bool:
        """Whether more items than expected may rather be a wrong `micro_batches`, not told yet."""
        return self.alike >= SETTLED and self.taken > self.micro_batches and not self.threaded

    @property
    def held(self) -> int:
        """Positions of steps to come of which the loop has items."""
        return 0 if self._in_doubt else len(self._at.fetched)

    @property
    def unread(self) -> int:
        """The first position of which the loop has nothing."""
        return self._at.next + (self._at.micro > 0)

    def batches(self) -> Iterator[Any]:
        """Yield micro-batches until the loader, which was taken, ends or the run is stopped."""
        point = self._at.rewind
        if point is not None and self._is_over(point):
            return
        reading = self._opened() if point is None else None
        self._open = mine = object()
        handed = self._at.handed
        try:
            while not self.stopped:
                if self._at.rewind is not None or reading is None:
                    reading = self._reopened()
                at = self._at
                if at.micro == 0:
                    self._past_skips(reading)
                    if self.ahead and at.next % self.mark_every == 0:
                        self._mark(reading)
                item = Fetched(at.next, reading, reading.read)
                began = perf_counter()
                batch = reading.next()
                self._waited_s += perf_counter() - began
                self._waits += 1
                with self.counting:
                    if at.rewind is not None:  # while another thread fetched it
                        continue
                    with self.faults.shield("data"):
                        self._fetched_by = get_ident()
                        self._still_whole -= at.count(item, self.micro_batches)
                        if self.items is not None:
                            self.items.add(item.position, batch)
                        self.fingerprints.see((reading.number, item.read), batch)
                        if self._target is not None:
                            self._turn_back()
                yield batch
        except StopIteration:
            over = reading is not None and not reading.rest  # the pass was trained before a restart
            if point is not None and over and self._at.handed == handed:
                self._before = None  # then this was no evaluation
        finally:
            if self._open is mine:
                self._open = None

    def release(self) -> None:
        """Let go of the loader: its workers end once the loop does not hold it either."""
        self._at, self._before, self._way_back = Cursor(position=self.position), None, None

    def batches_beside(self, loader: Iterable[Any]) -> Iterator[Any]:
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

    def epochs(self, count: int) -> Iterator[int]:
        """The passes from the one that the run stands in; again those that it was taken back to."""
        self.in_epochs = True
        while self.epoch < count and not self.stopped:
            yield self.epoch
            if not self.in_use or (self._at.rewind is None and self._target is None):
                self.epoch += 1

    def finish_step(self) -> int:
        """The loop made a step of what it was given; returns the position that went into it."""
        self.steps += 1
        at = self._at
        taken = at.handed - self._handed_before
        done = at.fetched.popleft().position if at.fetched else at.position
        if at.left:
            with self.counting:
                taken = at.across_passes(taken, self.micro_batches)
        self._handed_before = at.handed
        if self._open is None and at.reading is not None and not at.fetched:
            at.reading.ended = True  # the loop has let go of the pass, and begins another
        if at.fetched or self._beside:
            self._finish_unusual(done, taken)
        elif taken == self.micro_batches:
            at.position, self.alike = done + 1, 0
        elif at.handed:
            self._finish_unusual(done, taken)
        else:  # the loop reads nothing through the guard
            at.position = at.next = done + 1
        self.fingerprints.settle()
        return done

    def _finish_unusual(self, done: int, taken: int) -> None:
        """The rest of a step for which the loop took more or fewer items, or had some before."""
        at = self._at
        self.alike = self.alike + 1 if taken == self.taken and self.alike else 1
        self.taken = taken
        if taken == self.micro_batches:
            self.alike = 0
        if self._beside and not self.mixed and any(items[0] for items in self._beside):
            self.mixed = self.unusual = True
        if self.items_per_step is not None:  # a position is a step, whatever went into it
            at.fetched.clear()
            at.position = at.next = done + 1
            at.micro = 0
        elif at.fetched:
            at.position = at.fetched[0].position
            whole = (len(at.fetched) - 1) * self.micro_batches
            ahead = whole + (at.micro or self.micro_batches)
            if ahead > 2 * self.ahead and self.steps >= SETTLED and not self._in_doubt:
                self.ahead, self.unusual = ahead, True
        else:
            if at.next <= done or at.micro:
                at.next, at.micro = done + 1, 0
            at.position = at.next

    def capture(self) -> Tree:
        """Where the data stands, for a snapshot."""
        at, reading = self._at, self._at.reading
        tree: Tree = {"position": at.position}
        ahead = self.held > 0
        if at.rewind is not None and not ahead and (self.in_use or not self.steps):
            point = {key: at.rewind[key] for key in at.rewind.keys() - {"random", "given"}}
        elif not self.in_use or reading is None:
            return {**tree, "kind": "none", "epoch": self.epoch}
        else:
            item = at.fetched[0] if ahead else Fetched(0, reading, reading.read)
            point = item.reading.capture(item.read)
        epoch = (self.epoch if self.in_epochs else point["pass"] - 1) + point.get("begins", False)
        place = {"loaders": at.serial, "firsts": dict(self.fingerprints.firsts)}
        return {**place, **point, **tree, "epoch": epoch, "counted": self.in_epochs}

    def _mark(self, reading: Reading) -> None:
        with self.faults.shield("data"):
            fetched = self._at.fetched
            oldest = fetched[0].read if fetched and fetched[0].reading is reading else -1
            reading.mark(oldest if fetched else reading.read)

    def refusal(self, tree: Tree) -> str | None:
        """Why the data cannot go back there from here; None if it can."""
        at = self._at
        if tree["kind"] == "none" or not self.in_use or at.reading is None:
            return "the loop does not take its data from guard.batches()"
        if self.mixed or self.read_once:
            return MIXED if self.mixed else NOT_AGAIN
        refused = at.refusal(tree, self.in_epochs)
        if refused is not None or tree["kind"] == "state":
            return refused
        again_s = tree["read"] * self._waited_s / max(self._waits, 1)
        return too_long(tree["read"], again_s)

    def prepare(self, tree: Tree, random_numbers: Tree) -> str | None:
        """Open the data at `tree` and compare the first item; why it is not what it was. What was
        opened is for `restore`, or goes by `cancel`. Beside another thread nothing is opened."""
        self.cancel()
        self.other, at = "", self._at
        lazy = tree.get("begins") or tree.get("again")  # its next item is not the one to compare
        if self.threaded or at.rewind is not None or at.reading is None or lazy:
            return None
        self._way_back = way = look_back(at.reading, tree, random_numbers, self.fingerprints)
        if way.problem is None:
            return None
        if self.other_allowed:
            self.other = other_order(self._at.loader, way.problem)
            return None
        self.cancel()
        return f"{other_order(self._at.loader, way.problem)}. {OTHER_REMEDY}"

    def cancel(self) -> None:
        """The run does not go back: read on where the loop stands."""
        prepared, self._way_back = self._way_back, None
        if prepared is not None:
            self._at.rewind = prepared.put_back() or self._at.rewind

    def go_back(self, tree: Tree, random_numbers: Tree, steps: int = 0) -> None:
        """The run stands at `tree` after `steps` more steps, at least those that are `held`.

        The loader is touched at the next batch, or was in `prepare`.
        """
        with self.counting:
            at = self._at
            self._still_whole = steps - len(at.fetched) + (at.micro > 0)
            self._target = {**tree, "random": random_numbers}
            if self._still_whole > 0:
                self.cancel()  # there is more to read where the loop stands
            if not steps:
                self.arrive()
            self._turn_back()

    def arrive(self) -> None:
        """The run stands at its target; a loop that did not fetch what it was to have goes on."""
        with self.counting:
            if self._target is not None:
                self._at.fetched.clear()
                self._at.micro = self._still_whole = 0
                self._turn_back()

    def _turn_back(self) -> None:
        """Read on at the target, where all was handed out that comes before."""
        at, point = self._at, self._target
        if point is None or self._still_whole > 0 or at.micro:
            return
        self._target = None
        at.next = point["position"]
        if not at.fetched:
            at.position = at.next
        self.epoch = point.get("epoch", 0)
        at.left_over = None
        self.fingerprints.differs = None
        if self.items is not None:
            self.items.clear()
        at.rewind = point if point["kind"] != "none" else None

    def found_other(self) -> str:
        """What was read again and was other data than the first time; once for a rollback."""
        key, self.fingerprints.differs = self.fingerprints.differs, None
        if key is None or self.other:
            return ""
        self.other = other_order(self._at.loader, f"item {key[1]} of pass {key[0]} was another one")
        return self.other

    def _opened(self) -> Reading:
        at = self._at
        before = at.reading
        if before is not None and at.fetched:
            broken_off = not before.ended and not self.threaded
            if broken_off or (self.steps == 0 and not before.resumed):  # it was looked at
                at.next = at.fetched[0].position
                at.fetched.clear()
                at.handed, at.micro = self._handed_before, 0
        at.left, at.left_over = 0, None
        if len(at.fetched) < 2:  # else the rest of the position is the beginning of this pass
            at.handed -= at.micro  # left of the pass before: they go into the next step
            at.left, at.left_over = at.micro, at.next if at.micro else None
            at.micro = 0
        self._tell_epoch()
        number, shield = before.number + 1 if before is not None else 1, self.faults.shield("data")
        reading = at.reading = Reading(at.loader, number, None, shield)
        self._mark(reading)
        return reading

    def _tell_epoch(self) -> None:
        """The pass that begins, to what of the loader the loop has not told itself."""
        at, before = self._at, self._at.reading
        if self.in_epochs:
            known = before.epochs if before is not None and before.loader is at.loader else {}
            with self.faults.shield("data"):
                tell_epoch(at.loader, self.epoch, known)

    def _reopened(self) -> Reading:
        at, prepared = self._at, self._way_back
        point, at.rewind, self._way_back = at.rewind, None, None
        assert point is not None
        if point.get("begins"):
            self._tell_epoch()
        number, shield = point.get("pass", 1), self.faults.shield("data")
        reading = prepared.reading if prepared else Reading(at.loader, number, point, shield)
        at.reading, at.serial = reading, point.get("loaders", at.serial)
        with shield:
            self.fingerprints.learn(point.get("firsts", {}))
            self.fingerprints.forget(reading.number + 1)  # shuffled by what training draws since
        reading.pass_by(lambda item: self.fingerprints.see((reading.number, 0), item))
        return reading

    def _is_over(self, point: Tree) -> bool:
        """Whether the loop, counting anew after a restart, asks for a pass that was trained."""
        if not self.steps and not self.in_epochs:
            with self.faults.shield("data"):
                return is_earlier(self._at.loader, point) or had_before(self._at.loader, point)
        return False

    def _past_skips(self, reading: Reading) -> None:
        at, end = self._at, self._at.next
        if self.skips.ranges:
            with self.faults.shield("data"):
                end = self.skips.end_of_skip(at.next)
        if end == at.next:
            return
        if not (reading.read or hasattr(at.loader, "skip_to")):
            reading.peek()  # draws what opens the pass, a shuffle's seed
        numbers = random_state()
        try:
            if hasattr(at.loader, "skip_to"):
                reading.jump(end, (end - at.next) * self.micro_batches)
                at.next = end
                self._mark(reading)
            while at.next < end:
                reading.read_past(self.micro_batches)
                at.next += 1
        finally:
            drawn = random_state()
            restore_random_state(numbers)
            with self.faults.shield("data"):
                if difference(numbers, drawn) is not None:  # later items are drawn by others now
                    self.fingerprints.forget(reading.number, reading.read)
