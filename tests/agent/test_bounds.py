"""Every bound of memory and disk holds where it is overrun, and what went is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import spikeguard.data.skip_log
import spikeguard.state.checkpoints
import spikeguard.uplink.outbox
from spikeguard import CheckpointDirectory
from spikeguard.data.batch_names import Names
from spikeguard.data.skip_log import SkipLog
from spikeguard.data.skips import Skips
from spikeguard.faults import Faults
from spikeguard.loop.vote import PINS, Tally, Voter, Word
from spikeguard.state.progress import Progress
from spikeguard.state.targets import Target
from spikeguard.uplink.outbox import Outbox
from spikeguard_protocol import Medium, SegmentId, SegmentPoint

from .test_outbox import ATTEMPT, RESULT, RUN

LINE = 400  # bytes, of one entry at most


def left_out(folder: Path, entries: int) -> tuple[SkipLog, Faults]:
    faults = Faults()
    log = SkipLog(folder, 0, None, Progress(ATTEMPT), Skips(), faults)
    for position in range(entries):
        names = Names()
        names.add(f"doc-{position}")
        log.leave(position, names)
    log.close(5.0)
    return log, faults


def file_of_a_rank(folder: Path, patch: Callable[[object, str, int], None]) -> None:
    patch(spikeguard.data.skip_log, "FILE_BYTES", 2_000)
    patch(spikeguard.data.skip_log, "AT_ONCE", 2)
    _, faults = left_out(folder / "left_out", 100)
    (file,) = (folder / "left_out").glob("rank-*.jsonl")
    assert 2_000 < file.stat().st_size <= 2_000 + 2 * LINE
    assert faults.counts["left_out"] > 0


def what_waits_for_a_disk(folder: Path, patch: Callable[[object, str, int], None]) -> None:
    patch(spikeguard.data.skip_log, "WAITING", 10)
    (folder / "left_out").write_text("in the way")
    log, faults = left_out(folder / "left_out", 100)
    assert len(log._waiting) == 10
    assert faults.counts["left_out"] >= 90


def rare_records(folder: Path, patch: Callable[[object, str, int], None]) -> None:
    patch(spikeguard.uplink.outbox, "WAITING", 10)
    box = Outbox(folder / ATTEMPT, RUN, ATTEMPT, 2**20)
    for _ in range(100):
        box.put(RESULT)
    assert len(box._waiting) == 20
    assert box.keep_up()
    assert box.dropped == {"records": 80}
    box.close()


def protected_checkpoints(folder: Path, patch: Callable[[object, str, int], None]) -> None:
    patch(spikeguard.state.checkpoints, "MOST_PROTECTED", 2)
    directory = CheckpointDirectory(folder, keep=1, healthy_after=0)
    for step in range(1, 11):
        lineage = (SegmentPoint(SegmentId(ATTEMPT, 0), step),)
        target = Target(f"checkpoint-{step}", step, lineage, Medium.DISK)
        (folder / target.name).mkdir(parents=True)
        directory.write_manifest(target, 1)
    names = frozenset(target.name for target in directory.targets())
    gone = directory.superfluous((), names, 10)
    assert sorted(names - set(gone)) == ["checkpoint-10", "checkpoint-8", "checkpoint-9"]


@pytest.mark.parametrize(
    "overrun",
    [
        file_of_a_rank,
        what_waits_for_a_disk,
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
    assert Tally(None, vote, 2).word.pins == wanted[:PINS]
