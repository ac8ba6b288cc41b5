"""`make demo FAULT=…` takes the trainer's faults, and says which there are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spikeguard_cli.main import main
from spikeguard_trainer.demo.demo import FAULT_STEP, demo_fault
from spikeguard_trainer.faults import FaultName

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", FaultName)
def test_every_fault_is_shown_by_its_name(name: FaultName) -> None:
    assert (demo_fault(name).name, demo_fault(name).step) == (name, FAULT_STEP)
    assert demo_fault(name.upper().replace("_", "-")).name is name


def test_a_fault_may_be_given_whole() -> None:
    assert str(demo_fault("lr_bump@300:4:20")) == "lr_bump@300:4:20"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr_jump", ["'lr_jump' is no fault", "lr_bump", "weight_noise"]),
        ("?", ["'?' is no fault", "bad_batch.repeated", "nan_grad"]),
        ("lr_bump@", ["NAME@STEP"]),
        ("bad_batch@250:3:7", ["lies in [0, 1], got 7"]),
    ],
)
def test_a_bad_fault_is_refused_with_those_there_are(
    text: str, says: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("demo", "--fault", text, "--directory", str(tmp_path / "demo"))) != 0
    said = capsys.readouterr().err
    assert all(part in said for part in says), said
    assert not (tmp_path / "demo").exists()


@pytest.mark.slow
def test_make_hands_the_fault_on() -> None:
    done = subprocess.run(
        ["make", "-n", "demo", "FAULT=nan_grad", "APPROVE=manual", "EXIT=1"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert "--exit --approve manual --fault 'nan_grad'" in done.stdout
