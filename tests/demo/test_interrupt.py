"""A demo that is killed leaves no process behind, and no folder of others is emptied."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from spikeguard_cli.main import main

pytestmark = pytest.mark.slow


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


def test_a_folder_with_other_files_is_never_emptied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(("demo", "--directory", str(tmp_path))) != 0
    assert "holds other files" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "mine"
