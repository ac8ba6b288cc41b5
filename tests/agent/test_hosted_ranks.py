"""A rollback by restart with several ranks: all end, go back and leave out the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from spikeguard.errors import EXIT_ROLL_BACK
from spikeguard_protocol import (
    AttemptStarted,
    CommandResult,
    ResultState,
    SegmentReason,
    SegmentStarted,
)

from .test_ranks import run_ranks
from .wire import Wire, served

pytestmark = pytest.mark.slow

JOB = Path(__file__).with_name("hosted_job.py")


def test_all_ranks_end_and_go_on_from_the_same_checkpoint_without_the_batches(
    tmp_path: Path,
) -> None:
    """Only rank 0 hears of it. Before, a bit flipped on rank 1; the restart makes them equal, bit
    for bit those of a job that never had the batches."""
    with served(Wire()) as wire:
        status, first = run_ranks(wire, tmp_path, 30, "flipped", JOB)
        assert status == EXIT_ROLL_BACK
        status, second = run_ranks(wire, tmp_path, 30, "", JOB)
        assert status == 0
        assert wire.column("replicas_apart")[0, 16] == 0.0
        started = wire.records(AttemptStarted)
        (segment,) = wire.records(SegmentStarted, wire.attempt)
        (result,) = wire.records(CommandResult)
    assert first[0]["ended"] == first[1]["ended"]
    assert "back to checkpoint-10" in first[0]["ended"]
    assert first[0]["steps"] == first[1]["steps"] < 25
    assert first[0]["weights"] != first[1]["weights"]
    for rank in second:
        assert (rank["from"], rank["steps"], rank["position"]) == (10, 30, 33)
        assert rank["read"] == [*range(10, 13), *range(16, 33)]
        assert rank["faults"] == {}
    assert second[0]["weights"] == second[1]["weights"]
    assert started[1].parent is not None
    assert (started[1].parent.step, started[1].world_size) == (10, 2)
    assert (segment.reason, segment.position) == (SegmentReason.RESUME, 10)
    assert (result.command, result.state) == ("test#1.1", ResultState.APPLIED)
    with served(Wire()) as wire:
        (tmp_path / "never").mkdir()
        never = run_ranks(wire, tmp_path / "never", 30, "without", JOB)[1]
    assert second[0]["weights"] == never[0]["weights"]
