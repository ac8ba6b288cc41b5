"""Whether the data can be read again from a target, looked at before anything is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spikeguard.data import pass_start
from spikeguard.data.fingerprints import Fingerprints, fingerprint
from spikeguard.data.reading import Cursor, Reading, has_state
from spikeguard.state.random_numbers import random_state, restore_random_state
from spikeguard.state.targets import Tree

OTHER_ORDER = "the loader does not give the same items again"
OTHER_REMEDY = (
    "Give it state_dict() and load_state_dict(), or keep its random generator in an attribute of "
    "loader, sampler or dataset. Settings.rollback_on_other_data=True goes back all the same"
)


@dataclass(frozen=True, slots=True)
class WayBack:
    """A reading that was opened at a target, and where the loop stood."""

    data: Tree  # of the target
    reading: Reading
    here: Tree | None  # the loop's place, where opening another reading leaves it; None: it stands
    held: list[tuple[Any, dict[str, Any]]]  # attributes of loader, sampler and dataset
    problem: str | None  # why the data are not those that lay there

    def put_back(self) -> Tree | None:
        """The run does not go back; returns what is to be taken up, None if the loop reads on.

        A state may not be all there is (a shuffle buffer), so the iterator that the loop has is
        kept wherever the attributes alone bring the loader back to the state that it had.
        """
        for owner, attributes in self.held:
            vars(owner).clear()
            vars(owner).update(attributes)
        loader = self.reading.loader
        if self.here is None or pass_start.keeps_workers(loader) or not has_state(loader):
            return self.here
        same = fingerprint(loader.state_dict()) == fingerprint(self.here["loader"])
        return None if same else self.here


def look_back(old: Reading, tree: Tree, random_numbers: Tree, seen: Fingerprints) -> WayBack:
    """Open the loader of `old` at `tree` and compare its first item with what was `seen`.

    All random numbers are put back. A loader with a state, or whose workers persist, has left the
    loop's place then: `here` says how to find it again.
    """
    loader: Any = old.loader
    numbers, states = random_state(), pass_start.states_of(old.generators)
    parts = (loader, *(getattr(loader, n, None) for n in ("dataset", "sampler", "batch_sampler")))
    held = [(each, dict(vars(each))) for each in parts if hasattr(each, "__dict__")]
    reading, problem = old, None
    here: Tree | None = None
    if has_state(loader) or pass_start.keeps_workers(loader):
        here = {**old.capture(old.read), "random": None}
    try:
        reading = Reading(loader, tree["pass"], {**tree, "random": random_numbers})
        key = reading.number, reading.read
        if seen.is_other(key, reading.peek()):
            problem = f"item {key[1]} of pass {key[0]} is another one now"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    finally:
        pass_start.put_back(old.generators, states)
        restore_random_state(numbers)
    return WayBack(tree, reading, here, held, problem)


def refusal_of(tree: Tree, at: Cursor, in_epochs: bool) -> str | None:
    """Why the loader that the loop is in cannot go back to `tree`; None if it can."""
    if tree["kind"] == "state" and not has_state(at.loader):
        return "the loader has no load_state_dict()"
    if tree["loaders"] != at.serial:
        return "the target lies in an earlier loader than the one given to guard.batches() last"
    assert at.reading is not None
    if tree["kind"] == "count" and tree["pass"] != at.reading.number and not in_epochs:
        return (
            "the target lies in an earlier pass over a loader that has no state_dict(), and the "
            "loop would make a pass too many: `for epoch in guard.epochs(E)` does not"
        )
    return None


def too_long(items: int, again_s: float, limit_s: float) -> str | None:
    """Why `items` are not read again in about `again_s`; None if that may be."""
    if again_s <= limit_s:
        return None
    return (
        f"reading {items} items again would take about {again_s:.0f} s, over replay_limit_s "
        f"({limit_s:g} s): give the loader state_dict() and load_state_dict()"
    )
