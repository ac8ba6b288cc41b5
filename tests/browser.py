"""Chromium without a window, wherever it is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
# A window that nobody sees needs no pages of its own, nor processes for pages that may come.
OPTIONS = (
    "--no-sandbox",
    "--process-per-site",
    "--disable-features=PreloadTopChromeWebUI,SpareRendererForSitePerProcess",
)
REMEDY = "install one, run `playwright install chromium`, or set SPIKEGUARD_CHROMIUM to its path"


def chromium(playwrights_own: str) -> str | None:
    """The browser's path: the one that is named, one on the search path, or Playwright's own."""
    if named := os.environ.get("SPIKEGUARD_CHROMIUM"):
        return named
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or (playwrights_own if Path(playwrights_own).exists() else None)


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser, ended with the block; raise `RuntimeError` where there is none."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = chromium(playwright.chromium.executable_path)
        if path is None:
            raise RuntimeError(f"there is no Chromium here: {REMEDY}")
        opened = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        yield opened
        opened.close()
