"""The server is told which documents were left out, and by whose order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from spikeguard.data.skips import SkipReport, Skips
from spikeguard.faults import Faults
from spikeguard.integrations.framework_loop import FrameworkFeed, LeavingOut
from spikeguard.state.lineage import Progress
from spikeguard_protocol import (
    BatchesSkipped,
    BatchRange,
    Medium,
    Rollback,
)

from .heard import leave_out
from .job import Job, batch_at, target_at
from .test_exactness import Jumping
from .wire import Wire, await_that, served

SKIP = BatchRange(22, 25)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with served(Wire()) as wire:
        yield wire


def names(wire: Wire) -> dict[tuple[int, int], list[str]]:
    """[first, end) -> names, in the order in which they were told."""
    told = wire.records(BatchesSkipped)
    return {(r.batches.first, r.batches.end): list(r.names) for r in told}


def skipping(wire: Wire, skip: BatchRange = SKIP, **made: Any) -> Job:
    """A job that was told at its first step to leave `skip` out, trained to step 30 and ended."""
    job = Job(server=wire.url, **made)
    job.train_to(5)
    leave_out(job.guard, skip, "test#1.1")
    job.train_to(30)
    job.guard.finish()
    return job


class Named:
    """Micro-batches that know their number."""

    def __init__(self) -> None:
        self.read = 0
        self.batches: list[Tensor] = []

    def __iter__(self) -> Named:
        return self

    def __next__(self) -> Tensor:
        self.read += 1
        self.batches.append(batch_at(self.read - 1))
        return self.batches[-1]

    def name(self, batch: Tensor) -> str:
        """Of the item that was read last, and only of that one."""
        assert batch is self.batches[-1]
        return f"doc-{self.read - 1}"

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


def test_every_position_left_out_is_named_with_who_asked_and_when(
    tmp_path: Path, wire: Wire
) -> None:
    loader = Named()
    job = Job(tmp_path, loader=loader, name_batch=loader.name, server=wire.url)
    job.train_to(30)
    command = wire.order(Rollback(target_at(job, 20, Medium.MEMORY), 20, SKIP))
    job.train_step()
    await_that(lambda: job.guard.state().orders)
    job.train_step()
    job.train_to(40)
    job.guard.finish()
    assert names(wire) == {(22, 23): ["doc-22"], (23, 24): ["doc-23"], (24, 25): ["doc-24"]}
    for told in wire.records(BatchesSkipped):
        assert (told.command, told.rank, told.names_cut) == (command, 0, 0)
        at = told.point
        assert (at.segment.attempt, at.segment.number, at.step) == (job.guard.attempt, 1, 22)
    assert job.guard.faults == {}


def test_a_loader_that_jumps_is_shown_nothing_and_the_range_is_told(wire: Wire) -> None:
    job = skipping(wire, loader=Jumping(), name_batch=lambda _: pytest.fail("nothing is read"))
    assert names(wire) == {(22, 25): []}
    assert job.guard.faults == {}


@pytest.mark.parametrize("given", [b"bytes", {"a": 1}, 2.5, [2.5], None])
def test_what_cannot_be_a_name_is_counted(wire: Wire, given: Any) -> None:
    job = skipping(wire, name_batch=lambda _: given)
    assert names(wire) == {(22, 25): []}
    assert job.guard.faults == {"name_batch": 3}


# ---- loops whose iterator a framework owns -----------------------------------------------------


@pytest.mark.parametrize(
    ("position", "given"), [(1, [2, 3, 4, 5, *range(10, 16)]), (6, [*range(12, 16)])]
)
def test_a_frameworks_loop_names_what_it_leaves_out(position: int, given: list[int]) -> None:
    """A pass of 16 items, two a position; also where it resumes behind the skip."""
    skips, told = Skips([BatchRange(3, 5)]), list[BatchesSkipped]()
    skips.add(BatchRange(3, 5), "test#1.1")
    feed, faults = FrameworkFeed(skips, micro_batches=2), Faults()
    feed.position = position
    progress = Progress("0" * 16, steps=position)
    feed.skip_report = SkipReport(lambda item: f"doc-{item}", progress, skips, faults)
    assert list(LeavingOut(list(range(16)), lambda: feed)) == given
    feed.skip_report.begin(told.append)  # the attempt introduces itself with its first step
    assert [list(r.names) for r in told] == [["doc-6", "doc-7"], ["doc-8", "doc-9"]]
    assert {(r.command, r.point.step) for r in told} == {("test#1.1", position)}
    assert faults.counts == {}
