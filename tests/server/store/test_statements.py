"""Which statements stay on one shard where the tables are distributed by run."""

from __future__ import annotations

import subprocess
import sys


def test_what_statements_share_has_its_columns_before_threads_share_it() -> None:
    """Two threads that ask an alias for its columns at once make two of each, and a statement that
    holds both cannot be compiled: after a start, the first calls were a 500 now and then."""
    program = "\n".join([
        "import importlib, pkgutil, sqlalchemy, spikeguard_server.store as store",
        "for found in pkgutil.walk_packages(store.__path__, 'spikeguard_server.store.'):",
        "    if 'migrations' not in found.name:",
        "        for name, what in vars(importlib.import_module(found.name)).items():",
        "            kinds = sqlalchemy.Alias | sqlalchemy.Subquery | sqlalchemy.CTE",
        "            if isinstance(what, kinds) and 'c' not in vars(what):",
        "                print(found.name, name)",
    ])  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
