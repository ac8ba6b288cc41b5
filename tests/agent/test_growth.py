"""A run of any length takes the memory of a short one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .growth_job import STEPS
from .wire import Wire, served

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("server", ["absent", "healthy"])
def test_no_step_leaves_anything_behind_in_memory(server: str, tmp_path: Path) -> None:
    with served(Wire()) as wire:
        url = wire.url if server == "healthy" else "http://127.0.0.1:9"
        command = [sys.executable, "-m", "tests.agent.growth_job", str(tmp_path), url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout.splitlines()[-1])
    assert grown["objects"] < STEPS / 2
    assert grown["bytes"] < 16 * MIB
