"""What the run must never forget survives crashes at any byte, and is listed and undone by hand."""

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
from spikeguard_cli.main import main
from spikeguard_protocol import (
    BatchRange,
    CommandResult,
    Medium,
    ResultState,
    Rollback,
    RunId,
    ScaleLr,
    SegmentId,
    SegmentPoint,
    SkipBatches,
    to_json,
)
from tests.agent.job import Job, order, target_at

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


JOURNALLED = RunId("default", "test")


def commanded(folder: Path) -> Job:
    """A job that was ordered three things and a fourth that it refused, at step 60."""
    job = Job(folder).train_to(55)
    order(job, Rollback(target_at(job, 50, Medium.MEMORY), 50, BatchRange(52, 54)), 1)
    job.train_to(56)
    order(job, SkipBatches(BatchRange(70, 75)), 2)
    order(job, ScaleLr(0.5, 400), 3)
    order(job, ScaleLr(0.001, 400), 4)
    job.train_to(60)
    return job


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["journal", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["journal", *arguments]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("spikeguard: ")
    return said.err


def test_the_orders_of_a_run_are_listed_with_what_of_them_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commanded(tmp_path).guard.finish()
    before = {path: path.read_bytes() for path in (tmp_path / "guard").glob("*") if path.is_file()}
    said = shown(capsys, str(tmp_path))
    head, _, *rows = said.splitlines()
    assert head.startswith("run test, ")
    third, second, first = rows
    assert re.search(r"test#1\.3 +scale_lr\(factor=0\.5, steps=400\) +applied +learning rate x0\.5 "
                     r"until step 457", third)  # fmt: skip
    assert re.search(r"skip_batches\(batches=\[70, 75\)\) +applied +leaves out batches \[70, 75\)$",
                     second)  # fmt: skip
    assert "leaves out batches [52, 54); the steps after 50 of segment " in first
    plain = json.loads(shown(capsys, str(tmp_path), "--json"))
    assert [entry["command"] for entry in plain] == ["test#1.3", "test#1.2", "test#1.1"]
    assert plain[1]["holds"] == ["leaves out batches [70, 75)"]
    assert {path: path.read_bytes() for path in before} == before


def test_what_is_undone_holds_no_more_from_the_next_start_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the journal nor the checkpoint that was saved meanwhile brings it back."""
    job = commanded(tmp_path)
    job.train_to(76)  # a checkpoint at 75 holds the lowered rate
    job.guard.finish()
    for command in ("test#1.3", "test#1.2"):
        said = shown(capsys, str(tmp_path / "guard"), "--undo", command)
        assert f"{command} is undone from the next start" in said
    assert "was undone already" in shown(capsys, str(tmp_path), "--undo", "test#1.3")
    assert "nothing: undone by " in shown(capsys, str(tmp_path))
    again = Job(tmp_path)
    assert again.guard.resume() == 75
    assert again.guard.state().lr_scale is None
    assert again.guard.state().skipped == (BatchRange(52, 54),)
    again.guard.finish()


def test_a_job_that_runs_keeps_to_its_orders_and_its_journal_stays_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = commanded(tmp_path)
    said = shown(capsys, str(tmp_path), "--undo", "test#1.3")
    assert f"Attempt {job.guard.attempt} is running here: it goes on as it is" in said
    scale = job.guard.state().lr_scale
    assert scale is not None
    order(job, SkipBatches(BatchRange(90, 91)), 5)
    job.train_step()
    assert job.guard.state().lr_scale == scale
    job.guard.finish()
    assert "test#1.5" in shown(capsys, str(tmp_path))
    assert "is running" not in shown(capsys, str(tmp_path), "--undo", "test#1.5")
    again = Job(tmp_path)
    again.guard.resume()
    assert again.guard.state().lr_scale is None
    assert BatchRange(90, 91) not in again.guard.state().skipped
    again.guard.finish()


def test_what_cannot_be_undone_says_why_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path / "journal.jsonl", JOURNALLED)
    journal.begin(Begun("test#1.1", 3))
    journal.end(CommandResult("test#1.2", ResultState.REFUSED, "too\x1b[2J far", 4))
    folder = str(tmp_path)
    assert "holds no order 'test#9.9'. Its newest: test#1.1" in refused(
        capsys, folder, "--undo", "test#9.9"
    )
    assert r"test#1.2 was refused (too\x1b[2J far)" in refused(capsys, folder, "--undo", "test#1.2")
    assert "nothing to undo" in refused(capsys, folder, "--undo", "test#1.1")
    assert not (tmp_path / "undone.jsonl").exists()


def test_text_in_a_journal_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, JOURNALLED).begin(Begun("test#1.1", 3, BatchRange(5, 7)))
    control = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
    wicked = "ok\x1b[2J\r\u202eok\x9b1m"
    undo = {"entry": "undone", "command": "test#1.1", "at": 1.0, "by": wicked}
    path.with_name("undone.jsonl").write_text(json.dumps(undo) + "\n")
    for said in (shown(capsys, str(tmp_path)), shown(capsys, str(tmp_path), "--json")):
        assert control.search(said) is None
    assert r"ok\x1b[2J\r\u202eok\x9b1m" in shown(capsys, str(tmp_path))
    path.write_text(by_hand(path).replace('"test#1.1"', json.dumps(wicked)))
    said = refused(capsys, str(tmp_path))
    assert control.search(said) is None
    assert r"ok\x1b[2J\r\u202eok\x9b1m" in said


def test_a_journal_that_is_torn_damaged_or_anothers_is_told_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run/journal.jsonl"
    Journal(path, JOURNALLED).begin(Begun("test#1.1", 3, BatchRange(5, 7)))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"entry": "beg')
    assert main(["journal", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "leaves out batches [5, 7)" in said.out
    assert "1 line of" in said.err
    assert "cut short and count for nothing: 3" in said.err
    assert path.read_bytes() == whole + b'{"entry": "beg'
    path.write_bytes(whole.replace(b'"end": 7', b'"end": "x"'))
    assert re.search(
        r"line 2 of .* is damaged \(.*remove that line", refused(capsys, str(tmp_path))
    )
    path.write_bytes(b"[" * 100_000)
    assert "does not begin with the name of its run" in refused(capsys, str(tmp_path))
    path.write_bytes(whole)
    Journal(tmp_path / "other/journal.jsonl", RunId("default", "other"))
    assert "holds 2 runs: name one of" in refused(capsys, str(tmp_path))
    assert "is no directory" in refused(capsys, str(tmp_path / "nowhere"))
