"""A run of any length takes the memory of a short one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .forks import exit_status, start_script
from .growth_job import STEPS
from .wire import Wire, served

pytestmark = pytest.mark.slow

MIB = 1 << 20
GROW = "import sys; from tests.agent.growth_job import main; main(*sys.argv[1:])"


def test_no_step_leaves_anything_behind_in_memory(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        said = tmp_path / "said.txt"
        grown = start_script(GROW, said, str(tmp_path), wire.url)
        assert exit_status(grown, 120) == 0, said.read_text()
    left = json.loads(said.read_text().splitlines()[-1])
    assert left["objects"] < 0.75 * STEPS  # less than one a step; what is on its way varies
    assert left["bytes"] < 16 * MIB
