"""Streamlit as the tests need it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache

import pytest
from streamlit.components.v2 import manifest_scanner


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
