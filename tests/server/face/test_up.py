"""`spikeguard up` as a real process: started, used, and ended in every way it can end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from benchmarks.http_server import answering
from spikeguard_cli.command import CommandFailed
from spikeguard_cli.credentials import Credentials, load_login, save_credentials
from tests.programs import SPIKEGUARD, start_module, typed

PROGRAM = [sys.executable, "-m", "spikeguard_cli.main"]
LIMIT_S = 120.0
AS_ROOT = ("--account", "nobody") if os.geteuid() == 0 else ()


class Up:
    """One `spikeguard up` after another in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SPIKEGUARD", "DATABASE"))},
            "SPIKEGUARD_CREDENTIALS": str(directory / "credentials.json"),
            "SPIKEGUARD_DASHBOARD_REFRESH": "2",
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._known: set[int] = set()

    def start(self, *options: str, forked: bool = True) -> subprocess.Popen[bytes]:
        """Start one; it is not ready yet. Not forked, it is started as it is typed."""
        (self.directory / "ready.json").unlink(missing_ok=True)
        words = ["up", *AS_ROOT, "--directory", str(self.directory / "data"), "--port", "0"]
        words += ["--json-ready", str(self.directory / "ready.json"), *options]
        log = self.directory / "up.log"
        if forked:
            self.process = start_module(
                SPIKEGUARD, *words, output=log, environment=self.environment
            )
            return self.process
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*PROGRAM, *words], env=self.environment, stdout=file, stderr=file
            )
        return self.process

    def ready(self) -> dict[str, Any]:
        """Wait until it says that all is healthy."""
        assert self.process is not None
        until = time.monotonic() + LIMIT_S
        while not (self.directory / "ready.json").exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < until, self.log()
            time.sleep(0.05)
        found: dict[str, Any] = json.loads((self.directory / "ready.json").read_text())
        return found

    def log(self) -> str:
        return (self.directory / "up.log").read_text()

    def postmaster(self) -> int:
        """The process of the database."""
        pid_file = self.directory / "data" / "postgres" / "data" / "postmaster.pid"
        return int(pid_file.read_text().splitlines()[0])

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another word of `spikeguard` beside it."""
        return typed(*words, environment=self.environment)

    def family(self) -> list[psutil.Process]:
        """Every process that belongs to it, ours or adopted, by the directory it was given."""
        mark, children = str(self.directory), self._children()
        found = []
        for process in psutil.process_iter():
            try:
                words = " ".join(process.cmdline())
                gone = process.status() == psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            if not gone and (mark in words or process.pid in children):
                found.append(process)
        return found

    def _children(self) -> set[int]:
        """Those that no command line tells: a forked one has that of what it was forked from."""
        if self.process is not None and psutil.pid_exists(self.process.pid):
            started = psutil.Process(self.process.pid).children(recursive=True)
            self._known |= {self.process.pid, *(child.pid for child in started)}
        return self._known

    def dashboard(self) -> psutil.Process:
        """The process of the pages."""
        assert self.process is not None
        started = psutil.Process(self.process.pid).children()
        return next(child for child in started if "spikeguard_dashboard" in child.cmdline())

    def all_gone(self, within_s: float = 120.0) -> bool:
        """Whether nothing of it is left after a while."""
        until = time.monotonic() + within_s
        while left := self.family():
            if time.monotonic() > until:
                print(left)
                return False
            time.sleep(0.1)
        return True


@pytest.fixture
def up() -> Iterator[Up]:
    """A short path that Postgres' own account can pass to; whatever is left in it is ended."""
    directory = Path(tempfile.mkdtemp(prefix="sg-up-", dir="/tmp"))
    directory.chmod(0o755)
    started = Up(directory)
    try:
        yield started
    finally:
        if started.process is not None and started.process.poll() is None:
            started.process.kill()
            started.process.wait()
        started.all_gone()
        shutil.rmtree(directory, ignore_errors=True)


