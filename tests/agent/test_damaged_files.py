"""A file of the agent's that is damaged ends no job, and what it held is never lost in silence."""

from __future__ import annotations

from argparse import Namespace

from benchmarks.fuzz_files import measure

CHANGES = 120  # `python -m benchmarks.fuzz_files` makes ten thousand


def test_whatever_happens_to_a_file_nothing_is_lost_in_silence() -> None:
    """The log, the journal and a whole run: bits flipped, cut, swapped, emptied,
    removed, and a disk that is full."""
    found = measure(Namespace(changes=CHANGES, seed=2))
    assert found["broken"] == []
    losses = {each["subject"]: each["with a loss"] for each in found["subjects"]}
    assert losses["log"] > 25
    assert losses["journal"] > 2
