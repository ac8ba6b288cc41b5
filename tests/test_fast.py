"""The choice of `make test-fast` cannot rot: every way to start a process is heard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import fast
from tests.agent.forks import FORKS


def fork() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


def fork_from_another() -> None:
    """Which is the child of a server of multiprocessing's, and none of ours."""
    process = FORKS.Process(target=int)
    process.start()
    process.join()


def spawn() -> None:
    os.waitpid(os.posix_spawn(sys.executable, ["python", "-c", ""], os.environ), 0)


WAYS: list[Callable[[], object]] = [
    fork,
    fork_from_another,
    spawn,
    lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    lambda: os.system("true"),
]


@pytest.mark.slow
@pytest.mark.parametrize("start", WAYS)
def test_a_process_is_heard_of_in_whichever_way_it_starts(start: Callable[[], object]) -> None:
    start()
    assert fast.started


def test_the_folders_that_make_leaves_out_are_those_that_are_marked() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert f"ALL_SLOW := {' '.join(fast.FOLDERS)}\n" in makefile


def test_whoever_asks_for_postgres_or_a_browser_is_marked(request: pytest.FixtureRequest) -> None:
    """Also where another fixture asks for it."""
    marked = [item for item in request.session.items if item.get_closest_marker("slow")]
    for item in request.session.items:
        if not fast.FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            assert item in marked


@pytest.mark.slow
def test_an_unmarked_test_that_starts_a_process_fails(request: pytest.FixtureRequest) -> None:
    """Whatever it does itself: the check is made around it."""
    other = next(i for i in request.session.items if i.get_closest_marker("slow") is None)
    fast.begin()
    fork()
    with pytest.raises(pytest.fail.Exception, match=r"starts os\.fork"):
        fast.end(other)
    fast.begin()
