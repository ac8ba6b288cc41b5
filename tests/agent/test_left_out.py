"""The server is told which documents were left out, and by whose order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from spikeguard import AttachError
from spikeguard.data.skips import LOOKED_AT, Names, SkipReport, Skips
from spikeguard.faults import Faults
from spikeguard.integrations.framework_loop import FrameworkFeed, LeavingOut
from spikeguard.state.lineage import Progress
from spikeguard_protocol import (
    MAX_NAME,
    MAX_NAMES,
    BatchesSkipped,
    BatchRange,
    Medium,
    Rollback,
    RunId,
)

from .heard import leave_out
from .job import Job, Loader, batch_at, order, target_at
from .wire import Wire, served

RUN = RunId("default", "test")
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


class Counted:
    """A loader without a state."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __iter__(self) -> Iterator[Tensor]:
        self.read.clear()
        for number in range(100):
            self.read.append(number)
            yield batch_at(number)

    def name(self, _: Tensor) -> str:
        return f"doc-{self.read[-1]}"


class Jumping(Loader):
    """Goes to a position at once."""

    def skip_to(self, position: int) -> None:
        self.read = position * self.micro_batches


class Telling(Jumping):
    """And knows what lies where."""

    def names_of(self, position: int) -> list[str]:
        if position == 24:
            raise LookupError("the index ends here")
        return [f"shard-{position}:0", f"shard-{position}:4096"]


def test_every_position_left_out_is_named_with_who_asked_and_when(
    tmp_path: Path, wire: Wire
) -> None:
    loader = Named()
    job = Job(tmp_path, loader=loader, name_batch=loader.name, server=wire.url)
    job.train_to(30)
    command = order(job, Rollback(target_at(job, 20, Medium.MEMORY), 20, SKIP))
    job.train_step()
    job.train_to(40)
    job.guard.finish()
    assert names(wire) == {(22, 23): ["doc-22"], (23, 24): ["doc-23"], (24, 25): ["doc-24"]}
    for told in wire.records(BatchesSkipped):
        assert (told.command, told.rank, told.names_cut) == (command, 0, 0)
        at = told.point
        assert (at.segment.attempt, at.segment.number, at.step) == (job.guard.attempt, 1, 22)
    assert job.guard.faults == {}


def test_a_loader_that_is_only_counted_is_named_too(wire: Wire) -> None:
    loader = Counted()
    skipping(wire, loader=loader, name_batch=loader.name)
    assert names(wire) == {(22, 23): ["doc-22"], (23, 24): ["doc-23"], (24, 25): ["doc-24"]}


def test_what_is_trained_on_is_never_shown_to_the_function(wire: Wire) -> None:
    loader, shown = Counted(), list[int]()

    def seen(_: Tensor) -> str:
        shown.append(loader.read[-1])
        return "seen"

    skipping(wire, loader=loader, name_batch=seen)
    assert shown == [22, 23, 24]


def test_a_loader_that_jumps_says_itself_what_lay_there(wire: Wire) -> None:
    """It is not read, so the function is shown nothing. What it does not know has no name."""
    job = skipping(wire, loader=Telling(), name_batch=lambda _: pytest.fail("nothing is read"))
    assert names(wire) == {
        (22, 23): ["shard-22:0", "shard-22:4096"],
        (23, 24): ["shard-23:0", "shard-23:4096"],
        (24, 25): [],
    }
    assert job.guard.faults == {"names_of": 1}


def test_without_names_the_positions_are_one_entry_for_each_command(wire: Wire) -> None:
    job = Job(server=wire.url, loader=Jumping())
    leave_out(job.guard, SKIP, "test#1.1")
    leave_out(job.guard, BatchRange(24, 28), "test#1.2")
    job.train_to(30)
    job.guard.finish()
    found = [(r.batches, r.command) for r in wire.records(BatchesSkipped)]
    assert found == [(SKIP, "test#1.1"), (BatchRange(25, 28), "test#1.2")]


def test_micro_batches_of_one_step_are_one_entry(wire: Wire) -> None:
    loader = Named()
    skipping(wire, micro_batches=2, loader=loader, name_batch=loader.name)
    assert names(wire)[22, 23] == ["doc-44", "doc-45"]


def test_a_function_that_fails_costs_the_names_and_nothing_else(wire: Wire) -> None:
    def fails(batch: Tensor) -> str:
        raise StopIteration if batch is None else RuntimeError("no such index")

    job = skipping(wire, name_batch=fails)
    assert (job.guard.steps, job.guard.position) == (30, 33)
    assert names(wire) == {(22, 25): []}
    assert job.guard.faults == {"name_batch": 3}


@pytest.mark.parametrize("given", [b"bytes", {"a": 1}, 2.5, [2.5], None])
def test_what_cannot_be_a_name_is_counted(wire: Wire, given: Any) -> None:
    job = skipping(wire, name_batch=lambda _: given)
    assert names(wire) == {(22, 25): []}
    assert job.guard.faults == {"name_batch": 3}


def test_names_are_bounded_and_what_is_cut_is_counted() -> None:
    several = Names()
    several.add(f"doc-{n}" for n in range(MAX_NAMES - 1))
    several.add(["x" * (MAX_NAME + 1), "one too many", "two too many"])
    assert (len(several.kept), len(several.kept[-1]), several.cut) == (MAX_NAMES, MAX_NAME, 3)
    endless = Names()
    endless.add(map(str, count()))
    assert (len(endless.kept), endless.cut) == (MAX_NAMES, LOOKED_AT - MAX_NAMES)
    numbers = Names()
    numbers.add(17)
    numbers.add((3, 4))
    assert numbers.kept == ["17", "3", "4"]


def test_a_function_that_is_none_is_refused_at_the_door(tmp_path: Path) -> None:
    with pytest.raises(AttachError, match=r"name_batch=\.\.\..*it is a str\. Give a function"):
        Job(tmp_path, name_batch="doc")


def test_data_that_ends_within_a_skip_is_told_as_far_as_it_was_read(wire: Wire) -> None:
    class Short(Counted):
        def __iter__(self) -> Iterator[Tensor]:
            for number, batch in enumerate(super().__iter__()):
                if number == 24:
                    return
                yield batch

    loader = Short()
    job = skipping(wire, loader=loader, name_batch=loader.name)
    assert job.guard.steps == 22
    assert names(wire) == {(22, 23): ["doc-22"], (23, 24): ["doc-23"]}


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