def test_it_starts_everything_killed_leaves_nothing_and_finds_everything_again(up: Up) -> None:
    process = up.start("--dashboard-port", "0", forked=False)
    ready = up.ready()
    assert httpx.get(f"{ready['server']}/readyz", timeout=120).status_code == 200
    assert httpx.get(f"{ready['dashboard']}/_stcore/health", timeout=120).status_code == 200
    _the_dashboard_knows_no_more_than_it_must(up)
    _the_files_are_ours_alone(up, ready)
    _the_server_cannot_change_its_audit(up, ready)
    _its_tokens_do_what_they_are_for(ready)
    _the_command_line_is_logged_in(up)
    _what_it_says_to_set_for_a_job_leaves_the_command_line_working(up, ready)
    _admins_need_no_database(up)
    _its_link_signs_a_browser_in_once(up, ready)
    _a_second_one_is_refused_in_plain_words(up, ready["server"])
    assert "SPIKEGUARD_TOKEN_FILE" in up.log()
    secrets = [Path(ready[f"{name}_token_file"]) for name in ("agent", "login")]
    before = [file.read_text() for file in secrets]
    assert up.family()  # which remembers them
    process.kill()
    process.wait()
    assert up.all_gone()
    up.start("--no-dashboard")
    second = up.ready()
    assert [file.read_text() for file in secrets] == before
    assert second["dashboard"] is None
    lines = up.command("runs").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", "r"]
    _a_killed_database_ends_all_and_loses_nothing_acknowledged(up)


def _the_dashboard_knows_no_more_than_it_must(up: Up) -> None:
    environment = up.dashboard().environ()
    given = {name for name in environment if name.startswith(("SPIKEGUARD", "DATABASE", "PG"))}
    assert given == {
        "SPIKEGUARD_SERVER", "SPIKEGUARD_PUBLIC_URL", "SPIKEGUARD_DASHBOARD_REFRESH",
    }  # fmt: skip


def _the_files_are_ours_alone(up: Up, ready: dict[str, Any]) -> None:
    told = [Path(ready[name]) for name in ("agent_token_file", "login_token_file", "credentials")]
    for file in told:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((up.directory / "data").stat().st_mode) in (0o700, 0o711)
    for path in (up.directory / "data").iterdir():
        if path.name != "postgres":  # whoever may read a lock may hold it
            assert not path.stat().st_mode & 0o077, path
    for secret in told[:2]:
        assert secret.read_text().strip() not in up.log()


def _the_server_cannot_change_its_audit(up: Up, ready: dict[str, Any]) -> None:
    data = up.directory / "data"
    url = json.loads((data / "up.json").read_text())["database_url"].replace("+psycopg", "")
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("alter table audit disable trigger all")
    assert httpx.get(f"{ready['server']}/readyz", timeout=120).json()["audit_protected"] is True


def _its_tokens_do_what_they_are_for(ready: dict[str, Any]) -> None:
    _send_message(ready, 1)
    login = Path(ready["login_token_file"]).read_text().strip()
    session = httpx.post(
        f"{ready['server']}/v1/sessions", json={"token": login, "name": "Ada"}, timeout=120
    )
    assert session.json()["role"] == "operator"


def _the_command_line_is_logged_in(up: Up) -> None:
    runs = up.command("runs")
    assert runs.returncode == 0, runs.stderr
    made = up.command(
        "token", "create", "--role", "admin", "--unnamed", "--directory", str(up.directory / "data")
    )
    assert made.returncode == 0, made.stderr
    assert len(made.stdout.strip()) == 43


