"""Every bound of memory and disk holds where it is overrun, and what went is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import spikeguard.state.checkpoints
import spikeguard.uplink.outbox
from spikeguard import CheckpointDirectory
from spikeguard.loop.vote import Reduced, Voter, Word
from spikeguard.state.snapshots import PINNED
from spikeguard.state.targets import Target, target_name
from spikeguard.uplink.outbox import Outbox
from spikeguard_protocol import Medium, SegmentId, SegmentPoint

from .test_outbox import ATTEMPT, RESULT, RUN


def rare_records(folder: Path, patch: Callable[[object, str, int], None]) -> None:
    patch(spikeguard.uplink.outbox, "WAITING", 10)
    box = Outbox(folder / ATTEMPT, RUN, ATTEMPT, 2**20)
    for _ in range(100):
        box.put(RESULT)
    assert len(box._waiting) == 20
    box.keep_up()
    assert box.dropped == {"records": 80}
    box.close()


def protected_checkpoints(folder: Path, patch: Callable[[object, str, int], None]) -> None:
    patch(spikeguard.state.checkpoints, "MOST_PROTECTED", 2)
    directory = CheckpointDirectory(folder, keep=1, healthy_after=0)
    for step in range(1, 11):
        lineage = (SegmentPoint(SegmentId(ATTEMPT, 0), step),)
        name = target_name("checkpoint", step, lineage[-1].segment)
        target = Target(name, step, lineage, Medium.DISK)
        directory.claim(name)
        directory.write_manifest(target, 1, {})
    names = frozenset(target.name for target in directory.targets())
    gone = directory.superfluous((), names, 10)
    assert [t.step for t in directory.targets() if t.name not in gone] == [8, 9, 10]


@pytest.mark.parametrize(
    "overrun",
    [
        rare_records,
        protected_checkpoints,
    ],
)
def test_a_bound_that_is_overrun_holds_and_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrun: Callable[[Path, Callable[[object, str, int], None]], None],
) -> None:
    overrun(tmp_path, monkeypatch.setattr)


def test_of_several_ranks_so_many_snapshots_are_pinned_and_no_more() -> None:
    wanted = tuple((step, 1) for step in range(10, 60, 10))
    vote, _ = Voter(0, 2).vote(Word(pins=wanted), None)
    assert Reduced(None, vote, 2).word.pins == wanted[:PINNED]
