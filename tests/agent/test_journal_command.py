"""What a run was ordered can be seen, and taken back, where there is no server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spikeguard.commands.journal import Begun, Journal
from spikeguard_cli.main import main
from spikeguard_protocol import (
    BatchRange,
    CommandResult,
    Medium,
    ResultState,
    Rollback,
    RunId,
    ScaleLr,
    SkipBatches,
)

from .job import Job, order, target_at
from .test_journal import by_hand

RUN = RunId("default", "test")


def commanded(folder: Path) -> Job:
    """A job that was ordered three things and a fourth that it refused, at step 60."""
    job = Job(folder)
    job.train_to(55)
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
    journal = Journal(tmp_path / "journal.jsonl", RUN)
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
    Journal(path, RUN).begin(Begun("test#1.1", 3, BatchRange(5, 7)))
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
    Journal(path, RUN).begin(Begun("test#1.1", 3, BatchRange(5, 7)))
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
