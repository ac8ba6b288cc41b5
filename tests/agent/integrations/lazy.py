"""Modules that are imported when they are first used.

Every worker reads every file of tests, and few run those that need a framework of seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """A module by its name, imported with the first attribute that is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks all that it finds whether it is a test
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
