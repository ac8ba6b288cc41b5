"""The audit belongs to another role than the server's, which can only add entries to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import sqlalchemy as sql
from psycopg.errors import InsufficientPrivilege
from sqlalchemy.exc import ProgrammingError

from spikeguard_cli.main import main
from spikeguard_protocol import RunId
from spikeguard_server.jobs.ticker import let_go
from spikeguard_server.settings import Settings
from spikeguard_server.store import audit
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.migrations import migrate
from spikeguard_server.store.schema import grant_rows, make_role, ways_around
from spikeguard_server.store.tables.core import run_key
from tests.server.conftest import Databases
from tests.server.face.serving import serving
from tests.server.store.jobs import Job, execute, rows, spiking, value
from tests.server.store.test_retention import age

OWNER, SERVER = "audit_owner", "audit_server"
TEMPLATE = "two_roles"
KEY = run_key(RunId("default", "gpt"))


def url_as(url: str, role: str) -> str:
    return sql.make_url(url).set(username=role).render_as_string(hide_password=False)


@dataclass(frozen=True)
class Site:
    """One database as its owner and as the server reach it."""

    owner: sql.Engine
    server: sql.Engine

    @property
    def url(self) -> str:
        return self.server.url.render_as_string(hide_password=False)

    def note(self, *reasons: str, run: Any = KEY) -> None:
        """Entries as the server makes them."""
        for reason in reasons:
            with self.server.begin() as connection:
                audit.append(
                    connection, run, actor="Ada", action="noted", subject="gpt", reason=reason
                )


@pytest.fixture(scope="module")
def two_roles(databases: Databases) -> str:
    """A database that an ordinary role migrated, and where another one may work with rows."""
    url = databases.make(TEMPLATE, "template1")
    superuser = sql.create_engine(url)
    with superuser.begin() as connection:
        for role in (OWNER, SERVER):
            make_role(connection, role)
        connection.execute(sql.text(f"alter database {TEMPLATE} owner to {OWNER}"))
    superuser.dispose()
    owner = sql.create_engine(url_as(url, OWNER))
    migrate(owner)
    with owner.begin() as connection:
        grant_rows(connection, SERVER)
    owner.dispose()
    return TEMPLATE


@pytest.fixture
def site(databases: Databases, two_roles: str) -> Iterator[Site]:
    with databases.lent(two_roles) as url:
        owner, server = (
            open_engine(Settings(database_url=url_as(url, role))) for role in (OWNER, SERVER)
        )
        yield Site(owner, server)
        owner.dispose()
        server.dispose()


FORBIDDEN = (
    "update audit set reason = 'other'",
    "delete from audit",
    "truncate audit",
    "alter table audit disable trigger all",
    "drop trigger append_only on audit",
    "drop trigger numbered on audit",
    "create trigger mine before insert on audit execute function refuse_change()",
    "create rule mine as on insert to audit do instead nothing",
    "create or replace function number_audit() returns trigger language sql as 'select null'",
    "alter table audit owner to audit_server",
    "drop table audit cascade",
    "drop schema public cascade",
    "set session_replication_role = replica",
    "set role audit_owner",
    "grant audit_owner to audit_server",
    "create table public.mine ()",
    "update alembic_version set version_num = '0001'",
)


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_the_servers_role_can_neither_change_the_audit_nor_what_guards_it(
    site: Site, statement: str
) -> None:
    site.note("first")
    with pytest.raises(ProgrammingError) as refused, site.server.begin() as connection:
        connection.execute(sql.text(statement))
    assert isinstance(refused.value.orig, InsufficientPrivilege)
    assert value(site.owner, "select reason from audit") == "first"


def test_the_servers_role_chooses_neither_the_number_nor_the_time_of_an_entry(site: Site) -> None:
    """What it adds falsely stands at the end, with the true time."""
    site.note("first")
    forged = f"""
        insert into audit (run_id, number, at, actor, action, subject)
        values ('{KEY}', 77, '2020-01-01', 'Ada', 'approve', 'gpt#1.1')
    """
    execute(site.server, forged)
    last = "select number, at > now() - interval '1 hour' from audit"
    assert rows(site.owner, f"{last} order by number desc limit 1") == [(2, True)]


def test_the_server_does_all_of_its_work_as_a_role_that_owns_nothing(site: Site) -> None:
    """Ingest, decisions, retention, and deletion."""
    job = Job(site.server).start()
    job.train(1, 400, spiking(251, length=40), batch=50)
    assert value(site.owner, "select count(*) from incidents") == 1
    age(site.owner, 35)
    let_go(site.server, Settings(keep_samples_days=30.0))
    assert value(site.owner, "select count(*) from audit where action = 'drop'") >= 1
    execute(site.owner, "update attempts set lost = true, ended_at = now()")
    with site.server.connect() as connection:
        assert ways_around(connection) == []


def test_of_one_role_that_owns_everything_it_is_said_by_what_it_can_change_the_audit(
    site: Site,
) -> None:
    with site.owner.connect() as connection:
        assert "owns the table audit" in ways_around(connection)


def test_a_server_says_that_its_role_cannot_change_the_audit(site: Site) -> None:
    with serving(Settings(database_url=site.url)) as url:
        assert httpx.get(f"{url}/readyz", timeout=120).json()["audit_protected"] is True


def test_a_server_of_one_role_says_that_its_audit_is_not_protected(database_url: str) -> None:
    with serving(Settings(database_url=database_url)) as url:
        assert httpx.get(f"{url}/readyz", timeout=120).json()["audit_protected"] is False


def test_migrating_as_the_owner_takes_over_a_database_of_one_role(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What docs/access.md says to do, and what is said at each step that was forgotten."""
    with databases.lent("template1") as url:
        superuser = sql.create_engine(url, isolation_level="AUTOCOMMIT")
        with superuser.connect() as connection:
            for role in (OWNER, SERVER):
                make_role(connection, role)
            name = sql.make_url(url).database
            connection.execute(sql.text(f"alter database {name} owner to {SERVER}"))
        monkeypatch.setenv("DATABASE_URL", url_as(url, SERVER))
        assert main(["migrate"]) == 0  # as before there were two
        monkeypatch.setenv("SPIKEGUARD_OWNER_DATABASE_URL", url_as(url, OWNER))
        assert main(["migrate"]) == 1
        assert f"tables belong to {SERVER}" in capsys.readouterr().err
        with superuser.connect() as connection:
            connection.execute(sql.text(f"alter database {name} owner to {OWNER}"))
            connection.execute(sql.text(f"reassign owned by {SERVER} to {OWNER}"))
        assert main(["migrate"]) == 0
        monkeypatch.delenv("SPIKEGUARD_OWNER_DATABASE_URL")
        assert main(["migrate"]) == 0  # nothing to do, so nothing that it may not
        server = sql.create_engine(url_as(url, SERVER))
        with server.connect() as connection:
            assert ways_around(connection) == []
        server.dispose()
        superuser.dispose()


def test_a_server_that_may_not_change_an_older_schema_says_who_can(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with databases.lent("template1") as url:
        superuser = sql.create_engine(url)
        with superuser.begin() as connection:
            make_role(connection, SERVER)
        superuser.dispose()
        monkeypatch.setenv("DATABASE_URL", url_as(url, SERVER))
        assert main(["serve", "--port", "0"]) == 1
        assert "SPIKEGUARD_OWNER_DATABASE_URL" in capsys.readouterr().err