def _what_it_says_to_set_for_a_job_leaves_the_command_line_working(
    up: Up, ready: dict[str, Any]
) -> None:
    """The two `export` lines stay set in the shell in which the next command is typed."""
    lines = [line.strip() for line in up.log().splitlines() if "export SPIKEGUARD" in line]
    said = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert said["SPIKEGUARD_TOKEN_FILE"] == ready["agent_token_file"]
    up.environment |= said
    runs = up.command("runs")
    assert runs.returncode == 0, runs.stderr
    assert f"SPIKEGUARD_TOKEN_FILE ({ready['agent_token_file']})" in runs.stderr
    kept = up.environment.pop("SPIKEGUARD_CREDENTIALS")
    up.environment["SPIKEGUARD_CREDENTIALS"] = "/nonexistent/credentials.json"
    refused = up.command("runs")
    assert refused.returncode == 4
    for words in ("role agent may not", ready["agent_token_file"], "Unset", "spikeguard login"):
        assert words in refused.stderr
    up.environment["SPIKEGUARD_CREDENTIALS"] = kept
    for name in said:
        del up.environment[name]


def _admins_need_no_database(up: Up) -> None:
    """Neither DATABASE_URL nor --directory is named: all of it goes over HTTP with the login."""
    file = up.directory / "policy.toml"
    file.write_text("price_per_hour = 98.0\n")
    channel = up.directory / "channel.toml"
    channel.write_text(
        f'kind = "webhook"\n[target]\nurl = "https://x.example/"\nsecret = "{"s" * 32}"\n'
    )
    steps = [
        (("token", "list"), "agent"),
        (("policy", "import", str(file), "--reason", "the price"), "policy 2 is in force"),
        (("policy", "show"), "price_per_hour = 98.0"),
        (("channels", "put", "oncall", str(channel)), "channel oncall"),
    ]
    for words, answer in steps:
        done = up.command(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert answer in done.stdout, words
    assert "s" * 32 not in up.command("audit", "--limit", "0", "--jsonl").stdout


def _its_link_signs_a_browser_in_once(up: Up, ready: dict[str, Any]) -> None:
    link = ready["sign_in_link"]
    assert link in up.log()
    assert link.startswith("http://spikeguard.localhost:")  # no other port's server gets its cookie
    link = link.replace("spikeguard.localhost", "127.0.0.1")
    assert "Sign in as" in httpx.get(link, timeout=120).text
    assert httpx.post(link, timeout=120).status_code == 303
    assert "used already" in httpx.post(link, timeout=120).text
    another = up.command("open", "--sign-in")
    assert another.returncode == 0, another.stderr
    again = another.stdout.strip().replace("spikeguard.localhost", "127.0.0.1")
    assert httpx.post(again, timeout=120).status_code == 303


def _a_second_one_is_refused_in_plain_words(up: Up, server: str) -> None:
    ours = ("up", *AS_ROOT, "--directory", str(up.directory / "data"), "--no-dashboard", "--port")
    second = up.command(*ours, "0")
    assert second.returncode == 1
    assert "another process runs the database" in second.stderr
    taken = up.command(*ours, str(httpx.URL(server).port))
    assert taken.returncode == 1
    assert "choose another with --port" in taken.stderr


def _a_killed_database_ends_all_and_loses_nothing_acknowledged(up: Up) -> None:
    assert up.process is not None
    os.kill(up.postmaster(), signal.SIGKILL)
    assert up.process.wait(120) == 1
    assert "Postgres ended, so everything is stopped" in up.log()
    assert str(up.directory / "data" / "postgres" / "postgres.log") in up.log()
    assert up.all_gone(), up.log()
    process = up.start("--no-dashboard")
    _send_message(up.ready(), 2)  # which is refused unless the first is stored
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0, up.log()
    assert up.all_gone(0.0), up.log()


def _send_message(ready: dict[str, Any], sequence: int) -> None:
    agent = Path(ready["agent_token_file"]).read_text().strip()
    body = {"version": 1, "project": "default", "run": "r", "attempt": "0" * 16}
    answer = httpx.post(
        f"{ready['server']}/v1/messages",
        headers={"Authorization": f"Bearer {agent}"},
        json={**body, "sequence": sequence, "age_s": 0, "records": []},
    )
    assert answer.status_code == 200, answer.text


def test_ended_amid_its_start_it_leaves_nothing(up: Up) -> None:
    """Once it is ready, as where its database is killed, all else has ended before it."""
    process = up.start("--dashboard-port", "0")
    until = time.monotonic() + LIMIT_S
    while not (up.directory / "data/postgres/data/postmaster.pid").exists():
        assert process.poll() is None, up.log()
        assert time.monotonic() < until, up.log()
        time.sleep(0.02)
    assert up.family()
    process.send_signal(signal.SIGTERM)
    process.wait(120)
    assert up.all_gone(), up.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is asked for an account")
@pytest.mark.parametrize("account", [(), ("--account", "root")])
def test_root_names_the_account_that_gets_the_database(
    tmp_path: Path, account: tuple[str, ...]
) -> None:
    tmp_path.chmod(0o755)
    asked = ["--directory", str(tmp_path / "data"), "--no-dashboard", "--port", "0"]
    ended = typed("up", *asked, *account)
    assert ended.returncode == 1
    assert ("no other account" if account else "--account NAME") in ended.stderr
    assert not list(tmp_path.rglob("PG_VERSION"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's Postgres runs as another account")
def test_root_may_keep_its_folder_closed_to_the_account_of_the_database(up: Up) -> None:
    """As below root's home, where a clone and its demo lie."""
    up.directory.chmod(0o700)
    elsewhere = set(Path("/var/lib/spikeguard").glob("postgres-*"))
    try:
        process = up.start("--no-dashboard")
        assert up.ready()["directory"] == str(up.directory / "data")
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        assert up.all_gone(), up.log()
    finally:
        for made in set(Path("/var/lib/spikeguard").glob("postgres-*")) - elsewhere:
            shutil.rmtree(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """A token that they had put there before would have been an admin's."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    (theirs / "admin_token").write_text("k" * 43)
    os.chown(theirs, 65534, 65534)
    asked = ["up", *AS_ROOT, "--directory", str(theirs), "--no-dashboard", "--port", "0"]
    ended = typed(*asked)
    assert ended.returncode == 1
    assert "belongs to user 65534" in ended.stderr
    assert "--directory" in ended.stderr
    assert [path.name for path in theirs.iterdir()] == ["admin_token"]


def test_a_folder_that_every_user_can_write_in_is_refused(tmp_path: Path) -> None:
    """Whatever lies in it may be somebody else's, tokens too."""
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    ended = typed("up", *AS_ROOT, "--directory", str(place), "--no-dashboard", "--port", "0")
    assert ended.returncode == 1
    assert "is open to every user" in ended.stderr
    assert not list(place.iterdir())


def test_a_folder_in_place_of_a_file_of_credentials_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=f"{tmp_path} is no plain file"):
        load_login({"SPIKEGUARD_CREDENTIALS": str(tmp_path)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_credentials_that_another_user_wrote_speak_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    environment = {"SPIKEGUARD_CREDENTIALS": str(path)}
    save_credentials(Credentials("http://127.0.0.1:1", "k" * 43, "Ada"), path)
    assert load_login(environment).name == "Ada"
    os.chown(path, 65534, 65534)
    with pytest.raises(CommandFailed, match="belongs to user 65534"):
        load_login(environment)


@pytest.fixture
def stranger() -> Iterator[int]:
    """The port of somebody else's page, which answers every address with 200."""
    with answering(lambda _: (200, {}, b"a stranger's page")) as page:
        yield int(page.rpartition(":")[2])


def test_a_port_that_somebody_holds_is_never_announced(up: Up, stranger: int) -> None:
    process = up.start("--dashboard-port", str(stranger))
    assert process.wait(120) == 1
    assert not (up.directory / "ready.json").exists()
    assert not (up.directory / "credentials.json").exists()
    said = up.log()
    assert "spikeguard is up" not in said
    assert f"127.0.0.1:{stranger}" in said
    assert "choose another with --dashboard-port" in said
