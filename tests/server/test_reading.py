"""What reads neither writes nor locks, and SQL stands in the store alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spikeguard_server

SERVER = Path(spikeguard_server.__file__).parent
WRITES = re.compile(r"sql\.(insert|update|delete)\b|\binsert\(|with_for_update|lock_run|\.commit\(")
SQL = re.compile(r"\bsql\.(select|insert|update|delete|text)\(")
SCHEMA = {"embedded_postgres.py"}  # how a database is started
READS = sorted((SERVER / "store/reads").rglob("*.py"))


@pytest.mark.parametrize("path", READS, ids=lambda path: path.stem)
def test_what_reads_neither_writes_nor_locks(path: Path) -> None:
    assert WRITES.search(path.read_text()) is None


def test_no_sql_is_written_outside_the_store() -> None:
    assert SQL.search((SERVER / "store" / "runs.py").read_text())
    outside = [
        path.relative_to(SERVER)
        for path in SERVER.rglob("*.py")
        if "store" not in path.relative_to(SERVER).parts
        and path.name not in SCHEMA
        and SQL.search(path.read_text())
    ]
    assert outside == []
