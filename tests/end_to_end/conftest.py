"""A real service for the end-to-end tests, one a file; each test starts its training jobs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Service
from tests.end_to_end.forked import ForkingChildren

_NUMBERS = count()


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A short path, because a Postgres socket's may not be long."""
    place = Path(tempfile.mkdtemp(prefix="sg-e2e-"))
    place.chmod(0o711)  # run as root, Postgres has an account of its own that must pass
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """`spikeguard up` without its dashboard; a worker that has other files then has its core."""
    children = ForkingChildren()
    try:
        yield Service.start(children, folder / f"service-{next(_NUMBERS)}", "--no-dashboard")
    finally:
        children.end()


@pytest.fixture
def children() -> Iterator[Children]:
    """Ends whatever a test started."""
    children = ForkingChildren()
    yield children
    children.end()
