"""What holds for every test.

A job that a shell put in the background inherits Ctrl-C ignored, and so would every process that a
test starts and then interrupts: the handler set here is not inherited, the default is.

Every process computes in one thread. What the tests train is so small that a second one only waits
for the first, which costs half as much again and takes the core from the other tests.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fast

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

# Folders, those of long files first; what is not named has none.
LONGEST = ("end_to_end", "trainer", "dashboard", "demo", "agent", "server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: one that began last would keep a single process busy."""
    items.sort(key=lambda item: _place(item.path.parts))
    fast.mark(items)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", fast.MARKER)
    fast.listen()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    fast.begin()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    fast.end(item)


def _place(parts: tuple[str, ...]) -> int:
    return next((n for n, name in enumerate(LONGEST) if name in parts), len(LONGEST))


NAMES = ("chromium", "chromium-browser", "google-chrome")
REMEDY = "install one, run `playwright install chromium`, or set SPIKEGUARD_CHROMIUM to its path"


def chromium(playwrights_own: str) -> str | None:
    """The browser's path: the one that is named, one on the search path, or Playwright's own."""
    if named := os.environ.get("SPIKEGUARD_CHROMIUM"):
        return named
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or (playwrights_own if Path(playwrights_own).exists() else None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        path = chromium(playwright.chromium.executable_path)
        if path is None:
            pytest.skip(f"there is no Chromium here: {REMEDY}")
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()
