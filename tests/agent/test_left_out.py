"""The run's directory and the server say which documents were left out, and by whose order."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from spikeguard import AttachError
from spikeguard.cli.run_ledger import read_ledger
from spikeguard.commands.journal import Journal
from spikeguard.data.batch_names import LOOKED_AT, Names
from spikeguard.data.line_files import sealed_line
from spikeguard.data.skip_log import SkipLog
from spikeguard.data.skipped import LeftOut
from spikeguard.data.skips import Skips
from spikeguard.faults import Faults
from spikeguard.integrations.framework_loop import FrameworkFeed, LeavingOut
from spikeguard.state.progress import Progress
from spikeguard.uplink.frames import Frame
from spikeguard.uplink.messages import records_of, texts_of
from spikeguard.uplink.shedding import Level, thinned
from spikeguard.uplink.skip_upload import SkipUpload
from spikeguard_cli.main import main as spikeguard
from spikeguard_protocol import (
    MAX_NAME,
    MAX_NAMES,
    BatchesSkipped,
    BatchRange,
    Medium,
    Record,
    Rollback,
    RunId,
    SegmentId,
    SegmentPoint,
    SkipBatches,
    encode,
)

from .forks import FORKS
from .job import Job, Loader, batch_at, order, target_at
from .left_out_job import POINTS, SKIP, Named, carried_out, main, make
from .test_journal import disk_full_at
from .test_ranks import run_ranks
from .wire import Wire, await_that, served

ROOM = 20  # bytes
RUN = RunId("default", "test")


def left_out(folder: Path) -> list[dict[str, Any]]:
    """What the ledger of a directory says was left out, in the order of the data."""
    found = [entry for entry in read_ledger(folder) if entry["kind"] == "batches"]
    return sorted(found, key=lambda entry: (entry["rank"], entry["batches"]))


def names(folder: Path) -> dict[tuple[int, int], list[str]]:
    """[first, end) -> names, of one rank."""
    return {tuple(entry["batches"]): entry["names"] for entry in left_out(folder)}


def skipping(folder: Path, skip: BatchRange = SKIP, **made: Any) -> Job:
    """A job that was told at its first step to leave `skip` out, trained to step 30 and ended."""
    job = Job(folder, **made)
    job.train_to(5)
    carried_out(job, SkipBatches(skip))
    job.train_to(30)
    job.guard.finish()
    return job


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


def test_every_position_left_out_is_named_with_who_asked_and_when(tmp_path: Path) -> None:
    loader = Named()
    job = Job(tmp_path, loader=loader, name_batch=loader.name)
    job.train_to(30)
    command = order(job, Rollback(target_at(job, 20, Medium.MEMORY), 20, SKIP))
    job.train_step()
    job.train_to(40)
    job.guard.finish()
    assert names(tmp_path) == {(22, 23): ["doc-22"], (23, 24): ["doc-23"], (24, 25): ["doc-24"]}
    for entry in left_out(tmp_path):
        assert (entry["command"], entry["rank"], entry["names_cut"]) == (command, 0, 0)
        where = (entry["attempt"], entry["segment"], entry["step"])
        assert where == (job.guard.attempt, 1, 22)
    assert job.guard.faults == {}


def test_a_loader_that_is_only_counted_is_named_too(tmp_path: Path) -> None:
    loader = Counted()
    skipping(tmp_path, loader=loader, name_batch=loader.name)
    assert names(tmp_path) == {(22, 23): ["doc-22"], (23, 24): ["doc-23"], (24, 25): ["doc-24"]}


def test_what_is_trained_on_is_never_shown_to_the_function(tmp_path: Path) -> None:
    loader, shown = Counted(), list[int]()

    def seen(_: Tensor) -> str:
        shown.append(loader.read[-1])
        return "seen"

    skipping(tmp_path, loader=loader, name_batch=seen)
    assert shown == [22, 23, 24]


def test_a_loader_that_jumps_says_itself_what_lay_there(tmp_path: Path) -> None:
    """It is not read, so the function is shown nothing. What it does not know has no name."""
    job = skipping(tmp_path, loader=Telling(), name_batch=lambda _: pytest.fail("nothing is read"))
    assert names(tmp_path) == {
        (22, 23): ["shard-22:0", "shard-22:4096"],
        (23, 24): ["shard-23:0", "shard-23:4096"],
        (24, 25): [],
    }
    assert job.guard.faults == {"names_of": 1}


def test_without_names_the_positions_are_one_entry_for_each_command(tmp_path: Path) -> None:
    job = Job(tmp_path, loader=Jumping())
    job.train_to(5)
    first = order(job, SkipBatches(SKIP), 1)
    second = order(job, SkipBatches(BatchRange(24, 28)), 2)
    job.train_to(30)
    job.guard.finish()
    found = [(entry["batches"], entry["command"]) for entry in left_out(tmp_path)]
    assert found == [([22, 25], first), ([25, 28], second)]


def test_micro_batches_of_one_step_are_one_entry(tmp_path: Path) -> None:
    loader = Named()
    skipping(tmp_path, micro_batches=2, loader=loader, name_batch=loader.name)
    assert names(tmp_path)[22, 23] == ["doc-44", "doc-45"]


def test_a_function_that_fails_costs_the_names_and_nothing_else(tmp_path: Path) -> None:
    def fails(batch: Tensor) -> str:
        raise StopIteration if batch is None else RuntimeError("no such index")

    job = skipping(tmp_path, name_batch=fails)
    assert (job.guard.steps, job.guard.position) == (30, 33)
    assert names(tmp_path) == {(22, 25): []}
    assert job.guard.faults == {"name_batch": 3}


@pytest.mark.parametrize("given", [b"bytes", {"a": 1}, 2.5, [2.5], None])
def test_what_cannot_be_a_name_is_counted(tmp_path: Path, given: Any) -> None:
    job = skipping(tmp_path, name_batch=lambda _: given)
    assert names(tmp_path) == {(22, 25): []}
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


def test_the_same_batches_left_out_again_are_one_entry(tmp_path: Path) -> None:
    loader = Named()
    job = Job(tmp_path, loader=loader, name_batch=loader.name)
    job.train_to(30)
    order(job, Rollback(target_at(job, 20, Medium.MEMORY), 20, SKIP), 1)
    job.train_step()
    job.train_to(30)
    order(job, Rollback(target_at(job, 20, Medium.MEMORY), 20, BatchRange(24, 26)), 2)
    job.train_step()
    job.train_to(30)
    job.guard.finish()
    lines = (tmp_path / "guard/left_out/rank-00000.jsonl").read_text().splitlines()
    assert len(lines) == 4
    commands = [entry["command"] for entry in left_out(tmp_path)]
    assert commands == ["test#1.1", "test#1.1", "test#1.1", "test#1.2"]


def test_data_that_ends_within_a_skip_is_told_as_far_as_it_was_read(tmp_path: Path) -> None:
    loader = Counted()
    job = skipping(
        tmp_path, BatchRange(98, 200), loader=loader, name_batch=loader.name, micro_batches=1
    )
    assert job.guard.steps == 30
    job = skipping(tmp_path / "short", BatchRange(20, 200), loader=ends_at(22), name_batch=str)
    assert job.guard.steps == 20
    assert list(names(tmp_path / "short")) == [(20, 21), (21, 22)]


def ends_at(number: int) -> list[Any]:
    return [batch_at(n) for n in range(number)]


def test_a_full_disk_is_counted_and_the_server_hears_all_the_same(tmp_path: Path) -> None:
    """The loop goes on, the entries wait for room."""
    loader = Named()
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url, loader=loader, name_batch=loader.name)
        job.train_to(5)
        carried_out(job, SkipBatches(SKIP))
        job.train_to(20)
        with disk_full_at(ROOM):
            job.train_to(30)
            await_that(lambda: job.guard.faults.get("left_out"))
        await_that(lambda: len(wire.records(BatchesSkipped)) == 3)
        assert not (tmp_path / "guard/left_out/rank-00000.jsonl").read_bytes()
        job.guard.finish()
    assert job.guard.position == 33
    assert [entry["names"] for entry in left_out(tmp_path)] == [["doc-22"], ["doc-23"], ["doc-24"]]


def test_the_server_hears_each_entry_once_from_the_attempt_that_made_it(tmp_path: Path) -> None:
    loader = Named()
    with served(Wire()) as wire:
        job = skipping(tmp_path, server=wire.url, loader=loader, name_batch=loader.name)
        told = wire.records(BatchesSkipped)
        make_again = Job(tmp_path, server=wire.url)
        make_again.train_to(3)
        make_again.guard.finish()
        assert wire.records(BatchesSkipped) == told
    assert [(r.batches.first, r.names) for r in told] == [
        (22, ("doc-22",)), (23, ("doc-23",)), (24, ("doc-24",)),
    ]  # fmt: skip
    assert {r.point.segment.attempt for r in told} == {job.guard.attempt}
    assert {(r.rank, r.command, r.point.step) for r in told} == {(0, "test#1.1", 22)}


@pytest.mark.slow
@pytest.mark.parametrize("point", list(POINTS))
def test_killed_anywhere_between_skip_and_report_nothing_is_lost_or_told_twice(
    tmp_path: Path, point: str
) -> None:
    """A restart from a checkpoint behind the skip does not see the batches again."""
    with served(Wire()) as wire:
        killed = FORKS.Process(target=main, args=(str(tmp_path), wire.url, point))
        killed.start()
        killed.join(30)
        if killed.exitcode is None:
            killed.kill()
            pytest.fail("it was not killed")
        assert killed.exitcode == -signal.SIGKILL
        again = make(tmp_path, wire.url)
        resumed = again.guard.resume()
        assert resumed == 25 or (resumed == 20 and point != "the disk hangs")
        again.train_to(30)
        again.guard.finish()
        told = {(r.rank, r.batches.first): r.names for r in wire.records(BatchesSkipped)}
    assert told == {(0, n): (f"doc-{n}",) for n in (22, 23, 24)}
    assert names(tmp_path) == {(n, n + 1): [f"doc-{n}"] for n in (22, 23, 24)}
    # A heartbeat that was on its way has taken a number: the server asks for it and hears of a gap.
    assert again.guard.faults in ({}, {"server (resume_from)": 1})


@pytest.mark.slow
def test_every_rank_writes_its_own_and_the_server_hears_of_all(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = Path(__file__).with_name("left_out_job.py")
        status, seen = run_ranks(wire, tmp_path, 30, job=job)
        told = {(r.rank, r.batches.first): r.names for r in wire.records(BatchesSkipped)}
    assert (status, seen) == (0, [{"faults": 0}, {"faults": 0}])
    expected = {(k, n): (f"rank-{k}", f"doc-{n}") for k in (0, 1) for n in (22, 23, 24)}
    assert told == expected
    found = left_out(tmp_path / "guard")
    assert {(e["rank"], e["batches"][0]): tuple(e["names"]) for e in found} == expected
    assert {entry["command"] for entry in found} == {"test#1.1"}


def test_in_a_full_outbox_they_go_with_the_word_of_checkpoints_and_are_counted() -> None:
    """The run's directory has them all the same."""
    record = BatchesSkipped(SKIP, 0, SegmentPoint(SegmentId("0" * 16, 0), 22))
    (text,) = texts_of(record)
    frame = Frame(text.kind, 1, 1, 0, 0, 0.0, text.payload)
    assert records_of(thinned([frame], Level.NO_SAMPLES)[0]) == [encode(record)]
    kept, lost = thinned([frame], Level.ESSENTIAL)
    assert (records_of(kept), lost) == ([], {"notices": 1})


