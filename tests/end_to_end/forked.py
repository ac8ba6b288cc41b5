"""Children that need not import torch or the server: each is forked from a process that has."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from spikeguard_trainer.stage.processes import Children
from tests.programs import SPIKEGUARD, start_module

MODULES = (
    "spikeguard_trainer",
    "tests.end_to_end.held_job",
    SPIKEGUARD,
)


class ForkingChildren(Children):
    """Starts `python -m MODULE` of a training job or a server by a fork; everything else as it
    does."""

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        _, option, module, *arguments = command
        if option != "-m" or module not in MODULES:
            return super().start(command, environment, log)
        given = {**os.environ, **environment}
        child = start_module(module, *arguments, output=log, environment=given)
        self._running.append(child)
        return child
