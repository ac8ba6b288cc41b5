"""A browser for the tests that click; without one they are skipped and say so."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from streamlit.components.v2 import manifest_scanner

NAMES = ("chromium", "chromium-browser", "google-chrome")
REMEDY = "install one, run `playwright install chromium`, or set SPIKEGUARD_CHROMIUM to its path"


def chromium(playwrights_own: str) -> str | None:
    """The browser's path: the one that is named, one on the search path, or Playwright's own."""
    if named := os.environ.get("SPIKEGUARD_CHROMIUM"):
        return named
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or (playwrights_own if Path(playwrights_own).exists() else None)


@pytest.fixture(autouse=True)
def _main_stays() -> Iterator[None]:
    """Streamlit's AppTest puts its script in the place of `__main__` and leaves it there."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before


@pytest.fixture(autouse=True, scope="session")
def _components_are_sought_once() -> Iterator[None]:
    """Streamlit's AppTest reads what every installed package says of itself each time it runs."""
    found = cache(manifest_scanner.scan_component_manifests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", found)
        yield


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
