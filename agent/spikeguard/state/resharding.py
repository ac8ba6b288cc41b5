"""A checkpoint that another number of ranks saved, as this rank is to hold it.

What those ranks held together lies in it by name and is read in the box that this rank holds now.
What each had for itself goes on where all had the same; where they had not, nobody can say which
is whose, and the checkpoint is refused. Apart from that: a rank that saved keeps its random numbers
and its loader's place, one that did not begins with its own numbers and with rank 0's place.
Invariants: nothing is guessed. Each rank compares its share of those that saved with rank 0, so all
are compared once. What a loader reads next with another number of ranks is the loader's to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spikeguard.faults import log
from spikeguard.state.dcp_files import fill, load_own
from spikeguard.state.lineage import Tree
from spikeguard.state.random_numbers import random_state
from spikeguard.state.replicated_parts import Box, Boxes, Reader, difference, joined

APART = {"random", "data", "learnt"}  # may differ between ranks; the agent's own is rank 0's


def load_resharded(folder: Path, ranks: Reader, boxes: Boxes) -> Tree:
    """This rank's state on the host; raise OSError or ValueError where it cannot be read."""
    first = load_own(folder, 0)
    if any((first.get("layouts") or {}).values()):
        raise ValueError(
            f"{_said(folder, ranks)}, and its optimizer keeps state that does not lie as the "
            f"parameters do: it goes on with {ranks.saved} ranks alone"
        )
    mine = first
    for saved in range(ranks.rank, ranks.saved, ranks.now):
        own = load_own(folder, saved) if saved else first
        _check_same(first, own, saved, folder, ranks)
        mine = own if saved == ranks.rank else mine
    tree = {**first, "random": random_state(), "data": {**first["data"], "first": None}}
    if ranks.rank < ranks.saved:
        tree |= {"random": mine["random"], "data": mine["data"]}

    def box_of(name: str, mark: Tree) -> Box:
        return boxes.box_of(name, tuple(mark["size"]))

    read = fill(folder, *joined(tree, box_of))
    if not ranks.rank:
        _tell(folder, ranks)
    return read


def _check_same(first: Tree, own: Tree, rank: int, folder: Path, ranks: Reader) -> None:
    for part in first.keys() - APART:
        place = difference(first[part], own.get(part), part)
        if place is not None:
            raise ValueError(
                f"{_said(folder, ranks)}, and {place} is not the same on ranks 0 and {rank}, so "
                f"it cannot be given to others: it goes on with {ranks.saved} ranks alone"
            )


def _tell(folder: Path, ranks: Reader) -> None:
    new = range(ranks.saved, ranks.now)
    log.warning(
        "%s: weights, moments and schedule are the same. The loader goes on at the position that "
        "it was at; which data that is with %d ranks is the loader's to say%s",
        _said(folder, ranks),
        ranks.now,
        f". Ranks {new.start} to {new.stop - 1} begin with random numbers of their own"
        if new
        else "",
    )


def _said(folder: Path, ranks: Reader) -> str:
    saved: Any = f"{ranks.saved} ranks" if ranks.saved > 1 else "one process"
    return f"{folder.name} was saved by {saved}, this job has {ranks.now}"
