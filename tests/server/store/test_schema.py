"""The schema: what migrations make is what the tables say, however many make it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sql
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from spikeguard_server.store.chunks import SegmentKey, read_curves
from spikeguard_server.store.detectors import Place, StateRow, load_state
from spikeguard_server.store.migrations import _config, current_revision, migrate, newest_revision
from spikeguard_server.store.reads.history import PageWanted
from spikeguard_server.store.reads.ledger import COMMAND, read_ledger
from spikeguard_server.store.reads.runs import read_audit
from spikeguard_server.store.tables.core import FLEET, metadata
from spikeguard_server.store.tables.notices import deliveries
from spikeguard_server.store.tables.policies import policies
from spikeguard_server.store.tables.run_counts import deleted_runs
from spikeguard_server.store.tables.skipped import skipped_batches
from spikeguard_server.store.tokens import find_caller

REFERENCE = {"shelves", "projects", "policies", "tokens", "channels", "silences", "new_runs"}
REFERENCE |= {"clock", "clock_jumps"}
PARTS = (deliveries, policies, skipped_batches, deleted_runs)
KEY = "00000000-0000-0000-0000-000000000001"
RUN_WITH_INCIDENT = f"""
    insert into runs (run_id, project, name, created_at, state, attempts, incidents,
        last_message_at) values ('{KEY}', 'p', 'r', now(), 'live', 1, 1, now());
    insert into incidents (run_id, number, state, attempt, segment, onset_step, detected_step,
        newest_step, kind, confidence, reason, peak_step, settled, signal, dropped, recurrences,
        z_names, z_values, move_names, move_steps, opened_at, revisions, commands,
        report_failures)
        values ('{KEY}', 1, 'open', 1, 0, 5, 6, 7, 'lingering', 0.9, 'x', 5, false, 'loss',
        false, 0, '{{}}', '{{}}', '{{}}', '{{}}', now(), 1, 1, 0);
