"""Detectors by name on the command line: replay, backtest --compare, tune, and one of a package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spikeguard_cli.command import CommandFailed
from spikeguard_server.replay.backtest_command import BACKTEST
from spikeguard_server.replay.command import REPLAY
from spikeguard_server.replay.trial_command import TUNE
from tests.domain.detection.curves import plateau, spiked
from tests.replay.running import run

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "server/examples/times_median"


def log_at(path: Path, losses: list[float]) -> Path:
    rows = (f"{step},{loss:.6f}\n" for step, loss in enumerate(losses, start=1))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("step,loss\n" + "".join(rows))
    return path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two calm logs and one with a spike of two nats at step 501."""
    folder = tmp_path_factory.mktemp("logs")
    log_at(folder / "calm.csv", plateau(1_000, seed=1))
    log_at(folder / "also.csv", plateau(1_000, seed=2))
    log_at(folder / "spiky.csv", spiked(plateau(1_000, seed=3), 500, 2.0, 15))
    return folder


@pytest.mark.parametrize("detector", ["robust_trend", "zscore", "ewma"])
def test_replay_judges_by_the_detector_that_is_named(
    logs: Path, tmp_path: Path, detector: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--detector", detector, "--json", "--plot", str(tmp_path / "curve.png"))
    assert run(REPLAY, str(logs / "spiky.csv"), *words) == 0
    (incident,) = json.loads(capsys.readouterr().out)["incidents"]
    assert incident["onset_step"] == 501
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    high = ["--set", "threshold=500"]
    high += ["--set", "lift_limit=1e6"] if detector == "robust_trend" else []
    assert run(REPLAY, str(logs / "spiky.csv"), *words[:3], *high) == 0
    assert json.loads(capsys.readouterr().out)["incidents"] == []


def test_a_column_of_the_file_is_judged_as_the_policy_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A router's entropy that falls at step 491, twenty steps before the loss rises."""
    losses = spiked(plateau(1_000, seed=3), 510, 2.0, 15)
    own = [1.7 - (1.0 if row >= 490 else 0.0) for row in range(1_000)]
    rows = (f"{n},{a:.6f},{b}\n" for n, (a, b) in enumerate(zip(losses, own, strict=True), 1))
    log = tmp_path / "log.csv"
    log.write_text("step,loss,router_entropy\n" + "".join(rows))
    policy = tmp_path / "policy.toml"
    policy.write_text('[detection.signals.router_entropy]\ndirection = "down"\n')
    assert run(REPLAY, str(log), "--json") == 0
    (incident,) = json.loads(capsys.readouterr().out)["incidents"]
    assert "router_entropy" not in json.dumps(incident)
    assert run(REPLAY, str(log), "--json", "--policy", str(policy)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["incidents"][0]["onset_step"] == 511
    assert "router_entropy" in json.dumps(found)


def test_what_the_policy_would_propose_is_asked_of_the_same_detector(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--policy", "default", "--json", "--detector", "zscore")
    assert run(REPLAY, str(logs / "spiky.csv"), *words) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["incident"] for one in told["policy"]["proposals"]} == {1}
    assert run(REPLAY, str(logs / "spiky.csv"), *words, "--set", "threshold=500") == 0
    assert json.loads(capsys.readouterr().out)["policy"]["proposals"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "threshold"), "write NAME=VALUE"),
        (("--set", "treshold=5"), "treshold: is no setting of robust_trend. Known: threshold"),
        (("--set", "threshold=-1"), "threshold: takes a number from 2 to 1000"),
        (("--detector", "zsore"), "is no detector that is installed here. Known: robust_trend"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_limit(
    logs: Path, words: tuple[str, ...], says: str
) -> None:
    for command in (REPLAY, BACKTEST, TUNE):
        with pytest.raises(CommandFailed, match=says):
            run(command, str(logs / "spiky.csv" if command is REPLAY else logs), *words)


@pytest.mark.slow
def test_detectors_are_compared_on_the_same_rows_and_spikes(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (labels := tmp_path / "labels.csv").write_text("file,onset_step,last_step\nspiky.csv,501,530\n")
    words = (str(logs), "--compare", "robust_trend", "zscore", "ewma", "--size", "12")
    png = tmp_path / "compared.png"
    assert run(BACKTEST, *words, "--labels", str(labels), "--json", "--plot", str(png)) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["detector"] for one in told["candidates"]] == ["robust_trend", "zscore", "ewma"]
    for one in told["candidates"]:
        assert (one["rows"], one["injected"], one["labelled"]) == (3_000, 6, 1)
        assert (one["found"], one["hits"], one["false"], one["f1"]) == (6, 1, 0, 1.0)
    assert png.stat().st_size > 10_000
    assert run(BACKTEST, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 logs, 3,000 rows; injected: 12 deviations")
    assert lines[2].split()[:6] == ["robust_trend", "1", "33.3", "6", "of", "6"]
    assert lines[-1] == "without labels: an alarm may be a real spike"


def test_tuning_shows_what_a_threshold_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A high threshold finds fewer spikes, a low one alarms more often."""
    log_at(tmp_path / "calm.csv", plateau(800, seed=1))
    words = ("--detector", "zscore", "--sweep", "threshold=2.5,40", "--sweep", "confirm_rows=1,3")
    assert run(TUNE, str(tmp_path), *words, "--json") == 0
    told = {
        (one["settings"]["threshold"], one["settings"]["confirm_rows"]): one
        for one in json.loads(capsys.readouterr().out)["candidates"]
    }
    assert len(told) == 4
    assert told[2.5, 1]["alarms"] > told[2.5, 3]["alarms"] == told[40, 1]["alarms"] == 0
    assert told[2.5, 3]["found"] == told[2.5, 3]["injected"] == 2
    assert told[40, 1]["found"] == 0


def test_the_table_of_a_tuning_names_what_was_swept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_at(tmp_path / "calm.csv", plateau(400, seed=1))
    assert run(TUNE, str(tmp_path), "--sweep", "threshold=6,8", "--sweep", "lift_limit=14") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["threshold", "lift_limit", "alarms"]
    assert [line.split()[:2] for line in lines[2:4]] == [["6", "14"], ["8", "14"]]


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("file,onset,last\n", r"line 1: the columns are file,onset_step,last_step"),
        ("file,onset_step,last_step\nspiky.csv,x,2\n", r"line 2: write a file's name and two"),
        ("file,onset_step,last_step\nspiky.csv,9,2\n", r"line 2: last_step is at least onset_step"),
        ("file,onset_step,last_step\nother.csv,1,2\n", r"other.csv is no log below"),
    ],
)
def test_labels_are_refused_with_line_and_remedy(
    logs: Path, tmp_path: Path, labels: str, says: str
) -> None:
    (path := tmp_path / "labels.csv").write_text(labels)
    with pytest.raises(CommandFailed, match=says):
        run(BACKTEST, str(logs), "--compare", "zscore", "--labels", str(path))


@pytest.mark.slow
def test_a_package_adds_a_detector_by_its_entry_point(logs: Path, tmp_path: Path) -> None:
    """The example, put where pip puts a package: its module and its dist-info on the path."""
    site = tmp_path / "site"
    info = site / "times_median-0.1.0.dist-info"
    info.mkdir(parents=True)
    (site / "times_median.py").write_text((EXAMPLE / "times_median.py").read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: times-median\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[spikeguard.detectors]\ntimes_median = times_median:TimesMedian\n"
    )
    program = "from spikeguard_cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    words = ["replay", str(logs / "spiky.csv"), "--json", "--detector", "times_median"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "--set", "factor=1.3"],
        env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (incident,) = json.loads(done.stdout)["incidents"]
    assert incident["onset_step"] == 501


def test_the_example_in_the_docs_is_the_package() -> None:
    page = (ROOT / "docs/detection.md").read_text()
    code = (EXAMPLE / "times_median.py").read_text()
    assert f"```python\n{code}```\n" in page
    assert len(code.splitlines()) <= 45
