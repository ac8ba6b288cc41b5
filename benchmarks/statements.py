"""Every SQL statement that the server issues, and which of them stay on one shard by the run's key.

Runs the server's own tests with an ear at the database driver, attributes each statement to the
function of the server that issued it, and sorts them: `run` names one run (or a list of keys that
begin with the run), `reference` touches nothing but reference tables, `across` asks over all runs,
`other` touches no table (locks, clocks, NOTIFY, schema). What is sent below SQLAlchemy is taken
from the store's own list of prepared statements. Functions that hold SQL and were not seen
are told.

    python -m benchmarks.statements [--quick] [--json]
"""

from __future__ import annotations

import ast
import json
import re
import sys
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sql

import spikeguard_server
from spikeguard_server import store
from spikeguard_server.store.fast.pipeline import Statement
from spikeguard_server.store.tables import notices as tables_notices
from spikeguard_server.store.tables import policies as tables_policies
from spikeguard_server.store.tables import samples as tables_curves
from spikeguard_server.store.tables.core import metadata

SERVER = Path(spikeguard_server.__file__).parent
STORE = SERVER / "store"
_PARTS = (tables_curves, tables_notices, tables_policies)  # their tables belong to the metadata
REFERENCE = {
    "weeks",
    "projects",
    "policies",
    "tokens",
    "channels",
    "silences",
    "new_runs",
    "deleted_totals",
}
_TABLE = re.compile(
    r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|ONLY)\s+(?:public\.|partitions\.)?(\w+)", re.I
)
_ASKED = r"(?:%\(|\$\d)"
_RUN = re.compile(rf"\brun_id\s*=\s*{_ASKED}|\brun_id(?:, [\w.]+)*\)? IN \(|\bINTO \w+ \(run_id\b")
QUICK = [
    *(f"tests/server/store/test_{name}.py" for name in (
        "commands", "ticker", "weeks", "upgrade",
    )),
    *(f"tests/server/notify/test_{name}.py" for name in ("outbox", "people", "outdated", "counts")),
    *(f"tests/server/face/test_{name}.py" for name in (
        "reading", "client", "policy", "run_policy", "channels", "proxied", "links", "events",
    )),
]  # fmt: skip
_EXECUTES = {"execute", "scalar", "scalars", "exec_driver_sql", "ask", "read_arrays"}


class Reach(StrEnum):
    """How far a statement reaches."""

    RUN = "run"
    REFERENCE = "reference"
    ACROSS = "across"
    OTHER = "other"


def reach_of(text: str) -> Reach:
    """What `text` touches, by its tables and its conditions on the run."""
    known = {name.rpartition(".")[2] for name in metadata.tables} | {"samples"}
    touched = {name for name in _TABLE.findall(text) if name in known}
    if not touched and not re.search(r"samples_between|partitions\.", text):
        return Reach.OTHER
    if touched and touched <= REFERENCE:
        return Reach.REFERENCE
    return Reach.RUN if _RUN.search(text) else Reach.ACROSS


@dataclass
class Heard:
    """Statements by the function that issued them."""

    by_place: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def note(self, text: str) -> None:
        """`text` was sent now, by whoever of the server stands nearest below."""
        if place := _place(sys._getframe(1)):
            self.by_place[place].add(" ".join(text.split()))

    @contextmanager
    def listening(self, engine: Any = sql.Engine) -> Iterator[None]:
        """Hear everything that goes through SQLAlchemy meanwhile, or through one engine."""

        def hear(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
            self.note(text)

        sql.event.listen(engine, "before_cursor_execute", hear)
        try:
            yield
        finally:
            sql.event.remove(engine, "before_cursor_execute", hear)

    def add_prepared(self) -> None:
        """What is sent below SQLAlchemy: the store's prepared statements."""
        for path in _modules():
            place = _name_of(path)
            found = import_module(f"{store.__name__}.{place}")
            for name, value in vars(found).items():
                if isinstance(value, Statement):
                    self.by_place[f"{place}.{name}"].add(" ".join(value.text.decode().split()))


def _place(frame: FrameType | None) -> str | None:
    while frame is not None:
        module = _module_of(frame.f_code.co_filename)
        if module is not None:
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return None


@cache
def _module_of(file: str) -> str | None:
    path = Path(file)
    inside = SERVER in path.parents and "migrations" not in path.parts
    return _name_of(path) if inside else None


def _modules() -> list[Path]:
    """Of the store; those of migrations run before there is a server."""
    return [p for p in sorted(STORE.rglob("*.py")) if "migrations" not in p.parts]


def _name_of(path: Path) -> str:
    """`reads.runs` of the store, `ingest.receive` of another package."""
    parts = path.relative_to(SERVER).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "store" else parts)


def functions_with_sql() -> Iterator[str]:
    """Every function of the store that sends a statement, as `module.function`."""
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(map(_sends, ast.walk(node))):
                yield f"{_name_of(path)}.{node.name}"


def _sends(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in _EXECUTES


def table(heard: Heard) -> dict[str, dict[str, list[str]]]:
    """reach -> place -> statements."""
    found: dict[str, dict[str, list[str]]] = {reach.value: {} for reach in Reach}
    for place, texts in sorted(heard.by_place.items()):
        for text in sorted(texts):
            found[reach_of(text).value].setdefault(place, []).append(text)
    return found


def main() -> int:
    """Print the statements by how far they reach, or one JSON object."""
    parser = ArgumentParser(prog="python -m benchmarks.statements", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="part of the tests, a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    heard = Heard()
    tests = QUICK if options.quick else ["tests/server"]
    with heard.listening(), redirect_stdout(sys.stderr):
        failed = pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests])
    heard.add_prepared()
    found = table(heard)
    unseen = sorted(set(functions_with_sql()) - heard.by_place.keys())
    if options.json:
        print(json.dumps({"statements": found, "unseen": unseen}))
        return int(failed)
    for reach, places in found.items():
        count = sum(map(len, places.values()))
        print(f"{reach}: {count} statements of {len(places)} functions")
        if reach == Reach.ACROSS:
            for place, texts in places.items():
                print(*(f"    {place}: {text[:160]}" for text in texts), sep="\n")
    print(f"functions with SQL that were not seen: {', '.join(unseen) or 'none'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
