"""A database of every earlier release, with a run amid a spike, brought to this release.

`release_dumps` kept them, each written by the code of its own time. Afterwards the run has to go on
through the API: what was stored is shown, what was approved reaches the job.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sql
from alembic import command
from alembic.script import ScriptDirectory

from spikeguard.uplink.transport import Advice, Transport
from spikeguard_cli.main import main
from spikeguard_client import Client
from spikeguard_protocol import Ack, Role
from spikeguard_server.domain.monitor.state import _MAGIC, STATE_VERSION
from spikeguard_server.settings import Settings
from spikeguard_server.store.migrations import SCRIPTS, _config, migrate
from tests.server.conftest import Databases
from tests.server.face.serving import serving
from tests.server.store.jobs import FIRST, Job, columns, value
from tests.server.store.release_dumps import (
    RUN,
    Past,
    curve,
    dumped,
    program,
    restore,
    shown,
    stored_revisions,
)

WRITE = "`python -m tests.server.store.release_dumps`"
COLUMNS = """select table_name, column_name from information_schema.columns
    join information_schema.tables using (table_schema, table_name)
    where table_schema = 'public' and table_type = 'BASE TABLE' order by ordinal_position"""
RELEARNED = "select count(*) from audit where action = 'detection.relearned'"


@pytest.fixture
def empty_url(databases: Databases) -> Iterator[str]:
    with databases.lent("template1") as url:
        yield url


@pytest.fixture
def empty(empty_url: str) -> Iterator[sql.Engine]:
    """A pool on a database without a schema."""
    engine = sql.create_engine(empty_url)
    yield engine
    engine.dispose()


def rows(engine: sql.Engine, tables: dict[str, list[str]]) -> dict[str, list[str]]:
    """What stands in those columns, in no order."""
    with engine.connect() as connection:
        return {
            table: sorted(
                map(str, connection.execute(sql.text(f"select {listed(names)} from {table}")))
            )
            for table, names in tables.items()
        }


def listed(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def columns_of(engine: sql.Engine) -> dict[str, list[str]]:
    """Every table with its columns, but the one that says which revision it is."""
    found: dict[str, list[str]] = {}
    with engine.connect() as connection:
        for table, column in connection.execute(sql.text(COLUMNS)):
            found.setdefault(table, []).append(column)
    del found["alembic_version"]
    return found


def make_older(engine: sql.Engine) -> None:
    """The detector's state in a version that this release has to learn anew from the samples."""
    with engine.begin() as connection:
        for table in ("detector_states", "detector_snapshots"):
            head = f"{_MAGIC.decode()}{STATE_VERSION - 1}"
            rest = "substring(state from position('\\x0a'::bytea in state))"
            connection.execute(sql.text(f"update {table} set state = '{head}'::bytea || {rest}"))


def written_alike(engine: sql.Engine) -> bool:
    """Whether the detector's state is of the version that this release reads."""
    head = value(engine, "select substring(state from 1 for 64) from detector_states")
    return bytes(head).startswith(_MAGIC + f"{STATE_VERSION}\n".encode())


def test_a_database_of_every_revision_is_kept() -> None:
    """So no migration is released that was tried on empty tables alone."""
    revisions = sorted(s.revision for s in ScriptDirectory(str(SCRIPTS)).walk_revisions())
    assert stored_revisions() == revisions, f"run {WRITE} and commit what it writes"


@pytest.mark.skipif(program("pg_dump") is None, reason="this Postgres comes without pg_dump")
@pytest.mark.parametrize("revision", stored_revisions())
def test_a_revision_makes_what_it_made_when_it_was_released(
    databases: Databases, empty: sql.Engine, revision: str
) -> None:
    """Where it fails: a release has this schema; add a migration. Before the first release has it,
    write the database anew."""
    with empty.begin() as connection:
        config = _config(SCRIPTS)
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    with databases.lent("template1") as url:
        released = sql.create_engine(url)
        restore(released, revision)
        drop_partitions(released)
        drop_partitions(empty)
        kept, made = dumped(released, "--schema-only"), dumped(empty, "--schema-only")
        released.dispose()
    assert made == kept, f"{revision} is not what {WRITE} kept of it"


def drop_partitions(engine: sql.Engine) -> None:
    """They are named by the week."""
    with engine.begin() as connection:
        connection.execute(
            sql.text(
                "select partitions.drop_partition(parent, starts) from weeks "
                "cross join unnest(array['chunks', 'rollups', 'layer_norms']) parent"
            )
        )


@pytest.mark.parametrize("state", ["as it was written", "of an older version"])
@pytest.mark.parametrize("revision", stored_revisions())
def test_a_run_amid_a_spike_goes_on_from_every_earlier_release(
    empty: sql.Engine, empty_url: str, revision: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was stored is lost, and the rollback that was approved reaches the job."""
    past = Past.read(revision)
    restore(empty, revision)
    if state == "of an older version":
        make_older(empty)
    alike, had = written_alike(empty), columns_of(empty)
    before = rows(empty, had)
    assert {"runs", "incidents", "commands", "policies", "tokens", "audit"} <= before.keys()
    migrate(empty)
    there = columns_of(empty)
    kept = {t: [n for n in names if n in there.get(t, [])] for t, names in had.items()}
    assert kept == had  # a migration that drops something says here what
    assert rows(empty, had) == before
    monkeypatch.setenv("DATABASE_URL", empty_url)
    assert main(["audit", "verify"]) == 0
    with serving(Settings(database_url=empty_url)) as url:
        admin = Client(url, past.tokens[Role.ADMIN])
        for part, told in shown(admin).items():
            assert told == past.shown[part], part
        ack = send_next(empty, past, url)
        assert past.command in [order.command for order in ack.orders]
        [incident] = admin.incidents(RUN)
        assert incident["state"] == "open"
        assert admin.run(RUN)["last_step"] == past.last_step + 10
        assert value(empty, RELEARNED) == (not alike)


def send_next(engine: sql.Engine, past: Past, url: str) -> Ack:
    """Ten more steps, as the job's agent sends them."""
    steps = range(past.last_step + 1, past.last_step + 11)
    job = Job(engine, FIRST, sequence=past.sequence)
    line = Transport(url, past.tokens[Role.AGENT], 20.0)
    verdict = line.send(job.message(columns(steps, curve)))
    line.close()
    assert verdict.advice is Advice.STORED, verdict
    assert verdict.ack is not None
    return verdict.ack
