"""The audit belongs to another role than the server's, and every change of it is found.

Whoever changes it here owns the table: the server's role is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sql
from psycopg.errors import InsufficientPrivilege
from sqlalchemy.exc import ProgrammingError

from spikeguard_cli.main import main
from spikeguard_core.audit.changes import FieldChange
from spikeguard_protocol import Role, RunId
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.jobs.audit_heads import HeadWriter
from spikeguard_server.jobs.housekeeping import tidy
from spikeguard_server.settings import Settings
from spikeguard_server.store import audit
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.migrations import migrate
from spikeguard_server.store.roles import grant_rows, make_role, ways_around
from spikeguard_server.store.tables.core import run_key
from tests.server.conftest import Databases
from tests.server.face.serving import serving
from tests.server.store.jobs import Job, rows, spiking, value
from tests.server.store.test_partitions import age

OWNER, SERVER = "chain_owner", "chain_server"
TEMPLATE = "two_roles"
KEY = run_key(RunId("default", "gpt"))
OTHER = run_key(RunId("default", "other"))


def url_as(url: str, role: str) -> str:
    return sql.make_url(url).set(username=role).render_as_string(hide_password=False)


@dataclass(frozen=True)
class Site:
    """One database as its owner and as the server reach it."""

    owner: sql.Engine
    server: sql.Engine

    @property
    def owner_url(self) -> str:
        return self.owner.url.render_as_string(hide_password=False)

    @property
    def url(self) -> str:
        return self.server.url.render_as_string(hide_password=False)

    def tamper(self, *statements: str) -> None:
        """What only the owner can: switch the triggers off, change, and switch them on again."""
        off, on = (f"alter table audit {word} trigger user" for word in ("disable", "enable"))
        with self.owner.begin() as connection:
            for statement in (off, *statements, on):
                connection.execute(sql.text(statement))

    def note(self, *reasons: str, run: Any = KEY) -> None:
        """Entries as the server makes them."""
        for reason in reasons:
            with self.server.begin() as connection:
                audit.append(
                    connection, run, actor="Ada", action="noted", subject="gpt", reason=reason
                )

    def export(self, directory: Path) -> Counter[str]:
        """Write the heads down as a server does from its start to its end."""
        counted = Counter[str]()
        writer = HeadWriter(self.server, directory, lambda result, n: counted.update({result: n}))
        writer.start()
        writer.stop()
        return counted


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


Verify = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verify:
    """`spikeguard audit verify` with its status and what it says."""

    def run(site: Site, *words: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setenv("DATABASE_URL", site.url)
        capsys.readouterr()
        status = main(["audit", "verify", "--json", *words])
        return status, json.loads(capsys.readouterr().out)

    return run


FORBIDDEN = (
    "update audit set reason = 'other'",
    "delete from audit",
    "truncate audit",
    "alter table audit disable trigger all",
    "drop trigger append_only on audit",
    "drop trigger chained on audit",
    "create trigger mine before insert on audit execute function refuse_change()",
    "create rule mine as on insert to audit do instead nothing",
    "create or replace function chain_audit() returns trigger language sql as 'select null'",
    "alter table audit owner to chain_server",
    "drop table audit cascade",
    "drop schema public cascade",
    "set session_replication_role = replica",
    "set role chain_owner",
    "grant chain_owner to chain_server",
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
        insert into audit (run_id, number, at, actor, action, subject, digest)
        values ('{KEY}', 77, '2020-01-01', 'Ada', 'approve', 'gpt#1.1', 'mine')
    """
    with site.server.begin() as connection:
        connection.execute(sql.text(forged))
    last = "select number, at > now() - interval '1 hour', digest <> 'mine' from audit"
    assert rows(site.owner, f"{last} order by number desc limit 1") == [(2, True, True)]


def test_the_server_does_all_of_its_work_as_a_role_that_owns_nothing(site: Site) -> None:
    """Ingest, decisions, retention with its partitions, and deletion."""
    job = Job(site.server)
    job.start()
    job.train(1, 400, spiking(251, length=40), batch=50)
    assert value(site.owner, "select count(*) from incidents") == 1
    age(site.owner, 35)
    tidy(site.server, Settings(keep_samples_days=30.0, keep_deliveries_days=1.0))
    assert value(site.owner, "select count(*) from samples") == 0
    assert value(site.owner, "select count(*) from audit where action = 'drop'") >= 1
    with site.owner.begin() as connection:
        connection.execute(sql.text("update attempts set lost = true, ended_at = now()"))
    with site.server.connect() as connection:
        assert ways_around(connection) == []


