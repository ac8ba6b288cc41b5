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


@pytest.mark.parametrize("server", ["absent", "healthy"])
def test_no_step_leaves_anything_behind_in_memory(server: str, tmp_path: Path) -> None:
    with served(Wire()) as wire:
        url = wire.url if server == "healthy" else "http://127.0.0.1:9"
        said = tmp_path / "said.txt"
        assert exit_status(start_script(GROW, said, str(tmp_path), url), 120) == 0, said.read_text()
    grown = json.loads(said.read_text().splitlines()[-1])
    assert grown["objects"] < 0.75 * STEPS  # less than one a step; what is on its way varies
    assert grown["bytes"] < 16 * MIB
