"""`spikeguard replay`: what it reads, prints, draws and refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from spikeguard_cli.command import CommandFailed
from spikeguard_server.replay.command import REPLAY
from spikeguard_server.replay.reading import read_log_samples
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
    assert set(answer) == {"samples", "incidents", "precursors"}
    assert answer["samples"] == 600
    (incident,) = answer["incidents"]
    assert set(incident) == {
        "onset_step",
        "detected_step",
        "peak_step",
        "closed_step",
        "kind",
        "confidence",
        "pre_loss",
        "peak_loss",
        "signal",
        "first_moves",
        "causes",
    }
    assert incident["onset_step"] == 301
    assert incident["detected_step"] in (301, 302)
    assert incident["peak_step"] in range(301, 305)
    assert incident["kind"] == "recoverable"
    assert incident["pre_loss"] == pytest.approx(3.0, abs=0.05)
    assert incident["peak_loss"] == pytest.approx(5.0, abs=0.2)


def test_an_open_incident_has_no_closed_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = [*plateau(200), 5.0, 5.0, 5.0]
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n" + "\n".join(f"{n},{loss}" for n, loss in enumerate(losses)))
    run(REPLAY, str(path), "--json")
    (incident,) = json.loads(capsys.readouterr().out)["incidents"]
    assert incident["closed_step"] is None


def test_a_file_that_ends_in_nan_stays_valid_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n1,nan\n2,inf\n3,-inf\n4,NaN\n")
    run(REPLAY, str(path), "--json")
    (incident,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["incidents"]
    assert (incident["kind"], incident["peak_loss"]) == ("divergent", None)


def test_the_list_is_for_a_person(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(REPLAY, str(log))
    text = capsys.readouterr().out
    assert "600 samples, 1 incident" in text
    assert "recoverable" in text
    assert "began at step 301 in loss" in text
    assert "healed" in text


def test_the_plot_is_a_picture(log: Path, tmp_path: Path) -> None:
    picture = tmp_path / "out.png"
    run(REPLAY, str(log), "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


def test_a_plot_that_cannot_be_written_says_so(log: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="cannot be written"):
        run(REPLAY, str(log), "--plot", str(tmp_path / "no" / "folder.png"))


def test_blank_is_not_measured_and_nan_was(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,loss,grad_norm\n1,2.5,\n2,,0.3\n\n3,nan,inf\n")
    rows = read_log_samples(path)
    assert [row.step for row in rows] == [1, 2, 3]
    assert rows[0].values == {"loss": 2.5}
    assert rows[1].values == {"grad_norm": 0.3}
    assert math.isnan(rows[2].values["loss"])
    assert rows[2].values["grad_norm"] == math.inf


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "line 1: no column `step`"),
        ("step,lr\n1,2\n", "line 1: no column `loss` .found step, lr."),
        ("step," + "wide," * 100 + "\n", "no column `loss` .found step(, wide){19}.: name"),
        ("step,loss,loss\n1,2,3\n", "line 1: a column stands there twice"),
        ("step,loss\n1,2\n2,x\n", "line 3, column `loss`: 'x' is not a number"),
        ("step,loss\n1,2\n2\n", "line 3: 1 cells under 2 columns"),
        ("step,loss\n1.5,2\n", "line 2, column `step`: '1.5' is not a whole step"),
        ("step,loss\n-1,2\n", "line 2, column `step`: '-1' is not a whole step"),
        ("step,loss\nnan,2\n", "line 2, column `step`: 'nan' is not a whole step"),
        ("step,loss\n,2\n", "line 2, column `step`: '' is not a number"),
    ],
)
def test_a_bad_file_names_line_column_and_remedy(tmp_path: Path, body: str, words: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(body)
    with pytest.raises(CommandFailed, match=words):
        read_log_samples(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="no such file"):
        read_log_samples(tmp_path / "none.csv")


def test_a_binary_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(CommandFailed, match="cannot be read as CSV in UTF-8"):
        read_log_samples(path)
