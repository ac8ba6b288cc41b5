"""What is remembered of a loader: positions that were fetched, and states to read again from."""

from __future__ import annotations

from typing import Any, NamedTuple

from spikeguard.state.targets import Tree

READ_ONCE = "the loader is an iterator, which can be read once"
READ_ONCE_REMEDY = (
    "Give guard.batches() one with state_dict() and load_state_dict(), or one that is no iterator "
    "and begins anew each time"
)
NOT_AGAIN = f"{READ_ONCE}. {READ_ONCE_REMEDY}"


class Fetched(NamedTuple):
    """A position of which the loop has items, and where the data stood before them."""

    position: int
    number: int  # of the pass
    read: int  # items of the pass
    random: Tree | None  # with which the pass began


class Mark(NamedTuple):
    """A loader's state, and how many items of which pass were read then."""

    number: int
    read: int
    state: Any


def lies_before(mark: Mark, item: Fetched | None) -> bool:
    """Whether `item` can be read again from `mark`; None: any."""
    return item is None or (mark.number, mark.read) <= (item.number, item.read)


def has_state(loader: Any) -> bool:
    """Whether it can say where it stands, and go back there."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def counts_of(feed: Any) -> dict[str, Any]:
    """Where a feed stands in its data, by its attributes' names."""
    return {**{name: getattr(feed, name) for name in _COUNTED}, "_fetched": feed._fetched.copy()}


_COUNTED = (
    *("steps", "position", "handed", "_loader", "_loaders", "_pass", "_read"),
    *("_next", "_micro", "_left_over", "_rewind"),
)
