"""Releases of this repository, each really installed: its own tree, interpreter and packages.

Law: the tree is the revision as it was committed, installed by pip with that revision's own pins.
Only torch is borrowed, after everything that the server needs was found without it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPLETE = "import spikeguard_server, fastapi, uvicorn, alembic, psycopg, spikeguard_cli.main"
_FACTS = """
from spikeguard_server.domain.monitor.state import STATE_VERSION
from spikeguard_server.store.migrations import newest_revision
print(STATE_VERSION, newest_revision())
"""


@dataclass(frozen=True)
class Release:
    """One installed revision."""

    name: str  # "old", "new"
    commit: str
    python: Path
    state_version: int
    schema: str  # the revision that it needs
    install_s: float

    def command(self, *words: str) -> list[str]:
        """Its own `spikeguard`."""
        return [str(self.python.parent / "spikeguard"), *words]

    def shown(self) -> dict[str, str | int | float]:
        """Plain values."""
        return {
            "commit": self.commit,
            "state_version": self.state_version,
            "schema": self.schema,
            "install_s": round(self.install_s, 1),
        }


def last_release() -> str | None:
    """The tag of the newest release; None before the first."""
    tags = _git("tag", "--list", "v*", "--sort=-version:refname").decode().split()
    return tags[0] if tags else None


def install(name: str, revision: str, place: Path) -> Release:
    """Install `revision` of this repository under `place`."""
    began = time.monotonic()
    tree, environment = place / name / "tree", place / name / "environment"
    commit = _git("rev-parse", "--short", revision).decode().strip()
    tree.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=_git("archive", commit), check=True)
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    _run(*pip, "--disable-pip-version-check", "-c", str(tree / "constraints.txt"),
         f"{tree}[server,agent]")  # fmt: skip
    _run(str(python), "-c", COMPLETE)
    _borrow_torch(environment)
    state, schema = _run(str(python), "-c", _FACTS).split()
    return Release(name, commit, python, int(state), schema, time.monotonic() - began)


def _borrow_torch(environment: Path) -> None:
    """What the environment itself holds comes first."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "zz_torch.pth").write_text(f"{Path(spec.origin).parent.parent}\n")


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def _run(*command: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
