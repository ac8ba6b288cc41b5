"""The schema: what migrations make is what the tables say, however many make it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from spikeguard_server.migrations import current_revision, migrate, newest_revision
from spikeguard_server.tables import metadata

REFERENCE = {"projects", "policies", "tokens"}


def test_migrations_make_what_the_tables_say(engine: sql.Engine) -> None:
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert current_revision(connection) == newest_revision()


def test_replicas_that_start_together_migrate_once(engine: sql.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sql.text("drop schema public cascade"))
        connection.execute(sql.text("create schema public"))
        assert current_revision(connection) is None
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(migrate, engine) for _ in range(4)]:
            done.result(60)
    with engine.connect() as connection:
        assert current_revision(connection) == newest_revision()


@pytest.mark.parametrize("name", sorted(set(metadata.tables) - REFERENCE))
def test_every_key_of_what_belongs_to_a_run_begins_with_the_run(name: str) -> None:
    """What lets the tables be distributed by run."""
    table = metadata.tables[name]
    keys = [list(table.primary_key.columns.keys())]
    keys += [list(c.column_keys) for c in table.foreign_key_constraints]
    for constraint in table.constraints:
        if isinstance(constraint, sql.UniqueConstraint):
            keys.append([column.name for column in constraint.columns])
    keys += [[c.name for c in index.columns] for index in table.indexes if index.unique]
    assert {key[0] for key in keys} == {"run_id"}


def test_measured_floats_are_float8_and_never_json() -> None:
    for table in metadata.tables.values():
        for column in table.columns:
            assert not isinstance(column.type, sql.Numeric) or isinstance(column.type, sql.Double)
    for name in ("samples", "incident_samples", "layer_norms", "precursors"):
        kinds = {type(column.type).__name__ for column in metadata.tables[name].columns}
        assert "JSONB" not in kinds
