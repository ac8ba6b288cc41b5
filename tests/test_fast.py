"""The choice of `make test-fast` cannot rot: a process that an unmarked test starts is heard of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import fast


def fork() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


def test_the_folders_that_make_leaves_out_are_those_that_are_marked() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert f"ALL_SLOW := {' '.join(fast.FOLDERS)}\n" in makefile


@pytest.mark.slow
def test_an_unmarked_test_that_starts_a_process_fails(request: pytest.FixtureRequest) -> None:
    """Whatever it does itself: the check is made around it."""
    other = next(i for i in request.session.items if i.get_closest_marker("slow") is None)
    fast.begin()
    fork()
    with pytest.raises(pytest.fail.Exception, match=r"starts os\.fork"):
        fast.end(other)
    fast.begin()
