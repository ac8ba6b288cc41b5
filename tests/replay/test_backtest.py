"""`spikeguard backtest`: one table over many logs, whatever some of them hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.commands import BACKTEST, REPLAY
from spikeguard_replay.reading import DEEPEST, logs_under
from tests.domain.detection.curves import plateau, spiked
from tests.hostile import HOSTILE, acted_on
from tests.replay.running import run


def curve(spike: float) -> list[float]:
    return spiked(plateau(500, seed=3), 300, spike, 15)


def csv_of(path: Path, spike: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (f"{n},{loss:.6f}\n" for n, loss in enumerate(curve(spike), start=1))
    path.write_text("step,loss\n" + "".join(rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three logs in two formats and depths, one torn file and one hidden one."""
    csv_of(tmp_path / "calm.csv", 0.0)
    csv_of(tmp_path / "old" / "spiky.csv", 2.0)
    lines = (json.dumps({"step": n, "loss": x}) for n, x in enumerate(curve(2.0), start=1))
    (tmp_path / "old" / "spiky.jsonl").write_text("\n".join(lines))
    (tmp_path / "torn.csv").write_text("step,loss\n1,2\n2,2\n3,2\n4,x\n")
    (tmp_path / ".hidden.csv").write_text("?")
    return tmp_path


@pytest.mark.slow
def test_every_log_is_counted_and_the_unreadable_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rate is 2 incidents in 1,500 steps, thus 13.3 in 10,000."""
    assert run(BACKTEST, str(folder), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["read"], told["unread"], told["rows"], told["incidents"]) == (3, 1, 1500, 2)
    assert told["alarms_per_10000_steps"] == pytest.approx(2 * 10_000 / 1500)
    assert [line["file"] for line in told["files"]] == [
        "calm.csv",
        "old/spiky.csv",
        "old/spiky.jsonl",
        "torn.csv",
    ]
    assert [line.get("incidents") for line in told["files"]] == [0, 1, 1, None]
    assert told["files"][1]["kinds"] == told["files"][2]["kinds"] == {"recoverable": 1}
    assert "line 5, column `loss`: 'x' is no number" in told["files"][3]["unread"]


@pytest.mark.slow
def test_the_table_is_for_a_person(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(BACKTEST, str(folder)) == 0
    out = capsys.readouterr()
    assert out.err == ""
    lines = out.out.splitlines()
    assert lines[0].split() == ["file", "rows", "incidents", "per", "10,000", "kinds"]
    assert lines[2].split() == ["old/spiky.csv", "500", "1", "20.00", "1", "recoverable"]
    assert lines[4].split()[:5] == ["3", "files", "1,500", "2", "13.33"]
    assert lines[5] == "not read: 1"
    assert lines[6].startswith("  torn.csv: line 5, column `loss`")


def test_names_of_files_and_columns_drive_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = HOSTILE["title"] + HOSTILE["screen"]
    (tmp_path / f"{hostile}.csv").write_text(f'"{hostile}\nFORGED",b\n1,2\n')
    (tmp_path / "a\nFORGED.csv").write_text("b\n")
    csv_of(tmp_path / "calm.csv", 0.0)
    assert run(BACKTEST, str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert acted_on(shown) == []
    assert "\nFORGED" not in shown


def test_folders_in_one_another_are_searched_so_deep_and_no_deeper(tmp_path: Path) -> None:
    """A thousand of them end a program that calls itself for each."""
    at = tmp_path
    for _ in range(DEEPEST + 5):
        (at / "log.csv").write_text("step,loss\n")
        at /= "d"
        at.mkdir()
    assert len(logs_under(tmp_path)) == DEEPEST + 1


def test_values_of_a_setting_stand_side_by_side_in_one_table_and_one_picture(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    png = tmp_path / "tried.png"
    deaf = ("--set", "lift_threshold=1e6", "--set", "slow_rise=1e6")
    words = (str(folder / "old"), "--set", "threshold=4,500", *deaf)
    assert run(BACKTEST, *words, "--plot", str(png)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "file", "rows", "threshold=4", "lift_threshold=1e+06", "slow_rise=1e+06",
        "threshold=500", "lift_threshold=1e+06", "slow_rise=1e+06",
    ]  # fmt: skip
    assert lines[1].split() == ["spiky.csv", "500", "1", "0"]
    assert lines[3].split() == ["2", "files", "1,000", "2", "0"]
    assert lines[4].split()[-2:] == ["20.00", "0.00"]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert run(BACKTEST, *words, "--json") == 0
    tried = json.loads(capsys.readouterr().out)["candidates"]
    assert [(one["set"]["threshold"], one["incidents"]) for one in tried] == [(4.0, 2), (500.0, 0)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "threshold"), "write NAME=VALUE"),
        (("--set", "threshold=4,x"), "write NAME=VALUE,VALUE,…, of numbers"),
        (("--set", "treshold=5"), "treshold: is no setting. Known: band, confirm_rows"),
        (("--set", "threshold=-1"), r"threshold: lies in \[2, 1000\] deviations"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_limit(
    folder: Path, words: tuple[str, ...], says: str
) -> None:
    for command, place in ((BACKTEST, folder), (REPLAY, folder / "calm.csv")):
        with pytest.raises(CommandFailed, match=says.replace(",VALUE,…", ".*")):
            run(command, str(place), *words)


def test_it_fails_only_where_nothing_could_be_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no log at all\n")
    assert run(BACKTEST, str(tmp_path)) == 1
    csv_of(tmp_path / "calm.csv", 0.0)
    assert run(BACKTEST, str(tmp_path)) == 0


def test_an_empty_or_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="no file in it"):
        run(BACKTEST, str(tmp_path))
    with pytest.raises(CommandFailed, match="cannot be searched: No such file"):
        run(BACKTEST, str(tmp_path / "nowhere"))
