"""What a policy would have done on a log, and on a folder of them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from spikeguard_cli.command import CommandFailed
from spikeguard_core.detection.sample import Sample
from spikeguard_core.policy.settings import DEFAULT_POLICY
from spikeguard_replay.advice import advise
from spikeguard_replay.commands import BACKTEST, REPLAY
from spikeguard_replay.reading import logs_under
from tests.domain.detection.curves import plateau, samples, spiked
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
    files = [line["file"] for line in told["files"]]
    assert files == ["calm.csv", "old/spiky.csv", "old/spiky.jsonl", "torn.csv"]
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


def test_folders_in_one_another_are_searched_however_deep(tmp_path: Path) -> None:
    at = tmp_path
    for _ in range(99):
        (at / "log.csv").write_text("step,loss\n")
        at /= "d"
        at.mkdir()
    assert len(logs_under(tmp_path)) == 99


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
    curve = np.array([0x26, 0x46, 0x53]) / 255
    drawn = np.abs(imread(png)[..., :3] - curve).max(axis=2) < 0.02
    assert all(half.any() for half in np.array_split(drawn, 2, axis=1))
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
    with pytest.raises(FileNotFoundError, match="No such file"):
        run(BACKTEST, str(tmp_path / "nowhere"))


ONSET = 2_001


def diverging() -> list[Sample]:
    """A run that climbs by 0.05 nats a step from step 2001 on and never comes back."""
    losses = enumerate(plateau(2_200, seed=3), start=1)
    return samples([loss + (n >= ONSET) * (1.0 + 0.05 * (n - ONSET)) for n, loss in losses])


def healing() -> list[Sample]:
    return samples(spiked(plateau(2_600, seed=3), ONSET - 1, 2.0, 15))


def proposed(samples: list[Sample], *assumed: Any) -> Any:
    """The commands over `samples`, with `assumed` steps between checkpoints and seconds a step."""
    return advise(samples, DEFAULT_POLICY, *assumed)["proposals"]


def test_a_divergence_would_have_been_rolled_back_to_before_it() -> None:
    *early, one = proposed(diverging(), 300, 2.0)
    assert {before["verb"] for before in early} <= {"watch"}
    assert (one["verb"], one["arguments"]["step"]) == ("rollback", 1_800)
    assert one["step"] >= ONSET + DEFAULT_POLICY.patience_steps
    assert one["cost"]["steps"] == one["step"] - 1_800
    assert one["cost"]["seconds"] == 2.0 * one["cost"]["steps"]


def test_without_a_checkpoint_there_is_no_way_back() -> None:
    verbs = {one["verb"] for one in proposed(diverging(), 0)}
    assert "rollback" not in verbs
    assert "scale_lr" in verbs


def test_a_spike_that_heals_is_watched_and_never_rolled_back() -> None:
    assert {one["verb"] for one in proposed(healing(), 300)} <= {"watch"}


def test_a_watch_is_told_once_however_far_the_rows_of_a_log_lie_apart() -> None:
    sparse = [Sample(1_000 * one.step, one.values) for one in healing()]
    assert [one["verb"] for one in proposed(sparse)].count("watch") == 1


def test_of_a_loss_that_swings_a_command_is_told_again_only_after_another() -> None:
    rows = np.arange(1_000)
    swing = np.minimum(1.2, (rows - 499).clip(0) / 150) * np.abs(np.sin(np.pi * (rows - 499) / 60))
    noise = np.random.default_rng(59).normal(0.0, 0.02, len(rows))
    losses = 2.0 + 9.0 * (rows + 3.0) ** -0.3 + noise + swing
    samples = [Sample(n, {"loss": float(loss)}) for n, loss in enumerate(losses, start=1)]
    told = [one["verb"] for one in proposed(samples)]
    assert "scale_lr" in told
    assert all(one != other for one, other in pairwise(told))


@pytest.mark.parametrize("apart", [1, 10, 1_000])
def test_a_skip_reaches_back_to_the_row_before_the_cause_or_there_is_none(apart: int) -> None:
    sparse = [Sample(apart * one.step, one.values) for one in diverging()]
    told = proposed(sparse, 300 * apart)
    skip = next(one["arguments"].get("skip") for one in told if one["verb"] == "rollback")
    if apart == 1_000:
        assert skip is None
    else:
        assert skip[0] <= apart * (ONSET - 1) < skip[1]


def test_the_pace_is_read_from_the_log_where_it_stands_there() -> None:
    samples = [Sample(one.step, {**one.values, "step_time": 0.5}) for one in diverging()]
    cost = proposed(samples, 300)[-1]["cost"]
    assert cost["steps"] > 0
    assert cost["seconds"] == 0.5 * cost["steps"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = (f"{one.step},{one.values['loss']:.6f}\n" for one in diverging())
    (tmp_path / "run.csv").write_text("step,loss\n" + "".join(rows))
    return tmp_path / "run.csv"


def test_a_policy_file_and_a_price_say_what_it_would_have_cost(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """36 of a currency an hour at 2 s a step are 0.02 a step; the file's patience is kept."""
    policy = log.parent / "policy.toml"
    policy.write_text("version = 7\npatience_steps = 60\nprice_per_hour = 36.0\ncurrency = 'EUR'\n")
    run(REPLAY, str(log), "--json")
    plain = json.loads(capsys.readouterr().out)
    paced = ("--step-time", "2")
    run(REPLAY, str(log), "--json", "--policy", str(policy), "--checkpoint-every", "300", *paced)
    told = json.loads(capsys.readouterr().out)
    one = told["policy"]["proposals"][-1]
    assert one["verb"] == "rollback"
    assert one["step"] >= ONSET + 60
    assert one["cost"]["money"] == pytest.approx(0.02 * one["cost"]["steps"])
    assert (told["policy"]["currency"], told["policy"]["policy_version"]) == ("EUR", 7)
    assert "a checkpoint every 300 steps, all kept" in told["policy"]["assumed"]
    del told["policy"]
    assert told == plain


def test_the_listing_says_that_nothing_was_done(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(REPLAY, str(log), "--policy", "default", "--checkpoint-every", "300")
    out = capsys.readouterr().out
    assert "nothing was done." in out
    assert "step time unknown" in out
    assert "roll back to step 1,800 (step-1800), skip" in out
    assert "(a person decides)" in out
    assert "\n    Go back to step-1800" in out
    assert "\n\n    " not in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--policy", "nowhere.toml"), "nowhere.toml cannot be read"),
        (("--policy", "default", "--checkpoint-every", "-1"), "--checkpoint-every takes steps"),
        (("--policy", "default", "--step-time", "0"), "--step-time takes seconds"),
    ],
)
def test_a_wrong_option_is_refused_by_name(log: Path, words: tuple[str, ...], told: str) -> None:
    with pytest.raises(CommandFailed, match=told):
        run(REPLAY, str(log), *words)
