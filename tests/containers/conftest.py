"""What the container tests share: a script of `deploy/`, loaded from its place."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="session")
def make_secrets() -> ModuleType:
    """`deploy/init/make_secrets.py`, which lies in no package because it runs on a stock image."""
    script = DEPLOY / "init/make_secrets.py"
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