def test_what_is_told_comes_a_little_at_a_time_and_all_of_it_at_the_end(tmp_path: Path) -> None:
    """Samples wait in the same line: however often it is woken, a second brings one part."""
    entry = LeftOut(BatchesSkipped(SKIP, 0, SegmentPoint(SegmentId("0" * 16, 0), 22)), 0.0)
    ranks = [replace(entry, record=replace(entry.record, rank=n)) for n in range(3_000)]
    lines = [sealed_line(each.plain(), n, "rank-00000.jsonl") for n, each in enumerate(ranks, 1)]
    (tmp_path / "rank-00000.jsonl").write_bytes(b"".join(lines))
    told = list[Record]()
    skip_upload = SkipUpload(tmp_path, told.append, lambda: True, lingers=False)
    for _ in range(5):
        assert 0.0 < (skip_upload.look() or 0.0) <= 1.0
    assert 500 < len(told) < 2_000
    assert not (tmp_path / "told.json").exists()  # the outbox may not have written it down
    skip_upload.finish(time.monotonic() + 5.0)
    skip_upload.confirm()
    assert [record.rank for record in told if isinstance(record, BatchesSkipped)] == [*range(3_000)]
    again = SkipUpload(tmp_path, told.append, lambda: True, lingers=False)
    assert again.look() is None
    assert len(told) == 3_000