def test_of_one_role_that_owns_everything_it_is_said_by_what_it_can_change_the_audit(
    site: Site,
) -> None:
    with site.owner.connect() as connection:
        assert "owns the table audit" in ways_around(connection)


def test_a_digest_is_computed_as_the_protocol_says(site: Site) -> None:
    """By hand, from the columns: whoever verifies needs no code of ours."""
    site.note("erste Prüfung")
    with site.server.begin() as connection:
        audit.append(
            connection, KEY, actor="Ada", action="policy.written", subject="policy of lab",
            changes=[FieldChange("price_per_hour", 1.5, None)],
        )  # fmt: skip
    previous = ""
    for number in (1, 2):
        query = f"select to_jsonb(a) - 'digest', digest from audit a where number = {number}"
        [(found, digest)] = rows(site.server, query)
        texts = {
            name: json.dumps(text) if name == "changes" else str(text)
            for name, text in dict(found).items()
            if text is not None
        }
        lines = [f"{name}={len(text.encode())}:{text}" for name, text in sorted(texts.items())]
        whole = "\n".join([f"previous={previous}", *lines])
        assert hashlib.sha256(whole.encode()).digest() == digest
        previous = bytes(digest).hex()


THREE = ("first", "second", "third")
RENUMBER = f"update audit set number = number - 1 where run_id = '{KEY}' and number > 2"
TAMPERED = {
    "an entry changed": (["update audit set reason = 'x' where reason = 'second'"], "changed", 2),
    "an actor changed": (["update audit set actor = 'Eve' where number = 1"], "changed", 1),
    "an entry dated back": (["update audit set at = '2020-01-01' where number = 3"], "changed", 3),
    "an entry deleted": (["delete from audit where number = 2"], "missing", 2),
    "the first one deleted": (["delete from audit where number = 1"], "missing", 1),
    "a gap closed": (["delete from audit where number = 2", RENUMBER], "changed", 2),
    "an entry put in": (
        [
            "update audit set number = 4 where number = 3",
            "insert into audit (run_id, number, at, actor, action, subject, before, after, reason)"
            " select run_id, 3, at, actor, action, subject, before, after, 'false'"
            " from audit where number = 1",
        ],
        "unchained", 3,
    ),
    "digests taken away": (["update audit set digest = null"], "unchained", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_what_the_owner_changes_is_found_in_the_database_alone(
    site: Site, verify: Verify, name: str
) -> None:
    statements, fault, number = TAMPERED[name]
    site.note(*THREE)
    assert verify(site)[0] == 0
    site.tamper(*statements)
    status, said = verify(site)
    assert status == 3
    [finding] = said["findings"]
    assert (finding["fault"], finding["number"]) == (fault, number)


def make_anew(site: Site) -> None:
    """The whole chain again, as if the second entry had said something else."""
    again = (
        "insert into audit (run_id, number, at, actor, action, subject, before, after, reason)"
        " select run_id, 0, at, actor, action, subject, before, after, {} from"
    )
    with site.owner.begin() as connection:
        for statement in (
            "alter table audit disable trigger append_only",
            "create temporary table kept as select * from audit",
            "delete from audit",
            again.format("case number when 2 then 'x' else reason end")
            + " (select * from kept order by number) as k",
            "alter table audit enable trigger append_only",
        ):
            connection.execute(sql.text(statement))


def cut(site: Site) -> None:
    site.tamper("delete from audit where number = 3")


def remove_run(site: Site) -> None:
    site.tamper("delete from audit")


@pytest.mark.parametrize(
    ("change", "fault", "number"),
    [(make_anew, "rewritten", 2), (cut, "cut", 3), (remove_run, "cut", 2)],
)
def test_a_chain_made_anew_or_cut_is_found_by_the_heads_that_were_exported(
    site: Site, verify: Verify, tmp_path: Path, change: Callable[[Site], None], fault: str,
    number: int,
) -> None:  # fmt: skip
    """And by nothing else: whoever owns the table can make digests that fit."""
    site.note("first", "second")
    site.export(tmp_path)
    site.note("third")
    site.export(tmp_path)
    assert verify(site, "--heads", str(tmp_path))[0] == 0
    change(site)
    assert verify(site)[0] == 0
    status, said = verify(site, "--heads", str(tmp_path))
    assert status == 3
    [finding] = said["findings"]
    assert (finding["fault"], finding["number"]) == (fault, number)


def test_runs_have_chains_of_their_own(site: Site, verify: Verify) -> None:
    """So no lock spans runs, and one that does not fit says nothing of another."""
    site.note(*THREE)
    with site.server.begin() as held:
        audit.append(held, KEY, actor="Ada", action="noted", subject="gpt")
        site.note("meanwhile", run=OTHER)
    with site.server.begin() as connection:
        issue_token(connection, Grant(Role.ADMIN), "test")
    site.tamper(f"update audit set reason = 'x' where run_id = '{KEY}' and number = 2")
    assert verify(site, "--run", "other") == (0, verify(site, "--run", "other")[1])
    assert verify(site, "--run", "gpt")[0] == 3
    status, said = verify(site)
    assert (status, said["runs"], len(said["findings"])) == (3, 3, 1)


def test_a_head_is_written_once_whoever_committed_it_and_after_a_restart(
    site: Site, tmp_path: Path
) -> None:
    place = tmp_path / "heads"
    site.note("first")
    assert site.export(place) == {"written": 1}
    site.note("second", run=OTHER)
    assert site.export(place)["failed"] == 0
    [file] = place.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    found = {(h["run_id"], h["number"]): h["digest"] for h in map(json.loads, file.open())}
    stored = rows(site.owner, "select run_id::text, number, encode(digest, 'hex') from audit")
    assert found == {(run, number): digest for run, number, digest in stored}


def test_a_line_that_was_broken_off_hides_no_head(
    site: Site, verify: Verify, tmp_path: Path
) -> None:
    site.note("first")
    site.export(tmp_path)
    [file] = tmp_path.iterdir()
    file.write_text(file.read_text() + '{"run_id": "0000')
    site.note("second")
    site.export(tmp_path)
    assert verify(site, "--heads", str(file))[0] == 0
    cut_last = f"delete from audit where run_id = '{KEY}' and number = 2"
    site.tamper(cut_last)
    assert verify(site, "--heads", str(file))[0] == 3


def test_heads_that_cannot_be_written_are_counted_and_written_later(
    site: Site, tmp_path: Path
) -> None:
    place = tmp_path / "heads"
    place.write_text("a file is in the way")
    site.note("first")
    assert site.export(place) == {"failed": 1}
    place.unlink()
    assert site.export(place) == {"written": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing\n{}\n", "line"),
        ('{"run_id": "x"}\n', "line"),
        ("[" * 20_000 + "}\n", "line"),
        ("", "holds no head"),
        ("null\n", "holds no head"),
    ],
)
def test_heads_that_cannot_be_read_are_an_error_and_no_verdict(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "heads").write_text(text)
    monkeypatch.setenv("DATABASE_URL", site.url)
    assert main(["audit", "verify", "--heads", str(tmp_path / "heads")]) == 1
    assert said in capsys.readouterr().err


def test_a_server_writes_heads_down_and_says_that_its_role_cannot_change_the_audit(
    site: Site, tmp_path: Path
) -> None:
    site.note("first")
    given = Settings(database_url=site.url, audit_heads_directory=str(tmp_path))
    with serving(given) as url:
        assert httpx.get(f"{url}/readyz", timeout=30).json()["audit_protected"] is True
    assert [json.loads(line)["number"] for f in tmp_path.iterdir() for line in f.open()] == [1]


def test_a_server_of_one_role_says_that_its_audit_is_not_protected(database_url: str) -> None:
    with serving(Settings(database_url=database_url)) as url:
        assert httpx.get(f"{url}/readyz", timeout=30).json()["audit_protected"] is False


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
