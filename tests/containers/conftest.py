"""What the container tests share: the script that makes the secrets, loaded from its place."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/init/make_secrets.py"


@pytest.fixture(scope="session")
def make_secrets() -> ModuleType:
    """`deploy/init/make_secrets.py`, which lies in no package because it runs on a stock image."""
    spec = importlib.util.spec_from_file_location("make_secrets", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
