"""A database of every earlier release, full of a run amid a spike, brought to this release.

The rows are made by this release and copied into each earlier schema as far as that had tables and
columns for them, so a new revision is tested with data as soon as it is written. Afterwards the run
has to go on through the API: what was stored is shown, what was approved reaches the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sql
from alembic.script import ScriptDirectory

from spikeguard.uplink.transport import Advice, Transport
from spikeguard_client import Client, Command
from spikeguard_protocol import Ack, CommandId, IncidentId, Role, RunId
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.domain.monitor.state import _MAGIC, STATE_VERSION
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.links import make_link
from spikeguard_server.store.migrations import _config, migrate
from spikeguard_server.store.tables.core import run_key
from tests.server.conftest import Databases
from tests.server.face.serving import serving
from tests.server.store.jobs import Job, columns, spiking
from tests.server.store.test_schema import at_revision

REVISIONS = sorted(s.revision for s in ScriptDirectory.from_config(_config()).walk_revisions())
RUN = RunId("default", "gpt")
CURVE = spiking(421)
COLUMNS = """select table_name, column_name from information_schema.columns
    join information_schema.tables using (table_schema, table_name)
    where table_schema = 'public' and table_type = 'BASE TABLE' order by ordinal_position"""
MADE_BY_MIGRATIONS = {"alembic_version", "shelves"}


@dataclass
class Past:
    """A run that waits for an order, and all that people wrote down around it."""

    engine: sql.Engine
    job: Job
    command: str = ""
    job_step: int = 0
    tokens: dict[Role, str] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def past(databases: Databases) -> Iterator[Past]:
    """Made through ingest and the API, once for all revisions."""
    settings = Settings(database_url=databases.make("past"))
    engine = open_engine(settings)
    made = Past(engine, Job(engine))
    with engine.begin() as connection:
        for role in (Role.AGENT, Role.ADMIN):
            made.tokens[role] = issue_token(connection, Grant(role, person="Ada"), "test")[0]
    with serving(settings) as url:
        live_through(made, Client(url, made.tokens[Role.ADMIN]))
        made.shown = shown(Client(url, made.tokens[Role.ADMIN]))
    yield made
    engine.dispose()


def live_through(past: Past, admin: Client) -> None:
    """Train until a rollback is proposed, and approve it; nobody has fetched it yet."""
    admin.put_policy(RUN.project, {"price_per_hour": 98.0})
    target = {"url": "https://team.example/hook", "secret": "of more than sixteen signs"}
    admin.put_channel(RUN.project, "team", {"kind": "webhook", "target": target})
    admin.silence(RUN.project, lasts_s=3600, reason="moving")
    past.job.start()
    past.job.train(1, 420, CURVE)
    for step in range(421, 700, 10):
        past.job.train(step, step + 9, CURVE)
        past.job_step = step + 9
        for incident in admin.incidents(RUN, state="open"):
            proposal = incident["proposal"]
            if proposal is not None and proposal["verb"] == "rollback":
                past.command = proposal["id"]
                link_to(past, proposal)
                admin.put_run_policy(RUN, {"price_per_hour": 3.0})
                say_yes(admin, past.command)
                return
    raise AssertionError("no rollback was proposed")


def say_yes(admin: Client, command: str) -> None:
    [incident] = admin.incidents(RUN)
    assert incident["proposal"] is not None
    admin.approve(CommandId.parse(command), incident["proposal"]["revision"])


def link_to(past: Past, proposal: Command) -> None:
    with past.engine.begin() as connection:
        make_link(
            connection, run_key(RUN), incident=1, command=proposal["number"],
            revision=proposal["revision"], channel="team", person="Ada",
            expires_at=datetime.now(UTC) + timedelta(hours=1),
        )  # fmt: skip


def shown(admin: Client) -> dict[str, Any]:
    """What the API says of the run, as far as every release knew of it."""
    incident = admin.incident(IncidentId(RUN, 1))
    return {
        "series": admin.series(RUN, "loss", "grad_norm", "step_time"),
        "incident": [incident["state"], incident["kind"], incident["onset_step"]],
        "commands": [(c["id"], c["state"], c["arguments"]) for c in incident["commands"]],
        "audit": [(e["number"], e["actor"], e["action"], e["reason"]) for e in admin.audit(RUN)],
        "targets": [target["name"] for target in admin.run(RUN)["targets"]],
        "tokens": [token["role"] for token in admin.tokens()],
        "policy": admin.policy(RUN.project)["policy"],
    }


def columns_of(connection: sql.Connection) -> dict[str, list[str]]:
    """Every table with its columns."""
    found: dict[str, list[str]] = {}
    for table, column in connection.execute(sql.text(COLUMNS)):
        found.setdefault(table, []).append(column)
    return found


def copy_back(past: sql.Connection, earlier: sql.Connection) -> dict[str, list[str]]:
    """Write into an earlier schema what it had a place for; which tables and columns it had."""
    here, there = columns_of(past), columns_of(earlier)
    here["samples"] = there.get("samples", [])  # a table once, a view of pieces since
    earlier.execute(sql.text("set local session_replication_role = replica"))  # in any order
    copied = {}
    for table in sorted((here.keys() & there.keys()) - MADE_BY_MIGRATIONS):
        names = [name for name in there[table] if name in here[table]]
        if names:
            copy_table(past, earlier, table, listed(names))
            copied[table] = names
    return copied


def copy_table(past: sql.Connection, earlier: sql.Connection, table: str, names: str) -> None:
    source, target = past.connection.cursor(), earlier.connection.cursor()
    with (
        source.copy(f"copy (select {names} from {table}) to stdout") as rows,
        target.copy(f"copy {table} ({names}) from stdin") as into,
    ):
        for row in rows:
            into.write(row)


def made_older(connection: sql.Connection) -> None:
    """The detector's state in a version that this release has to learn anew from the samples."""
    for table in ("detector_states", "detector_snapshots"):
        written = (
            f"overlay(state placing '{STATE_VERSION - 1}'::bytea from {1 + len(_MAGIC)} "
            f"for {len(str(STATE_VERSION))})"
        )
        connection.execute(sql.text(f"update {table} set state = {written}"))


