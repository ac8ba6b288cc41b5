"""Reads go straight to the repository, and only reads do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spikeguard_server

SERVER = Path(spikeguard_server.__file__).parent
REPOSITORY = "spikeguard_server.repository"
READS = {  # beside the `reading*` modules
    "policy_of",
    "find_caller",
    "list_tokens",
    "action_of",
    "causes_of",
    "first_layer_of",
    "read_layers",
    "attempts_of_runs",
    "incident_of",
    "ways_around",  # what the catalogue says of a role
    "storable",  # whether a text can be stored; touches nothing
    "WriteCheck",  # takes room in a temporary file, no row
}
WRITES = re.compile(r"sql\.(insert|update|delete)\b|\binsert\(|with_for_update|lock_run|\.commit\(")
SQL = re.compile(r"\bsql\.(select|insert|update|delete|text)\(")
SCHEMA = {
    "tables.py",
    "tables_notices.py",
    "tables_policies.py",
    "postgres.py",
}  # what the database is made of and how it is started


def modules(folder: str, pattern: str = "*.py") -> list[Path]:
    return sorted((SERVER / folder).rglob(pattern))


def reached(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that is imported from the repository."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(REPOSITORY):
            yield from ((node.module or "", alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.startswith(REPOSITORY))


@pytest.mark.parametrize("path", modules("routes"), ids=lambda path: path.stem)
def test_a_route_reaches_nothing_of_the_repository_that_writes(path: Path) -> None:
    for module, name in reached(path):
        assert module.startswith(f"{REPOSITORY}.reading") or name in READS, (module, name)


@pytest.mark.parametrize("path", modules("repository", "reading*.py"), ids=lambda path: path.stem)
def test_what_reads_neither_writes_nor_locks(path: Path) -> None:
    assert WRITES.search(path.read_text()) is None


def test_no_sql_is_written_outside_the_repository() -> None:
    assert SQL.search((SERVER / "repository" / "runs.py").read_text())
    outside = [
        path.relative_to(SERVER)
        for path in SERVER.rglob("*.py")
        if not {"repository", "migrations"} & set(path.parts)
        and path.name not in SCHEMA
        and SQL.search(path.read_text())
    ]
    assert outside == []
