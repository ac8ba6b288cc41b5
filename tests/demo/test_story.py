"""The demo tells each thing once, in words, takes the trainer's faults, and leaves no process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from spikeguard_cli.main import main
from spikeguard_trainer.demo.demo import FAULT_STEP, demo_fault
from spikeguard_trainer.demo.story import ending
from spikeguard_trainer.faults import FaultName

COMMAND: dict[str, Any] = {
    "id": "demo#1.1",
    "number": 1,
    "verb": "rollback",
    "arguments": {"target": "checkpoint-200", "step": 200, "skip": {"first": 249, "end": 262}},
    "state": "proposed",
    "revision": 1,
    "reason": "the loss is climbing",
    "cost": {"steps": 70, "seconds": 14.0, "tokens": 1, "money": None},
    "decided_by": None,
    "applied_step": None,
    "result": None,
}
INCIDENT: dict[str, Any] = {
    "id": "demo#1",
    "number": 1,
    "state": "open",
    "first_signal": {"signal": "grad_norm", "step": 250},
    "title": "divergent spike",
    "onset_step": 250,
    "detected_step": 251,
    "closed_step": None,
    "kind": "divergent",
    "outcome": None,
    "reason": "it climbs",
    "evidence": {"worst_z": {"grad_norm": "inf"}},
    "revisions": [
        {"number": 1, "step": 251, "kind": "recoverable", "confidence": 0.5, "reason": "first"},
        {"number": 2, "step": 260, "kind": "divergent", "confidence": 0.9, "reason": "it climbs"},
    ],
    "commands": [COMMAND],
}


def _closed(outcome: str, **command: Any) -> dict[str, Any]:
    commands = [{**COMMAND, **command}] if command else []
    return {**INCIDENT, "state": "closed", "outcome": outcome, "commands": commands}


@pytest.mark.parametrize(
    ("incident", "words", "content"),
    [
        (
            _closed("recovered", state="judged", decided_by="ada"),
            "carried out, decided by ada",
            True,
        ),
        (_closed("healed"), "healed by itself", True),
        (_closed("level_accepted"), "new level accepted", False),
        (_closed("level_accepted", state="expired"), "nobody answered in time", False),
        (_closed("run_ended", state="run_ended"), "void: the run ended first", False),
        (_closed("run_ended", state="judged"), "run ended; roll back to step 200", False),
        (
            _closed("run_ended", state="rejected", decided_by="ada"),
            "rejected, decided by ada",
            True,
        ),
        ({**INCIDENT, "commands": []}, "still open", False),
    ],
)
def test_the_last_words_fit_what_became_of_it(
    incident: dict[str, Any], words: str, content: bool
) -> None:
    lines, well = ending([incident], 0)
    assert words in lines[-1]
    assert well is content


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


def _owned_by(folder: Path) -> list[psutil.Process]:
    """Every process that was started for `folder`: it stands in the command line or is the cwd."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()) and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_a_killed_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    """SIGKILL once the trainer has begun to import: the demo has no chance to tidy up."""
    folder = Path("/tmp") / f"sg-demo-{os.getpid()}"
    command = [sys.executable, "-m", "spikeguard_cli.main", "demo", "--directory", str(folder)]
    with (tmp_path / "out").open("wb") as output:
        demo = subprocess.Popen(command, stdout=output, stderr=output)
    until = time.monotonic() + 120
    while not (folder / "run" / "trainer.log").exists():
        assert demo.poll() is None, (tmp_path / "out").read_text()
        assert time.monotonic() < until, (tmp_path / "out").read_text()
        time.sleep(0.02)
    demo.send_signal(signal.SIGKILL)
    assert demo.wait(120) != 0
    until = time.monotonic() + 120
    while (left := _owned_by(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left, [" ".join(process.cmdline()) for process in left]
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_folder_with_other_files_is_never_emptied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(("demo", "--directory", str(tmp_path))) != 0
    assert "holds other files" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "mine"