def stored(connection: sql.Connection, copied: dict[str, list[str]]) -> dict[str, list[str]]:
    """The rows of those tables, in no order."""
    return {
        table: sorted(
            map(str, connection.execute(sql.text(f"select {listed(names)} from {table}")))
        )
        for table, names in copied.items()
    }


def listed(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_run_amid_a_spike_goes_on_from_every_earlier_revision(
    engine: sql.Engine, database_url: str, past: Past, revision: str
) -> None:
    """Nothing that was stored is lost, and the rollback that was approved reaches the job."""
    with past.engine.connect() as source, at_revision(engine, revision) as connection:
        copied = copy_back(source, connection)
        if revision != REVISIONS[-1]:
            made_older(connection)
        before = stored(connection, copied)
    assert {"runs", "incidents", "commands", "policies", "tokens", "audit"} <= before.keys()
    migrate(engine)
    with engine.connect() as connection:
        after = stored(connection, copied)
    after["audit"] = [entry for entry in after["audit"] if "'audit.chained'" not in entry]
    assert after == before
    with serving(Settings(database_url=database_url)) as url:
        admin = Client(url, past.tokens[Role.ADMIN])
        assert shown(admin) == past.shown
        ack = send_next(past, url)
        assert past.command in [order.command for order in ack.orders]
        [incident] = admin.incidents(RUN)
        assert incident["state"] == "open"
        assert admin.run(RUN)["last_step"] == past.job_step + 10
        relearned = [e for e in admin.audit(RUN) if e["action"] == "detection.relearned"]
        assert len(relearned) == (revision != REVISIONS[-1])


def send_next(past: Past, url: str) -> Ack:
    """Ten more steps, as the job's agent sends them."""
    steps = range(past.job_step + 1, past.job_step + 11)
    message = past.job.message(columns(steps, CURVE), sequence=past.job.sequence + 1)
    line = Transport(url, past.tokens[Role.AGENT], 20.0)
    verdict = line.send(message)
    line.close()
    assert verdict.advice is Advice.STORED, verdict
    assert verdict.ack is not None
    return verdict.ack
