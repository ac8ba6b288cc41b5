"""Reads go straight to the store, and only reads do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spikeguard_server

SERVER = Path(spikeguard_server.__file__).parent
STORE = "spikeguard_server.store"
READS = {  # beside the modules of `store/reads`
    "policy_of",
    "find_caller",
    "list_tokens",
    "silence_over",
    "database_now",
    "read_layers",
    "read_switches",
    "Switch",
    "LinkRow",
    "read_link_row",
    "outcome_words",
    "with_effects",
    "commands_of",
    "commands_waiting",
    "command_revisions_of",
    "failed_commands",
    "find_command",
    "has_orders",
    "list_run_commands",
    "open_incident",
    "read_incident",
    "precursors_of",
    "revisions_of",
    "read_note",
    "read_notes",
    "read_response",
    "read_responses",
    "run_row",
    "RunRow",
    "takes_no_writes",
    "is_standby",
    "ways_around",  # what the catalogue says of a role
    "storable",  # whether a text can be stored; touches nothing
    "run_key",  # how a row of a run is named
    "FLEET",
    "MAX_TEXT",
    "read_batches",
    "attempts_named",
    "require_schema",  # as it stands
    "WriteCheck",  # takes room in a temporary file, no row
}
WRITES = re.compile(r"sql\.(insert|update|delete)\b|\binsert\(|with_for_update|lock_run|\.commit\(")
SQL = re.compile(r"\bsql\.(select|insert|update|delete|text)\(")
SCHEMA = {"embedded_postgres.py"}  # how a database is started
THE_PROCESS = {"app.py", "connections.py", "event_feed.py"}  # not what answers a call


def modules(folder: str) -> list[Path]:
    found = sorted((SERVER / folder).rglob("*.py"))
    return [path for path in found if path.name not in THE_PROCESS]


def reached(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that is imported from the store."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(STORE):
            yield from ((node.module or "", alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.startswith(STORE))


@pytest.mark.parametrize(
    "path", modules("http"), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_a_route_reaches_nothing_of_the_store_that_writes(path: Path) -> None:
    for module, name in reached(path):
        reads = module.startswith((f"{STORE}.reads", f"{STORE}.paging"))
        assert reads or name in READS, (module, name)


@pytest.mark.parametrize("path", modules("store/reads"), ids=lambda path: path.stem)
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
