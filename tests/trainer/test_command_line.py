"""What the command line takes, says and leaves behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from spikeguard_trainer.options import parse_options
from spikeguard_trainer.steplog import COLUMNS

from . import jobs


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--steps", "0"], "--steps: takes 1 to"),
        (["--steps", "many"], "--steps: takes a whole number, got 'many'"),
        (["--beta2", "1"], "--beta2: takes 0 to 0.99999, got 1"),
        (["--fault", "meteor@3"], "--fault: 'meteor' is no fault; there are bad_batch"),
        (["--fault", "lr_bump"], "NAME@STEP"),
        (["--fault", "lr_bump@"], "NAME@STEP"),
        (["--fault", "lr_bump@5:"], "NAME@STEP"),
        (["--fault", "lr_bump@0"], "count from 1"),
        (["--fault", "lr_bump@5:0"], "count from 1"),
        (["--fault", "lr_bump@5:1:-2"], "factor on the learning rate) lies in [0, "),
        (["--fault", "bad_batch@5:1:2"], "lies in [0, 1], got 2"),
        (["--fault", "lr_bump@5:1:nan"], "lies in"),
        (["--fault", "lr_bump@5:1:much"], "STRENGTH is a number, got 'much'"),
        (["--fault", "bad_batch@rollback+5"], "batch positions: give a step, not rollback+N"),
        (["--preset", "huge"], "--preset: invalid choice: 'huge'"),
        (["--step-time", "-1"], "--step-time: takes 0 to 3600, got -1"),
    ],
)
def test_a_wrong_option_is_named_with_its_limit_and_ends_with_status_2(
    option: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--out", str(tmp_path), *option])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_leaves_a_row_for_every_step_and_a_summary(tmp_path: Path) -> None:
    said = jobs.run_process(tmp_path, "--steps", "12", "--run", "short", "--step-time", "0.02")
    rows = jobs.rows(tmp_path)
    assert list(rows[0]) == COLUMNS.split(",")
    assert [(int(r["step"]), int(r["position"])) for r in rows] == [(n + 1, n) for n in range(12)]
    ended = jobs.summary(tmp_path)
    assert (ended["run"], ended["steps"], ended["position"]) == ("short", 12, 12)
    assert (ended["trained_steps"], ended["rollbacks"]) == (12, 0)
    assert ended["seconds"] >= 12 * 0.02
    assert "step 12/12" in said
    assert "\r" not in said
    assert f"validation loss {ended['validation_loss']:.4f}" in said


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--run", "not a name"], "run"),
        (["--data", "nowhere"], "--data nowhere: there is no such file"),
        (["--batch", "7", "--micro-batches", "2"], "--batch 7: does not divide"),
    ],
)
def test_what_cannot_start_is_said_in_one_line_with_status_1(
    option: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert jobs.run(tmp_path, "--steps", "3", *option) == 1
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_run_that_is_held_trains_on_past_its_end_until_it_is_let_go(tmp_path: Path) -> None:
    hold, out = tmp_path / "hold", tmp_path / "run"
    hold.touch()

    def let_go() -> None:
        until = time.monotonic() + jobs.LIMIT_S
        while time.monotonic() < until and "\n7," not in _text(out / "log.csv"):
            time.sleep(0.02)
        hold.unlink()

    watcher = threading.Thread(target=let_go)
    watcher.start()
    assert jobs.run(out, "--steps", "4", "--warmup", "1", "--hold", str(hold), "--quiet") == 0
    watcher.join()
    rows = jobs.rows(out)
    assert [int(row["step"]) for row in rows][:7] == [1, 2, 3, 4, 5, 6, 7]
    assert len(rows) < 12
    assert float(rows[5]["lr"]) == float(rows[6]["lr"])


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
