"""The SQL statements that the server issues, and which of them stay on one shard by the run's key.

Listens at the database driver, attributes each statement to the function of the server that issued
it, and sorts them: `run` names one run (or a list of keys that begin with the run), `reference`
touches only reference tables, `across` asks over all runs, `other` touches no table (locks,
clocks, NOTIFY). Statements that are sent below SQLAlchemy come from the texts of the store's
modules.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sql

import spikeguard_server
from spikeguard_server import store
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
    "deleted_totals",
}
_TABLE = re.compile(
    r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|ONLY)\s+(?:public\.|partitions\.)?(\w+)", re.I
)
_STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b.*%\(", re.S)
_ASKED = r"(?:%\(|\$\d)"
_RUN = re.compile(rf"\brun_id\s*=\s*{_ASKED}|\brun_id(?:, [\w.]+)*\)? IN \(|\bINTO \w+ \(run_id\b")


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
                if isinstance(value, str) and _STATEMENT.match(value):
                    self.by_place[f"{place}.{name}"].add(" ".join(value.split()))


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
