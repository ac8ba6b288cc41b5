"""`spikeguard replay`: what it prints, draws, follows and refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.commands import REPLAY
from tests.domain.detection.curves import plateau, spiked
from tests.replay.running import run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """400 steps with a spike at step 301 that heals, and a grad norm every second step."""
    losses = spiked(plateau(600), 300, 2.0, 15)
    rows = [f"{step},{loss},{0.3 if step % 2 else ''}" for step, loss in enumerate(losses, start=1)]
    path = tmp_path / "run.csv"
    path.write_text("step,loss,grad_norm\n" + "\n".join(rows) + "\n")
    return path


def test_json_is_exactly_one_object(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(REPLAY, str(log), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    told = "samples incidents precursors lone_values judged_from_step read"
    assert set(answer) == set(told.split())
    same = ("step", "loss", "grad_norm")
    assert answer["read"]["columns"] == dict(zip(same, same, strict=True))
    assert answer["samples"] == 600
    (incident,) = answer["incidents"]
    steps = "onset_step detected_step peak_step closed_step"
    others = "kind confidence pre_loss peak_loss signal first_moves recurrences causes"
    assert set(incident) == set(f"{steps} {others}".split())
    assert incident["onset_step"] == 301
    assert incident["detected_step"] in (301, 302)
    assert incident["peak_step"] in range(301, 305)
    assert incident["kind"] == "recoverable"
    assert incident["pre_loss"] == pytest.approx(3.0, abs=0.05)
    assert incident["peak_loss"] == pytest.approx(5.0, abs=0.2)


def test_a_file_that_ends_in_nan_stays_valid_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n1,nan\n2,inf\n3,-inf\n4,NaN\n")
    run(REPLAY, str(path), "--json")
    (incident,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["incidents"]
    assert (incident["kind"], incident["peak_loss"]) == ("divergent", None)


@pytest.mark.parametrize("broken", ["nan", "inf"])
def test_a_loss_that_was_not_finite_is_what_the_loss_went_to(
    broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.csv"
    rows = [f"{n},{2.5 + n % 7 / 100}" for n in range(1, 100)]
    rows[59] = f"60,{broken}"
    path.write_text("\n".join(["step,loss", *rows]) + "\n")
    run(REPLAY, str(path))
    text = capsys.readouterr().out
    assert re.search(f"loss went from 2.5[0-9]* to {broken} at step 60", text)
    assert "closed at step 80: healed" in text


def test_the_plot_is_a_picture(log: Path, tmp_path: Path) -> None:
    picture = tmp_path / "out.png"
    run(REPLAY, str(log), "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


def test_a_plot_that_cannot_be_written_says_so(log: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="cannot be written"):
        run(REPLAY, str(log), "--plot", str(tmp_path / "no" / "folder.png"))


def test_the_last_line_says_where_the_run_stands(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(REPLAY, str(log))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("at the end, step 600: loss ")
    assert last.endswith(", no incident open")
    (tmp_path / "cut.csv").write_text(log.read_text() + "601,9.9,0.4\n")
    run(REPLAY, str(tmp_path / "cut.csv"))
    assert "9.9, no incident open; it stands out by " in capsys.readouterr().out
    (path := tmp_path / "b.csv").write_text(log.read_text() + "601,nan,nan\n")
    run(REPLAY, str(path))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "at the end, step 601: loss nan, #2 open since step 601: divergent"
    blank = "".join(f"{step},,0.4\n" for step in range(601, 651))
    (path := tmp_path / "blank.csv").write_text(log.read_text() + blank)
    run(REPLAY, str(path))
    last = capsys.readouterr().out.splitlines()[-1]
    assert " at step 600, none since, no incident open" in last


def test_a_column_is_watched_without_a_policy_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward that falls at step 501, under a calm loss; a rise of it is no matter."""
    rows = zip(plateau(800, seed=3), plateau(800, seed=4), strict=True)
    lines = [f"{n},{a},{b - (2.0 if n > 500 else 0.0)}" for n, (a, b) in enumerate(rows, start=1)]
    (path := tmp_path / "a.csv").write_text("step,loss,reward\n" + "\n".join(lines))
    run(REPLAY, str(path), "--json")
    assert json.loads(capsys.readouterr().out)["incidents"] == []
    run(REPLAY, str(path), "--json", "--watch", "reward=up")
    assert json.loads(capsys.readouterr().out)["incidents"] == []
    run(REPLAY, str(path), "--json", "--watch", "reward=down")
    incident = json.loads(capsys.readouterr().out)["incidents"][0]
    assert (incident["signal"], incident["onset_step"]) == ("reward", 501)
    with pytest.raises(CommandFailed, match="write COLUMN=up, COLUMN=down or COLUMN=both"):
        run(REPLAY, str(path), "--watch", "reward")
    with pytest.raises(CommandFailed, match="no column `rewards` to watch"):
        run(REPLAY, str(path), "--watch", "rewards=down")


def program(*words: str) -> list[str]:
    """The command line in a process of its own."""
    return [sys.executable, "-m", "spikeguard_cli.main", *words]


@pytest.mark.slow
def test_a_pipe_is_followed_to_its_end(log: Path) -> None:
    """What is seen is printed while the log still grows: the spike before the last rows come."""
    following = subprocess.Popen(
        program("replay", "-", "--follow"), stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
    )
    assert following.stdin is not None
    assert following.stdout is not None
    text = log.read_text().splitlines(keepends=True)
    following.stdin.write("".join(text[:330]))
    following.stdin.flush()
    seen = ""
    while "began at step 301" not in seen:
        line = following.stdout.readline()
        assert line, seen
        seen += line
    assert "at the end" not in seen
    out, err = following.communicate("".join(text[330:]), timeout=120)
    assert out.splitlines()[-1].startswith("at the end, step 600: loss ")
    assert "closed at step" in out
    assert err.count("read as CSV") == 1
    assert following.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("named", ["growing.csv", "."])
def test_a_log_is_followed_until_interrupted(named: str, log: Path, tmp_path: Path) -> None:
    cells = [line.split(",") for line in log.read_text().splitlines()]
    text = [f"{step},{norm},{loss}\n" for step, loss, norm in cells]
    text[200] = "200,,25e-1\n"
    path = tmp_path / "growing.csv"
    path.write_text(text[0])
    following = subprocess.Popen(
        program("replay", str(tmp_path / named), "--follow"), stdout=PIPE, stderr=PIPE, text=True
    )
    assert following.stderr is not None
    path.write_text("".join(text[:200]) + "200,,25")  # the job is still writing
    assert "read as CSV" in following.stderr.readline()
    path.write_text("".join(text))
    assert following.stdout is not None
    seen = following.stdout.readline() + following.stdout.readline()
    assert "#1  recoverable" in seen
    following.send_signal(signal.SIGINT)
    out, _ = following.communicate(timeout=120)
    assert out.splitlines()[-1].startswith("at the end, step 600: loss ")
    assert following.returncode == 0
