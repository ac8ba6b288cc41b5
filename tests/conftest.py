"""What holds for every test.

A job that a shell put in the background inherits Ctrl-C ignored, and so would every process that a
test starts and then interrupts: the handler set here is not inherited, the default is.

Every process computes in one thread. What the tests train is so small that a second one only waits
for the first, which costs half as much again and takes the core from the other tests.

What collecting the tests imports is not garbage: none is looked for meanwhile, and later
collections leave it out, as they do what a test imports: Hugging Face's Trainer collects at each of
its ends, which takes 0.25 s of a core where all of transformers is looked through.

Hypothesis stops no example for the time that it took: that is the machine's.

The clients of a process share one TLS context: each would read all roots of the web's trust, 24 ms
of a core, before it speaks plain http to a server of ours.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from httpx._config import create_ssl_context
from httpx._transports import default

from tests.browser import browsing

signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")
vars(default)["create_ssl_context"] = lru_cache(create_ssl_context)
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
if shell := shutil.which("chromium-headless-shell"):  # a sixth less CPU than with a window's parts
    os.environ.setdefault("SPIKEGUARD_CHROMIUM", shell)

MARKER = "slow: starts processes, or computes for seconds; `make test-fast` leaves it out"
SLOW_FIXTURES = {"postgres", "browser"}
SLOW_FOLDERS = ("agent/integrations", "end_to_end", "server")  # as in the Makefile
MANY = 100  # modules; a framework brings more
_read = 0
# Folders and files, those that take long first; what is not named takes a second or two.
LONGEST = (
    *("end_to_end", "test_wheel.py", "trainer", "dashboard", "demo"),
    *("test_restart.py", "test_ranks.py", "test_sharded.py", "test_oidc.py", "test_up.py"),
    *("test_access.py", "test_document.py", "test_hostile_text.py", "test_real_jobs.py"),
    *("test_paged.py", "test_waits.py", "test_injected_faults.py", "test_sender.py"),
    *("detection", "replay", "report", "agent", "server"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: one that began last would keep a single process busy. Slow is whoever asks
    for a process by a fixture, and what lies where nearly all do."""
    items.sort(key=lambda item: _place(item.path.parts))
    slow = tuple(Path(__file__).parent / folder for folder in SLOW_FOLDERS)
    for item in items:
        asked = SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        if asked or any(item.path.is_relative_to(folder) for folder in slow):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    _keep()
    gc.enable()
    if forks := sys.modules.get("tests.agent.forks"):
        forks.fork_from_here()


def _keep() -> None:
    """Leave what is there out of every collection."""
    global _read
    _read = len(sys.modules)
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    if len(sys.modules) > _read + MANY:
        _keep()


def _place(parts: tuple[str, ...]) -> int:
    return next((n for n, name in enumerate(LONGEST) if name in parts), len(LONGEST))


@pytest.fixture(scope="module")  # Playwright's event loop would stand in the way of others
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(browsing())
        except RuntimeError as none_here:
            pytest.skip(str(none_here))
        yield opened