# ---- loops whose iterator a framework owns -----------------------------------------------------


def hosted(folder: Path, position: int) -> list[int]:
    """Hand out the items of a pass of 16, from `position` on; two a position."""
    ledger, shown = Skips(), list[int]()
    ledger.add(BatchRange(3, 5), "test#1.1")
    feed = FrameworkFeed(ledger, micro_batches=2)
    feed.position = position
    faults, progress = Faults(), Progress("0" * 16, steps=position)

    def name(item: int) -> str:
        shown.append(item)
        return f"doc-{item}"

    feed.left_out = SkipLog(folder / "left_out", 0, name, progress, ledger, faults)
    given = list(LeavingOut(list(range(16)), lambda: feed))
    feed.left_out.close(5.0)
    assert faults.counts == {}
    assert shown == [6, 7, 8, 9]
    return given


def test_a_frameworks_loop_names_what_it_leaves_out(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.jsonl", RUN)
    assert hosted(tmp_path, 1) == [2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
    assert names(tmp_path) == {(3, 4): ["doc-6", "doc-7"], (4, 5): ["doc-8", "doc-9"]}
    assert [entry["step"] for entry in left_out(tmp_path)] == [1, 1]


def test_a_frameworks_loop_names_it_at_the_restart_where_the_attempt_before_could_not(
    tmp_path: Path,
) -> None:
    """It resumes behind the skip and reads past everything before: once known, nothing is added."""
    Journal(tmp_path / "journal.jsonl", RUN)
    for _ in range(2):
        assert hosted(tmp_path, 6) == [12, 13, 14, 15]
        assert [entry["names"] for entry in left_out(tmp_path)] == [
            ["doc-6", "doc-7"], ["doc-8", "doc-9"],
        ]  # fmt: skip
    assert len((tmp_path / "left_out/rank-00000.jsonl").read_bytes().splitlines()) == 2


# ---- the ledger of a directory -----------------------------------------------------------------


def test_a_directory_is_exported_as_lines_of_json_and_as_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands with what they came to, and every position; newest first, from the journal alone."""
    loader = Named()
    job = Job(tmp_path, loader=loader, name_batch=loader.name)
    job.train_to(5)
    order(job, SkipBatches(BatchRange(2, 4)), 1)  # read already
    job.train_to(6)
    order(job, SkipBatches(SKIP), 2)
    job.train_to(30)
    job.guard.finish()
    capsys.readouterr()
    assert spikeguard(["ledger", str(tmp_path), "--jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == [*repeat("batches", 3), "command", "command"]
    done, refused = lines[3:]
    assert (done["command"], done["verb"], done["state"]) == ("test#1.2", "skip_batches", "applied")
    assert (done["step"], done["arguments"]) == (7, {"batches": [22, 25]})
    assert (done["attempt"], done["result"]) == (job.guard.attempt, "will leave out [22, 25)")
    assert (refused["command"], refused["verb"], refused["state"]) == (
        "test#1.1", "skip_batches", "refused",
    )  # fmt: skip
    assert done["at"] <= done["finished_at"] <= lines[2]["at"]
    assert spikeguard(["ledger", str(tmp_path), "--csv"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("kind,at,command,")
    assert rows[0].endswith(',24,25,0,"[""doc-24""]",0')
    assert spikeguard(["ledger", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "left out batch 22" in shown
    assert "doc-22" in shown


def test_a_torn_last_line_is_as_if_never_written_and_swallows_nothing(tmp_path: Path) -> None:
    loader = Named()
    skipping(tmp_path, loader=loader, name_batch=loader.name)
    file = tmp_path / "guard/left_out/rank-00000.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])
    assert list(names(tmp_path)) == [(22, 23), (23, 24)]
    loader = Named()
    skipping(tmp_path, loader=loader, name_batch=loader.name)  # anew, from the beginning
    assert list(names(tmp_path)) == [(22, 23), (23, 24), (24, 25)]


def test_a_directory_above_several_runs_or_without_one_says_what_to_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spikeguard(["ledger", str(tmp_path)]) == 1
    assert "holds no run" in capsys.readouterr().err
    for name in ("one", "two"):
        Journal(tmp_path / name / "journal.jsonl", RUN)
    assert spikeguard(["ledger", str(tmp_path)]) == 1
    assert "holds 2 runs: name one of" in capsys.readouterr().err
    assert spikeguard(["ledger", str(tmp_path / "three" / "deep")]) == 1
    assert "there is no directory" in capsys.readouterr().err
