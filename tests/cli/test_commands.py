"""The command line as a person types it, against a real HTTP server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.http_server import Answer, Request, answering
from spikeguard_cli.command import CHANGED, FAILED, NO_SERVER, NOT_ALLOWED, NotAllowed
from spikeguard_cli.credentials import Credentials, load_login, save_credentials
from spikeguard_cli.main import main
from spikeguard_client import Client
from spikeguard_protocol import BY_RESTART
from tests.hostile import HOSTILE, acted_on

COST = {
    "steps": 40,
    "seconds": 126.0,
    "tokens": 163840,
    "money": 12.5,
    "currency": "EUR",
    "step_time_s": 3.15,
    "waiting_steps": 19,
    "waiting_money": 5.95,
}
PROPOSAL = {
    "id": "gpt-1#3.1",
    "number": 1,
    "verb": "rollback",
    "arguments": {"target": "checkpoint-300", "step": 300, "skip": {"first": 310, "end": 330}},
    "revision": 2,
    "reason": "the loss settled 0.4 nats above trend",
    "checks": [],
    "cost": COST,
}
INCIDENT = {
    "id": "gpt-1#3",
    "state": "open",
    "kind": "lingering",
    "title": "lingering spike",
    "confidence": 0.93,
    "onset_step": 310,
    "peak_loss": "nan",
    "outcome": None,
    "proposal": PROPOSAL,
    "commands": [PROPOSAL],
}
RUN = {
    "id": "gpt-1",
    "state": "live",
    "last_step": 340,
    "last_loss": 3.1,
    "age_s": 1.0,
    "open_incident": 3,
    "waiting_approval": True,
    "look_at_job": None,
}


@dataclass
class Server:
    """Answers as the API does and remembers what it was asked."""

    url: str = ""
    asked: list[tuple[str, str, str, dict[str, Any]]] = field(default_factory=list)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    refusing: dict[str, tuple[int, Any]] = field(default_factory=dict)  # by token, all but /v1/me

    def answer(self, request: Request) -> Answer:
        path, token = request.path.split("?")[0], request.headers["Authorization"]
        self.asked.append((request.method, request.path, token, request.json()))
        status, answer = self.answers.get(path, (404, {"error": {"message": "no such"}}))
        if path != "/v1/me":
            status, answer = self.refusing.get(token.split()[-1], (status, answer))
        return status, {}, answer if isinstance(answer, bytes) else json.dumps(answer).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with answering(server.answer) as server.url:
        yield server


@pytest.fixture
def home(tmp_path: Path, server: Server) -> dict[str, str]:
    """An environment with its own credentials file, logged in as ada."""
    file = tmp_path / "credentials.json"
    login = {"server": server.url, "token": "secret", "name": "ada"}
    file.write_text(json.dumps({"logins": [login]}))
    return {**os.environ, "SPIKEGUARD_CREDENTIALS": str(file)}


@pytest.fixture
def login(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same for commands that run in this process."""
    monkeypatch.setenv("SPIKEGUARD_CREDENTIALS", home["SPIKEGUARD_CREDENTIALS"])
    return Path(home["SPIKEGUARD_CREDENTIALS"])