"""
assert all(part.metadata is metadata for part in PARTS)  # one schema, written in parts


def make_empty(connection: sql.Connection) -> None:
    """Take away what the migrations made."""
    connection.execute(sql.text("drop schema public cascade"))
    connection.execute(sql.text("drop schema if exists shelves cascade"))
    connection.execute(sql.text("create schema public"))


@contextmanager
def at_revision(engine: sql.Engine, revision: str) -> Iterator[sql.Connection]:
    """A transaction on the schema as it was at `revision`, without rows.

    The database of `engine` is made anew, as a copy: to migrate there from nothing takes longer.
    """
    engine.dispose()
    with psycopg.connect(_plain(engine, "postgres"), autocommit=True) as control:
        template = _template(control, engine, revision)
        name = engine.url.database
        control.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        control.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy".encode())
    with engine.begin() as connection:
        yield connection


def _template(control: psycopg.Connection[Any], engine: sql.Engine, revision: str) -> str:
    """The database that stands at `revision`, made from the one before it where there is one."""
    query = "select datname from pg_database where datname like 'at\\_%' order by datname"
    made = [str(row[0]) for row in control.execute(query.encode())]
    wanted = f"at_{revision}"
    if wanted not in made:
        nearest = max((name for name in made if name < wanted), default="template1")
        control.execute(f"CREATE DATABASE {wanted} TEMPLATE {nearest}".encode())
        earlier = sql.create_engine(engine.url.set(database=wanted))
        with earlier.begin() as connection:
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
        earlier.dispose()
    return wanted


def _plain(engine: sql.Engine, database: str) -> str:
    """The address that psycopg knows."""
    url = engine.url.set(drivername="postgresql", database=database)
    return url.render_as_string(hide_password=False)


def test_migrations_make_what_the_tables_say(engine: sql.Engine) -> None:
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert current_revision(connection) == newest_revision()


def test_replicas_that_start_together_migrate_once(engine: sql.Engine) -> None:
    with engine.begin() as connection:
        make_empty(connection)
        assert current_revision(connection) is None
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(migrate, engine) for _ in range(4)]:
            done.result(60)
    with engine.connect() as connection:
        assert current_revision(connection) == newest_revision()


BLOCKED = "select count(*) from pg_locks where not granted and relation = '{}'::regclass"


def blocked_at(engine: sql.Engine, table: str) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(sql.text(BLOCKED.format(table))).scalar_one())


def wait_until_blocked(engine: sql.Engine, table: str) -> None:
    until = time.monotonic() + 20
    while not blocked_at(engine, table):
        assert time.monotonic() < until, f"nobody waits for {table}"
        time.sleep(0.02)


def test_a_migration_waits_for_a_message_that_is_being_taken(engine: sql.Engine) -> None:
    """Its transaction begins with its run, and may need any table after that."""
    with at_revision(engine, "0009"):
        pass
    with engine.connect() as message:
        message.execute(sql.text("select from runs for no key update"))
        with ThreadPoolExecutor(1) as pool:
            migration = pool.submit(migrate, engine)
            wait_until_blocked(engine, "runs")
            message.execute(sql.text("set local lock_timeout = '500ms'"))
            message.execute(sql.text("select from commands"))
            message.commit()
            migration.result(60)
    with engine.connect() as connection:
        assert current_revision(connection) == newest_revision()


def test_a_migration_that_gets_in_somebodys_way_is_tried_again(engine: sql.Engine) -> None:
    """Whoever only reads begins with any table."""
    with at_revision(engine, "0009"):
        pass
    with engine.connect() as reader, ThreadPoolExecutor(1) as pool:
        reader.execute(sql.text("set local deadlock_timeout = '60s'"))  # the other one gives way
        reader.execute(sql.text("select from commands"))
        migration = pool.submit(migrate, engine)
        wait_until_blocked(engine, "commands")
        reader.execute(sql.text("select from runs"))
        reader.commit()
        migration.result(60)
    with engine.connect() as connection:
        assert current_revision(connection) == newest_revision()


def test_a_detector_of_the_first_schema_goes_on_from_where_it_stood(engine: sql.Engine) -> None:
    """Its bytes were written with every message, so no samples lie behind them."""
    with at_revision(engine, "0001") as connection:
        connection.execute(
            sql.text(
                "insert into runs (run_id, project, name, created_at, state, attempts, incidents, "
                f"last_message_at) values ('{KEY}', 'p', 'r', now(), 'live', 1, 0, now())"
            )
        )
        connection.execute(
            sql.text(
                "insert into detector_states (run_id, version, attempt, segment, step, state) "
                f"values ('{KEY}', 7, 1, 0, 130, 'bytes')"
            )
        )
    migrate(engine)
    with engine.connect() as connection:
        row = load_state(connection, UUID(KEY), -1)
    assert row == StateRow(7, Place(1, 0, 130), 130, 7, 0, b"bytes")


def test_a_proposal_of_an_earlier_schema_was_made_by_its_projects_policy(
    engine: sql.Engine,
) -> None:
    script = f"""
        {RUN_WITH_INCIDENT}
        insert into commands (run_id, incident, number, verb, arguments, state, revision, reason,
            policy_version, attempt, expires_at, proposed_at, automatic)
            values ('{KEY}', 1, 1, 'stop', '{{}}', 'proposed', 1, 'x', 3, 1, now(), now(), false);
    """
    with at_revision(engine, "0008") as connection:
        connection.execute(sql.text(script))
    migrate(engine)
    with engine.connect() as connection:
        query = "select policy_version, policy_scope from commands"
        assert connection.execute(sql.text(query)).all() == [(3, "project")]


def test_an_entry_of_an_earlier_schema_tells_no_changes(engine: sql.Engine) -> None:
    script = f"""
        insert into audit (run_id, number, at, actor, action, subject, before, after)
            values ('{FLEET}', 1, now(), 'Ada', 'policy.written', 'policy of lab', 'policy 1',
            'policy 2');
    """
    with at_revision(engine, "0012") as connection:
        connection.execute(sql.text(script))
    migrate(engine)
    with engine.connect() as connection:
        [*_, entry], _ = read_audit(connection, FLEET, PageWanted(10, None))
    assert (entry.actor, entry.after, entry.changes) == ("Ada", "policy 2", [])


def test_a_run_of_an_earlier_schema_has_a_ledger_of_the_commands_that_went_out(
    engine: sql.Engine,
) -> None:
    """Two were proposed and one delivered; what was left out then nobody told."""
    script = f"""
        {RUN_WITH_INCIDENT}
        insert into attempts (run_id, number, id, started_at, last_message_at, alive_at, lost,
            last_sequence, world_size, capabilities, agent_version, settings, dropped_samples)
            values ('{KEY}', 1, 'a', now(), now(), now(), false, 1, 1, '{{}}', '1', '{{}}', 0);
        insert into commands (run_id, incident, number, verb, arguments, state, revision, reason,
            policy_version, attempt, expires_at, proposed_at, automatic, delivered_at)
            select '{KEY}', 1, n, 'stop', '{{}}', 'delivered', 1, 'x', 3, 1, now(), now(), false,
                   case when n = 2 then now() end
            from generate_series(1, 2) n;
    """
    with at_revision(engine, "0013") as connection:
        connection.execute(sql.text(script))
    migrate(engine)
    with engine.connect() as connection:
        found, more = read_ledger(connection, UUID(KEY), PageWanted(10))
    assert [(kind, row.number) for kind, row in found] == [(COMMAND, 2)]
    assert more is None


def test_a_token_of_an_earlier_schema_is_good_for_every_run_as_before(engine: sql.Engine) -> None:
    script = """
        insert into tokens (hash, role, project, created_at, created_by)
            values ('a hash', 'agent', 'lab', now(), 'Ada');
    """
    with at_revision(engine, "0010") as connection:
        connection.execute(sql.text(script))
    migrate(engine)
    with engine.connect() as connection:
        caller = find_caller(connection, b"a hash")
    assert caller is not None
    assert (caller.project, caller.run) == ("lab", None)


@pytest.mark.parametrize("revision", ["0001", "0002", "0004", "0006"])
def test_samples_of_every_earlier_schema_are_all_there_afterwards(
    engine: sql.Engine, revision: str
) -> None:
    """Step by step, with gaps, holes, what is not finite, and signals of the user's own."""
    key, day = KEY, "2026-03-04T05:06:07Z"
    columns = "run_id, attempt, segment, step, loss, lr, extra_names, extra_values, batch_first"
    script = f"""
        insert into runs (run_id, project, name, created_at, state, attempts, incidents,
            last_message_at) values ('{key}', 'p', 'r', now(), 'live', 1, 0, now());
        insert into attempts (run_id, number, id, started_at, last_message_at, alive_at, lost,
            last_sequence, world_size, capabilities, agent_version, settings, dropped_samples)
            values ('{key}', 1, 'a', now(), now(), now(), false, 1, 1, '{{}}', '1', '{{}}', 0);
        insert into segments (run_id, attempt, segment, reason, position, opened_at, first_step,
            last_step) values ('{key}', 1, 0, 'start', 0, '{day}', 1, 3001);
        insert into samples ({columns}, batch_end)
            select '{key}', 1, 0, s, case when s = 77 then 'NaN' else 1.0 / s end,
                   case when s > 2000 then s end,
                   case when s % 3 = 0 then '{{mine}}'::text[]
                        when s % 1000 = 1 then '{{b,mine}}' end,
                   case when s % 3 = 0 then array[s]::float8[]
                        when s % 1000 = 1 then array[-s, 'Infinity']::float8[] end, s - 1, s
            from generate_series(1, 3001) s where s <> 1500;
        insert into layer_norms values ('{key}', 1, 0, 5, 'grad_norm', '{{w}}', '{{0.5}}');
    """
    own = """
        select step, name, value from samples, unnest(extra_names, extra_values) as e(name, value)
        where value is not null order by step, name
    """
    rest = (own, "select step, names, norms from layer_norms")
    with at_revision(engine, revision) as connection:
        connection.execute(sql.text(script))
        before = [list(map(str, connection.execute(sql.text(query)))) for query in rest]
        plain = "select step, loss, lr, batch_first, batch_end from samples order by step"
        whole = list(map(str, connection.execute(sql.text(plain))))
    migrate(engine)
    with engine.connect() as connection:
        assert list(map(str, connection.execute(sql.text(plain)))) == whole
        assert [list(map(str, connection.execute(sql.text(query)))) for query in rest] == before
        assert len(whole) == 3000
        shelf = "select distinct shelf::text from segments union select shelf::text from pieces"
        assert connection.execute(sql.text(shelf)).scalars().all() == ["2026-03-02"]
        key_of = SegmentKey(UUID(key), 1, 0)
        assert read_curves(connection, key_of, 0, 4000).signals["b"].there.sum() == 3


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
    for name in ("pieces", "incident_samples", "layer_norms", "precursors"):
        kinds = {type(column.type).__name__ for column in metadata.tables[name].columns}
        assert "JSONB" not in kinds
