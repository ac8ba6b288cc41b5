"""Which tests are fast: `make test-fast` leaves out what is marked `slow`.

Invariants, held at every run of every test, so that the choice cannot rot:
- All of `FOLDERS` is marked.
- A test that is not marked starts no process, in whichever way; neither do the fixtures that it is
  the first to ask for. Who asks for Postgres or for a browser is marked by that.
"""

from __future__ import annotations

import sys
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

MARKER = "slow: starts processes, or computes for seconds; `make test-fast` leaves it out"
FIXTURES = {"postgres", "browser"}
FOLDERS = ("agent/integrations", "end_to_end", "server")  # as in the Makefile, which reads none
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
REMEDY = "mark it with pytest.mark.slow, or do without"
started: list[str] = []


def listen() -> None:
    """Hear of every process from now on; of some of multiprocessing's Python tells nobody."""
    start = BaseProcess.start

    def heard(process: BaseProcess) -> None:
        started.append(f"the process {process.name}")
        start(process)

    setattr(BaseProcess, "start", heard)  # noqa: B010
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if STARTS and event in STARTS:  # None once the interpreter ends
        started.append(f"{event} {arguments[1:2]}")


def mark(items: list[pytest.Item]) -> None:
    """Mark whoever asks for a process by a fixture, and what lies where nearly all do."""
    for item in items:
        if _lies_in_folders(item.path) or not FIXTURES.isdisjoint(
            getattr(item, "fixturenames", ())
        ):
            item.add_marker("slow")


@cache
def _lies_in_folders(path: Path) -> bool:
    return any(path.is_relative_to(Path(__file__).parent / folder) for folder in FOLDERS)


def begin() -> None:
    """Before a test's fixtures are set up."""
    started.clear()


def end(item: pytest.Item) -> None:
    """Once its fixtures are gone: fail where it is not marked and started one."""
    if started and item.get_closest_marker("slow") is None:
        pytest.fail(f"not a fast test: it starts {started[0]}; {REMEDY}", pytrace=False)
