"""What the run must never forget survives crashes at any byte."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spikeguard.commands.journal import Begun, Journal, Scaling
from spikeguard.errors import AttachError
from spikeguard.optim.lr_scale import LrScale
from spikeguard.state.lineage import Abandonment, Lineage, abandoned_by_return, is_abandoned
from spikeguard_protocol import (
    BatchRange,
    CommandResult,
    ResultState,
    RunId,
    ScaleLr,
    SegmentId,
    SegmentPoint,
    to_json,
)

RUN = RunId("default", "test")
A0, A1, A2 = (SegmentId("a" * 16, number) for number in range(3))
B0 = SegmentId("b" * 16, 0)
RATE = LrScale(0.5, 40, 9)
DONE = CommandResult("test#1.1", ResultState.APPLIED, "back to 40", 60)


def written(path: Path) -> Journal:
    journal = Journal(path, RUN)
    journal.begin(Begun("test#1.1", 60, BatchRange(45, 50), (Abandonment(A0, 40),)))
    journal.end(DONE)
    return journal


def test_cut_at_any_byte_it_holds_what_was_whole(tmp_path: Path) -> None:
    """Nothing, or the intent (which a restart completes), or the result; never an error."""
    path = tmp_path / "journal.jsonl"
    written(path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        journal = Journal(path, RUN)
        begun = bool(journal.skips.ranges)
        assert begun == bool(journal.abandonments)
        assert [r.state for r in journal.unfinished()] in ([], [ResultState.APPLIED])
        journal.end(DONE)
        assert Journal(path, RUN).results == {"test#1.1": DONE}


def line(*points: tuple[SegmentId, int]) -> Lineage:
    return tuple(SegmentPoint(segment, step) for segment, step in points)


@pytest.mark.parametrize(
    ("lineage", "lost"),
    [
        (line((A0, 40)), False),  # the target itself
        (line((A0, 41)), True),
        (line((A0, 60), (A1, 61)), True),  # began after the target on the line that was left
        (line((A0, 40), (A2, 50)), False),  # the new line
        (line((A0, 40), (A2, 50), (B0, 90)), False),  # a later attempt on it
        (line((A0, 50), (B0, 75)), True),  # a sibling that began in the stretch that was left
        (line((A0, 30), (B0, 75)), False),  # a sibling that began before it
    ],
)
def test_what_a_rollback_leaves_behind(lineage: Lineage, lost: bool) -> None:
    """A0 trained to 60; A1 began there by a restart and was taken back to A0's step 40."""
    left = abandoned_by_return(line((A0, 60), (A1, 80)), line((A0, 40)))
    assert is_abandoned(lineage, left) is lost


def test_a_return_to_a_sibling_leaves_what_lies_between_the_forks() -> None:
    """A1 left A0 at 60, B0 at 40: back on B0, the steps 41 to 60 of A0 are no longer the run's."""
    left = abandoned_by_return(line((A0, 60), (A1, 80)), line((A0, 40), (B0, 55)))
    assert is_abandoned(line((A0, 50)), left)
    assert not is_abandoned(line((A0, 40)), left)
    assert not is_abandoned(line((A0, 40), (B0, 55)), left)


def test_overlapping_skips_are_passed_in_one_go(tmp_path: Path) -> None:
    skips = Journal(tmp_path / "journal.jsonl", RUN).skips
    for first, end in ((10, 15), (14, 20), (30, 31)):
        skips.add(BatchRange(first, end))
    assert [skips.end_of_skip(p) for p in (9, 10, 19, 20, 30)] == [9, 20, 20, 20, 31]


@contextmanager
def disk_full_at(size: int) -> Iterator[None]:
    """A write that would make a file longer than `size` bytes is cut short there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_entry_cut_short_by_a_full_disk_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, RUN)
    with disk_full_at(path.stat().st_size + 20), pytest.raises(OSError, match="No space left"):
        journal.begin(Begun("test#1.1", 60, BatchRange(1, 2)))
    journal.begin(Begun("test#1.2", 70, BatchRange(45, 50)))
    again = Journal(path, RUN)
    assert again.skips.ranges == journal.skips.ranges == [BatchRange(45, 50)]
    assert [each.command for each in again.unfinished()] == ["test#1.2"]


def by_hand(path: Path) -> str:
    """What the journal says, as a person writes it: without numbers and checksums."""
    return re.sub(r', "n": [0-9]+, "crc": "[0-9a-f]+"', "", path.read_text())


HOSTILE: tuple[Any, ...] = (None, 1, -1, 1.5, "x", [], {}, [1], [[]], True, float("inf"), 10**400)


def bent(value: Any) -> Iterator[Any]:
    """`value` with each of its parts left out, and with each replaced by something else."""
    if isinstance(value, dict):
        for key, held in value.items():
            yield {other: value[other] for other in value if other != key}
            yield from ({**value, key: put} for put in (*HOSTILE, *bent(held)))
    elif isinstance(value, list):
        for n, held in enumerate(value):
            yield value[:n] + value[n + 1 :]
            yield from ([*value[:n], put, *value[n + 1 :]] for put in (*HOSTILE, *bent(held)))


def test_a_line_that_is_bent_in_any_way_is_refused_by_its_number_or_harms_no_step(
    tmp_path: Path,
) -> None:
    """What it held is asked for in the loop, where nothing could refuse it any more."""
    path = tmp_path / "journal.jsonl"
    journal = written(path)
    journal.begin(
        Begun("test#1.2", 70, scaling=Scaling("test#1.2", line((A0, 40)), RATE, asked=True))
    )
    lines = [json.loads(held) for held in by_hand(path).splitlines()]
    lines[-1] |= {"attempt": "a" * 16, "action": to_json(ScaleLr(0.5, 40))}
    for n, whole in enumerate(lines):
        for put in bent(whole):
            path.write_text("".join(map(jsonl, [*lines[:n], put, *lines[n + 1 :]])))
            said = use(path)
            named = f"line {n + 1} of" in said and "or remove that line" in said
            assert not said or named or "the journal of run" in said


def use(path: Path) -> str:
    """Read the journal and ask it what a loop asks; what it was refused with, or nothing."""
    try:
        read = Journal(path, RUN)
    except AttachError as refused:
        return str(refused)
    for result in read.unfinished():
        to_json(result)
    Journal(None, RUN).adopt(read.shared())
    is_abandoned(line((A0, 45)), read.abandonments)
    read.scaling_since(None)
    read.skips.end_of_skip(46)
    return ""


def jsonl(entry: Any) -> str:
    return json.dumps(entry) + "\n"