def spikeguard(
    environment: dict[str, str], *arguments: str, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """What a command says to whoever types it, without the second that a process takes to begin."""
    said = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with (
        mock.patch.dict(os.environ, {**environment, "COLUMNS": "80"}, clear=True),
        mock.patch.object(sys, "stdin", io.StringIO(typed)),
        contextlib.redirect_stdout(said[0]),
        contextlib.redirect_stderr(said[1]),
    ):
        status = main(arguments)
    for stream in said:
        stream.seek(0)
    return subprocess.CompletedProcess(arguments, status, *(stream.read() for stream in said))


def test_login_keeps_a_session_that_only_its_owner_can_read(tmp_path: Path, server: Server) -> None:
    server.answers["/v1/sessions"] = (
        200,
        {"token": "s3ss10n", "name": "ada", "role": "operator", "project": None},
    )
    file = tmp_path / "deep" / "credentials.json"
    environment = {**os.environ, "SPIKEGUARD_CREDENTIALS": str(file)}
    done = spikeguard(
        environment, "login", "--server", server.url, "--name", "ada", typed="given-token\n"
    )
    assert done.returncode == 0, done.stderr
    assert server.asked[0][3] == {"token": "given-token", "name": "ada"}
    assert json.loads(file.read_text())["logins"][0]["token"] == "s3ss10n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "s3ss10n" not in done.stdout + done.stderr


def test_a_login_is_written_into_no_file_that_was_there_before(tmp_path: Path) -> None:
    """As in a folder that others write in: the name of the file on its way is no secret."""
    theirs, kept = tmp_path / "theirs", tmp_path / "credentials.json"
    theirs.write_text("")
    (tmp_path / f".{kept.name}.{os.getpid()}").symlink_to(theirs)
    save_credentials(Credentials("http://127.0.0.1:9", "secret"), kept)
    assert theirs.read_text() == ""
    assert stat.S_IMODE(kept.lstat().st_mode) == 0o600
    assert json.loads(kept.read_text())["logins"][0]["token"] == "secret"


def test_one_login_a_server_is_kept_and_up_takes_no_other_ones_place(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    where = {"SPIKEGUARD_CREDENTIALS": str(path)}
    team, mine = "https://guard.example", "http://127.0.0.1:8000"
    assert save_credentials(Credentials(team, "t" * 43, "Ada"), path)
    assert not save_credentials(Credentials(mine, "u" * 43, "ada"), path, up="/data")
    assert load_login(where).server == team
    named = load_login({**where, "SPIKEGUARD_SERVER": f"{mine}/"})
    assert (named.server, named.token, named.name) == (mine, "u" * 43, "ada")
    again = "http://127.0.0.1:9000"  # the same `up` on another port
    assert not save_credentials(Credentials(again, "v" * 43, "ada"), path, up="/data")
    with pytest.raises(NotAllowed, match=f"nobody is logged in at {mine}"):
        load_login({**where, "SPIKEGUARD_SERVER": mine})
    assert save_credentials(Credentials(again, "w" * 43, "ada"), path)
    assert load_login(where).token == "w" * 43
    assert load_login({**where, "SPIKEGUARD_SERVER": team}).token == "t" * 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_long_list_is_read_page_by_page(home: dict[str, str], server: Server) -> None:
    server.answers["/v1/runs"] = (200, {"items": [RUN] * 2, "next_cursor": "more"})
    done = spikeguard(home, "runs", "--limit", "5", "--json")
    assert len(json.loads(done.stdout)) == 5
    assert "More runs exist: --limit 0 lists them all." in done.stderr
    assert "cursor=more" in server.asked[1][1]


def test_incidents_fit_a_terminal_and_say_where_a_job_died(
    home: dict[str, str], server: Server
) -> None:
    """80 columns, with a long name and everything that there is to say."""
    run = "llama-8b-c4-2026-11"
    died = "Look at the job: attempt 1 sent nothing any more and never said why. Its log knows."
    told = {"title": "non-finite gradient", "summary": "A gradient was not finite"}
    waits = {**INCIDENT, **told, "id": f"{run}#2", "proposal": {**PROPOSAL, "id": f"{run}#2.1"}}
    over = {**waits, "id": f"{run}#1", "state": "closed", "outcome": "healed", "proposal": None}
    gone = {**over, "id": "gone#1", "outcome": "run_ended"}
    server.answers["/v1/incidents"] = (200, {"items": [waits, over, gone], "next_cursor": None})
    server.answers[f"/v1/runs/default/{run}"] = (200, {**RUN, "look_at_job": died})
    shown = spikeguard(home, "incidents").stdout
    _, first, *below, last, deleted = shown.splitlines()
    assert max(map(len, shown.splitlines())) <= 80
    assert first.split() == [f"{run}#2", "open", "non-finite", "gradient", "(93%)", "310", "nan"]
    said = " ".join(" ".join(below).split())
    assert said.startswith(f"A gradient was not finite. Decide {run}#2.1: roll back to step 300")
    assert said.endswith(died)
    assert last.split()[1] == "healed"
    assert deleted.split()[:3] == ["gone#1", "run", "ended"]


def test_approve_names_the_revision_that_was_shown(home: dict[str, str], server: Server) -> None:
    path = "/v1/runs/default/gpt-1/incidents/3"
    server.answers[path] = (200, INCIDENT)
    server.answers[f"{path}/commands/1/approve"] = (200, PROPOSAL)
    done = spikeguard(home, "approve", "gpt-1#3", "--yes")
    assert done.returncode == 0, done.stderr
    assert server.asked[-1][3] == {"revision": 2}
    assert "the loss settled" in done.stdout
    assert "2.1 min" in done.stdout


def test_approve_says_restart_the_job_where_a_rollback_goes_by_restart(
    home: dict[str, str], server: Server
) -> None:
    path = "/v1/runs/default/gpt-1/incidents/3"
    server.answers[path] = (200, INCIDENT)
    server.answers[f"{path}/commands/1/approve"] = (200, PROPOSAL)
    in_place = {"name": "rollback", "answer": "yes", "cost": "the steps are trained again"}
    restarted = {**in_place, "cost": BY_RESTART}
    for earlier, newest, said in ((in_place, restarted, True), (restarted, in_place, False)):
        attempts = [{"number": 1, "abilities": [earlier]}, {"number": 2, "abilities": [newest]}]
        server.answers["/v1/runs/default/gpt-1"] = (200, {"attempts": attempts})
        done = spikeguard(home, "approve", "gpt-1#3", "--yes")
        assert done.returncode == 0, done.stderr
        assert ("carries this out once it is restarted" in done.stdout) == said
        assert ("exit status 76. Restart the job" in done.stdout) == said


@pytest.mark.parametrize("asked", ["gpt-1#3", "gpt-1#3.1"])
def test_nobody_decides_on_a_command_that_they_did_not_name(
    home: dict[str, str], server: Server, asked: str
) -> None:
    other = {**PROPOSAL, "id": "gpt-2#3.1"}
    incident = {**INCIDENT, "proposal": other, "commands": [other]}
    server.answers["/v1/runs/default/gpt-1/incidents/3"] = (200, incident)
    for verdict in (["approve", asked, "--yes"], ["reject", asked, "--reason", "no"]):
        done = spikeguard(home, *verdict)
        assert done.returncode == 1
        assert "asked for gpt-1#3, the server answered with gpt-2#3.1" in done.stderr
    assert {method for method, *_ in server.asked} == {"GET"}


def test_approve_without_a_yes_does_nothing(home: dict[str, str], server: Server) -> None:
    server.answers["/v1/runs/default/gpt-1/incidents/3"] = (200, INCIDENT)
    done = spikeguard(home, "approve", "gpt-1#3.1", typed="y\n")  # not a terminal: nobody agreed
    assert done.returncode == 1
    assert {method for method, *_ in server.asked} == {"GET"}


def test_a_changed_proposal_is_shown_and_not_approved(home: dict[str, str], server: Server) -> None:
    path = "/v1/runs/default/gpt-1/incidents/3"
    server.answers[path] = (200, INCIDENT)
    newer = {**PROPOSAL, "revision": 3, "reason": "the loss went non-finite"}
    server.answers[f"{path}/commands/1/approve"] = (
        409,
        {"error": {"code": "revision_changed", "message": "changed", "current": newer}},
    )
    done = spikeguard(home, "approve", "gpt-1#3", "--yes")
    assert done.returncode == CHANGED
    assert "the loss went non-finite" in done.stderr


def test_an_error_of_the_server_is_told_in_its_own_words(
    home: dict[str, str], server: Server
) -> None:
    error = {"code": "forbidden", "message": "role viewer may not", "remedy": "Ask an operator"}
    server.answers["/v1/runs"] = (403, {"error": error})
    done = spikeguard(home, "runs")
    assert done.returncode == NOT_ALLOWED
    assert done.stderr.startswith("spikeguard: role viewer may not. Ask an operator. ")
    file = home["SPIKEGUARD_CREDENTIALS"]
    way = f"`spikeguard login --server {server.url}` signs you in with another token"
    assert done.stderr.endswith(f"The token came from {file}. {way}\n")


@pytest.mark.parametrize("variable", ["SPIKEGUARD_TOKEN", "SPIKEGUARD_TOKEN_FILE"])
@pytest.mark.parametrize("role", ["agent", "metrics"])
def test_a_token_of_the_wrong_role_is_named_by_the_variable_that_it_came_from(
    home: dict[str, str], server: Server, tmp_path: Path, variable: str, role: str
) -> None:
    file = tmp_path / "token"
    file.write_text("job\n")
    error = {"message": f"A token of role {role} may not do this", "remedy": "Use another"}
    server.answers["/v1/runs"] = (403, {"error": error})
    server.answers["/v1/me"] = (200, {"role": role})
    value = str(file) if variable.endswith("FILE") else "job"
    del home["SPIKEGUARD_CREDENTIALS"]
    alone = {"SPIKEGUARD_CREDENTIALS": str(tmp_path / "none"), "SPIKEGUARD_SERVER": server.url}
    done = spikeguard({**home, **alone, variable: value}, "runs")
    assert done.returncode == NOT_ALLOWED
    named = f"{variable} ({file})" if variable.endswith("FILE") else variable
    assert f"The token came from {named}. Unset {variable} and run `spikeguard login" in done.stderr


def test_a_jobs_token_in_the_environment_gives_way_to_a_login_at_the_same_server(
    home: dict[str, str], server: Server
) -> None:
    server.refusing["job"] = (403, {"error": {"message": "role agent", "remedy": "x"}})
    server.answers["/v1/runs"] = (200, {"items": [RUN], "next_cursor": None})
    server.answers["/v1/me"] = (200, {"role": "agent"})
    given = {"SPIKEGUARD_SERVER": server.url, "SPIKEGUARD_TOKEN": "job"}
    done = spikeguard({**home, **given}, "runs")
    assert done.returncode == 0, done.stderr
    assert "gpt-1" in done.stdout
    assert "SPIKEGUARD_TOKEN holds a training job's token" in done.stderr


def test_a_login_elsewhere_is_never_used_for_the_server_that_was_named(
    home: dict[str, str], server: Server, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    login = {"server": "http://127.0.0.1:1", "token": "secret"}
    elsewhere.write_text(json.dumps({"logins": [login]}))
    server.refusing["job"] = (403, {"error": {"message": "role agent", "remedy": "x"}})
    server.answers["/v1/me"] = (200, {"role": "agent"})
    given = {"SPIKEGUARD_SERVER": server.url, "SPIKEGUARD_TOKEN": "job"}
    done = spikeguard({**home, **given, "SPIKEGUARD_CREDENTIALS": str(elsewhere)}, "runs")
    assert done.returncode == NOT_ALLOWED
    assert all("secret" not in token for _, _, token, _ in server.asked)


def raw_answer(answer: bytes) -> Iterator[str]:
    """A server that answers the first call so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def tell() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread.join(120)


@pytest.mark.parametrize("answer", [
    b"\x1b]52;c;Y3VybA==\x07\x1b[2J\nspikeguard: all is well\r\n\r\n",
    b"HTTP/9\x1b]0;FORGED\x07 200 OK\r\n\r\n",
    b"HTTP/1.1 302 F\r\nLocation: http://x\x1b[2J\r\n spikeguard: all is well\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\x1b[2J\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\x1b[2J\n",
    b"HTTP/1.1 422 X\r\nContent-Length: 12\r\n\r\n" + b'{"error":[]}',
])  # fmt: skip
def test_an_answer_that_is_none_of_the_api_is_one_line_that_drives_no_terminal(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in raw_answer(answer):
        monkeypatch.setenv("SPIKEGUARD_SERVER", url)
        monkeypatch.setenv("SPIKEGUARD_TOKEN", "x")
        assert main(["runs"]) in (FAILED, NO_SERVER)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("spikeguard: ")
    assert said.err.count("\n") == 1
    assert acted_on(said.err) == []


@pytest.mark.parametrize("name", ["SPIKEGUARD_TOKEN", "SPIKEGUARD_TOKEN_FILE"])
def test_a_token_with_more_beside_it_is_refused_and_not_repeated(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where somebody wrote a note into its file: `http.client` quotes what no header takes."""
    given = "secret-1\n# of the job"
    (tmp_path / "token").write_text(given)
    monkeypatch.delenv("SPIKEGUARD_TOKEN", raising=False)
    monkeypatch.setenv(name, given if name == "SPIKEGUARD_TOKEN" else str(tmp_path / "token"))
    monkeypatch.setenv("SPIKEGUARD_SERVER", "http://127.0.0.1:9")
    assert main(["runs"]) == 1
    said = capsys.readouterr().err
    assert "token: is one word" in said
    assert "secret" not in said
    assert main(["sync", str(tmp_path)]) == 1
    with pytest.raises(ValueError, match="is one word") as refused:
        Client("http://127.0.0.1:9", given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9", "ftp://127.0.0.1", "http://[::1", "http://a b", "http://a:99999"]
)
def test_an_address_that_is_none_is_one_clear_line(home: dict[str, str], address: str) -> None:
    done = spikeguard({**home, "SPIKEGUARD_SERVER": address, "SPIKEGUARD_TOKEN": "x"}, "runs")
    assert done.returncode == 1
    [said] = done.stderr.splitlines()
    assert said.startswith(f"spikeguard: {address!r} is no server's address. Write http://HOST")


def test_a_redirect_takes_no_token_elsewhere(home: dict[str, str]) -> None:
    """It points to itself under another path."""
    asked: list[str] = []

    def elsewhere(request: Request) -> Answer:
        asked.append(request.path)
        return 307, {"Location": "/thief"}, b""

    with answering(elsewhere) as address:
        named = {"SPIKEGUARD_SERVER": address, "SPIKEGUARD_TOKEN": "secret"}
        done = spikeguard({**home, **named}, "runs")
    assert done.returncode == NO_SERVER
    assert "The server points elsewhere (307, /thief)" in done.stderr
    assert len(asked) == 1


def test_a_token_that_would_travel_in_the_clear_is_warned_of(home: dict[str, str]) -> None:
    named = {"SPIKEGUARD_SERVER": f"http://{socket.gethostname()}:1", "SPIKEGUARD_TOKEN": "secret"}
    for allowed in ("", "1"):
        switch = {"SPIKEGUARD_ALLOW_PLAIN_HTTP": allowed}
        result = spikeguard({**home, **named, **switch}, "runs")
        assert ("over plain http" in result.stderr) is (allowed == "")
        assert "secret" not in result.stderr


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    missing = str(tmp_path / "token")
    done = spikeguard(dict(os.environ), "login", "--name", "ada", "--token-file", missing)
    assert done.returncode == 1
    assert done.stderr == (
        f"spikeguard: {missing}: No such file or directory. Next: `spikeguard login --help`\n"
    )
    named = {"SPIKEGUARD_SERVER": "http://127.0.0.1:9", "SPIKEGUARD_TOKEN_FILE": missing}
    done = spikeguard({**os.environ, **named}, "runs")
    assert (done.returncode, done.stderr[:33]) == (4, "spikeguard: SPIKEGUARD_TOKEN_FILE")


def test_a_server_that_speaks_no_tls_is_said_to_speak_none(home: dict[str, str]) -> None:
    with answering(lambda _: (200, {}, b"")) as address:
        named = {"SPIKEGUARD_SERVER": f"https{address[4:]}", "SPIKEGUARD_TOKEN": "secret"}
        done = spikeguard({**home, **named}, "runs")
    assert done.returncode == NO_SERVER
    assert "There is no secure connection to https://" in done.stderr
    assert "SSL_CERT_FILE" in done.stderr


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_a_server_says_reaches_the_terminal_as_text(
    login: Path, server: Server, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    del login
    refusal = {"error": {"message": text, "remedy": text}}
    server.answers["/v1/runs"] = (404, refusal)
    made = {"token": "T", "id": text, "role": "operator", "person": text, "run": None,
            "project": text, "expires_in_s": None}  # fmt: skip
    server.answers["/v1/tokens"] = (200, made)
    tested = {"result": "failed", "reason": text, "took_ms": 3.0}
    server.answers["/v1/channels/default/oncall/test"] = (200, tested)
    policy = {"policy": {"currency": text, text: {text: [text]}}}
    proposal = {**PROPOSAL, "checks": [text], "expires_in_s": 60.0}
    incident = {"title": text, "summary": text, "cause": text, "has_postmortem": False,
                "segment": {"attempt": text, "number": 0}, "proposal": proposal}  # fmt: skip
    server.answers["/v1/runs/default/gpt-1/incidents/3"] = (200, {**INCIDENT, **incident})
    silent = RUN | {"state": text, "look_at_job": text}
    server.answers["/v1/runs/default/gpt-1"] = (200, silent)
    curve = {
        "attempt": text,
        "number": 0,
        "current": True,
        "steps": [310],
        "values": {"loss": [2.0]},
    }
    server.answers["/v1/runs/default/gpt-1/incidents/3/series"] = (200, {"segments": [curve]})
    server.answers["/v1/policy"] = (200, policy)
    for arguments in (
        ("runs",),
        ("token", "create", "--role", "operator", "--person", "Ada"),
        ("channels", "test", "oncall"),
        ("show", "gpt-1#3"),
    ):
        main(arguments)
        told = capsys.readouterr()
        for line in (told.out + told.err).splitlines():
            assert acted_on(line, keep="") == []
            assert not line.startswith("FORGED")
    assert main(("show", "gpt-1#3")) == 0
    capsys.readouterr()
    main(("policy", "show"))
    shown = capsys.readouterr().out
    assert acted_on(shown) == []
    assert tomllib.loads(shown) == policy["policy"]
