"""The tables, as `schema.sql` beside this module makes them: there stands what each column means.

Every key of what belongs to a run begins with `run_id`, which is made from (project, name), so that
the tables can be distributed by it and no lock spans runs. Measured floats are float8, never JSON,
because NaN and infinities are data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid5

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_protocol import RunId

NAMESPACE = UUID("6b0f7a1e-9d0c-5e0b-8f3a-3c5b1f0a7d42")
FLEET = UUID(int=0)  # stands for the run in audit entries that belong to none


def run_key(run: RunId) -> UUID:
    """The key of a run; a function of its name, so that no index across runs has to guard it."""
    return uuid5(NAMESPACE, f"{run.project}/{run.name}")


metadata = sql.MetaData()  # the tables as they stand in the schema: parents come first
Names = postgresql.ARRAY(sql.Text)
_KINDS: Final[Mapping[str, sql.types.TypeEngine[Any]]] = {
    "bigint": sql.BigInteger(),
    "boolean": sql.Boolean(),
    "bytea": sql.LargeBinary(),
    "float8": postgresql.DOUBLE_PRECISION(),
    "integer": sql.Integer(),
    "json": sql.JSON(),
    "jsonb": postgresql.JSONB(),
    "text": sql.Text(),
    "timestamptz": sql.DateTime(timezone=True),
    "uuid": sql.Uuid(),
}
_TABLE: Final = re.compile(
    r"^CREATE TABLE (\w+) \((.*?) PRIMARY KEY \((.*?)\)", re.MULTILINE | re.DOTALL
)
_COLUMN: Final = re.compile(r"^    ([a-z_]+) ([a-z0-9]+)(\[\])?([^,\n]*),", re.MULTILINE)


def _columns(body: str, keys: list[str]) -> Iterator[sql.Column[Any]]:
    for name, kind, array, rest in _COLUMN.findall(body):
        held = postgresql.ARRAY(_KINDS[kind]) if array else _KINDS[kind]
        made = [sql.Identity(always=True)] if "IDENTITY" in rest else []
        yield sql.Column(
            name, held, *made, primary_key=name in keys, nullable="NOT NULL" not in rest
        )


for _name, _body, _keys in _TABLE.findall(Path(__file__).with_name("schema.sql").read_text()):
    sql.Table(_name, metadata, *_columns(_body, _keys.split(", ")))


def __getattr__(name: str) -> sql.Table:
    """The table of this name, which others import."""
    if name in metadata.tables:
        return metadata.tables[name]
    raise AttributeError(name)
