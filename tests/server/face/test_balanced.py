"""Two real servers behind a real balancer, with the configuration that lies in deploy/balancer.

One of them is told to stop amid it all: an agent's messages and its wait for an order
go on with the other.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from subprocess import Popen

import httpx
import pytest
import sqlalchemy as sql
import yaml

from benchmarks.http_server import free_port
from spikeguard.commands.orders import Inbox
from spikeguard.faults import Faults
from spikeguard.settings import Settings as AgentSettings
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.sender import Sender
from spikeguard.uplink.transport import Transport
from spikeguard_client import ApiError, Client
from spikeguard_protocol import CommandId, Role, RunId, Verb, verb_of
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.tables.core import run_key
from tests.agent.wire import await_that
from tests.programs import is_answered, serve
from tests.server.conftest import Databases
from tests.server.face.conftest import Job, Live

CONFIGURATION = Path(__file__).parents[3] / "deploy" / "balancer" / "haproxy.cfg"
RUN, UPGRADED = RunId("default", "balanced"), RunId("default", "upgraded")
READY_S = 120.0
DOWN_S = 3.0  # the balancer asks every second and believes the second refusal


def haproxy() -> str:
    """The program, or a reason to skip."""
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip("haproxy is not installed")
    return found


@contextmanager
def ending(child: Popen[bytes]) -> Iterator[Popen[bytes]]:
    """`child`, which does not outlive the test."""
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def is_ready(url: str) -> bool:
    return is_answered(f"{url}/readyz")


@pytest.fixture(scope="module")
def database(databases: Databases) -> Iterator[sql.Engine]:
    """A pool on a database of this file's."""
    with databases.lent() as url:
        engine = open_engine(Settings(database_url=url))
        yield engine
        engine.dispose()


@pytest.fixture(scope="module")
def balanced(
    database: sql.Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Live, list[Popen[bytes]]]]:
    """The service as everybody reaches it, and its two replicas. One may be told to stop: what the
    other promises it keeps alone."""
    environment = {
        **os.environ,
        "DATABASE_URL": database.url.render_as_string(hide_password=False),
        "SPIKEGUARD_TRUSTED_PROXIES": "127.0.0.1",
    }
    program, ports = haproxy(), [free_port() for _ in range(3)]
    balancer, *replicas = [f"127.0.0.1:{port}" for port in ports]
    names = {"BALANCER_BIND": balancer, "REPLICA_A": replicas[0], "REPLICA_B": replicas[1]}
    log = tmp_path_factory.mktemp("balanced") / "log"
    with ExitStack() as stack:
        children = [
            stack.enter_context(ending(serve(port, log=log, environment=environment)))
            for port in ports[1:]
        ]
        for address in replicas:
            await_that(lambda: is_ready(f"http://{address}"), READY_S)  # noqa: B023
        balance = [program, "-q", "-db", "-f", str(CONFIGURATION)]
        stack.enter_context(ending(subprocess.Popen(balance, env={**os.environ, **names})))
        await_that(lambda: is_ready(f"http://{balancer}"), READY_S)
        with database.begin() as connection:
            tokens = {
                role: issue_token(connection, Grant(role, person="Ada"), "test")[0] for role in Role
            }
        yield Live(f"http://{balancer}", database, tokens), children


@contextmanager
def agent(live: Live, job: Job) -> Iterator[tuple[Outbox, Inbox]]:
    """The sender of a real agent that goes on where `job` stands."""
    outbox = Outbox(None, RUN, job.attempt, 2**24)
    outbox._open.sequence = job.sequence + 1
    inbox = Inbox()
    line = Transport(live.url, live.tokens[Role.AGENT], 60.0)
    settings = AgentSettings(send_interval_s=0.05, backoff_s=0.5)
    sender = Sender(line, outbox, [], inbox, settings, Faults())
    sender.start()
    try:
        yield outbox, inbox
        await_that(lambda: outbox.empty)
    finally:
        sender.finish(120.0)


@contextmanager
def trained(job: Job, outbox: Outbox) -> Iterator[None]:
    """Ten steps every 20 ms, told to the agent."""
    over = threading.Event()

    def train() -> None:
        while not over.wait(0.02):
            outbox.put(job.steps(10, excess=3.0))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_message_to_replicas_that_are_too_busy_for_the_balancers_check_waits_and_is_taken(
    balanced: tuple[Live, list[Popen[bytes]]],
) -> None:
    """Both stand still for longer than the balancer takes to believe that one is gone."""
    live, replicas = balanced
    job = Job(live, "busy").start()
    for replica in replicas:
        replica.send_signal(signal.SIGSTOP)
    goes_on = threading.Timer(DOWN_S + 0.5, resume, [replicas])
    goes_on.start()
    try:
        time.sleep(DOWN_S)
        job.train(5)
    finally:
        goes_on.join()
    assert newest_step(live, RunId("default", "busy")) == job.step


def test_the_balancer_refuses_what_costs_much_to_read_and_says_itself_who_calls(
    balanced: tuple[Live, list[Popen[bytes]]],
) -> None:
    live, _ = balanced
    with live.client() as client:
        assert client.get("/readyz", headers={"X": "x" * 20_000}).status_code == 400
        large = client.post("/v1/messages", content=b"x" * (4 * 2**20 + 1))
        assert large.status_code == 413
        unsized = client.post("/v1/sessions", content=iter([b"{}"]))
        in_parts = client.post("/login", files={"token": b"x"})
        quoted = client.get("/login", headers={"Cookie": 'a="' + "\\" * 9_000 + '"'})
    assert [each.status_code for each in (unsized, in_parts, quoted)] == [411, 415, 400]
    forged = {"X-Forwarded-For": "203.0.113.9"}
    job = Job(live, "who-calls").start()
    job.spike()
    command = job.command_path(job.incident()["proposal"])
    with live.client(Role.OPERATOR) as ada:
        no = {"revision": 1, "reason": "not now"}
        assert ada.post(f"{command}/reject", json=no, headers=forged).status_code == 200
        told = ada.get(f"{job.path}/audit").text
    assert "not now (by the API from 127.0.0.1)" in told


def test_who_guesses_tokens_is_refused_at_the_balancer_and_takes_nothing_from_those_that_work(
    balanced: tuple[Live, list[Popen[bytes]]],
) -> None:
    """All of them from one address."""
    live, _ = balanced
    with live.client(Role.VIEWER) as good, live.client() as stranger:
        assert good.get("/v1/me").status_code == 200
        guess = ({"Authorization": f"Bearer guess-{n}"} for n in range(1_000))
        answers = (stranger.get("/v1/me", headers=each).status_code for each in guess)
        assert sum(1 for _ in takewhile(lambda status: status == 401, answers)) in range(200, 1_000)
        assert good.get("/v1/me").status_code == 200


def test_a_replica_that_is_told_to_stop_takes_no_message_and_no_order_along(
    balanced: tuple[Live, list[Popen[bytes]]],
) -> None:
    live, [one, _] = balanced
    job = Job(live, RUN.name).start()
    operator = Client(live.url, live.tokens[Role.OPERATOR])
    job.spike()
    with agent(live, job) as (outbox, inbox), trained(job, outbox):
        await_that(lambda: inbox.asked_attentive)
        one.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        await_that(lambda: approved(operator))
        await_that(lambda: Verb.ROLLBACK in {verb_of(d.order.action) for d in inbox.deliveries})
        one.wait(120)
        stored = job.step
        await_that(lambda: newest_step(live, RUN) > stored)
    count = "select count(*), count(distinct step), max(step) from samples where run_id = :run"
    with live.engine.connect() as connection:
        found = connection.execute(sql.text(count), {"run": run_key(RUN)}).one()
    assert tuple(found) == (job.step,) * 3
    entries = [entry["number"] for entry in operator.audit(RUN)]
    assert entries == list(range(len(entries), 0, -1))


def resume(replicas: Iterable[Popen[bytes]]) -> None:
    """Let processes go on that were stopped."""
    for replica in replicas:
        replica.send_signal(signal.SIGCONT)


def approved(operator: Client) -> bool:
    """Say yes to what is proposed; False where that was revised meanwhile."""
    [incident] = operator.incidents(RUN)
    proposal = incident["proposal"]
    assert proposal is not None
    try:
        operator.approve(CommandId.parse(proposal["id"]), proposal["revision"])
    except ApiError as refusal:
        if refusal.status != 409:
            raise
        return False
    return True


def newest_step(live: Live, run: RunId) -> int:
    newest = sql.text("select max(step) from samples where run_id = :run")
    with live.engine.connect() as connection:
        return int(connection.execute(newest, {"run": run_key(run)}).scalar_one())


def test_with_a_certificate_the_way_in_speaks_tls_and_the_stack_holds_it_for_healthy(
    tmp_path: Path,
) -> None:
    """As operations.md gives it one: compose's own check asks on the same port."""
    site, port = tmp_path / "site.pem", free_port()
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", "-", "-out", "-"]  # fmt: skip
    site.write_bytes(subprocess.run(made, capture_output=True, check=True).stdout)
    environment = {
        **os.environ,
        "BALANCER_BIND": f"127.0.0.1:{port}",
        "BALANCER_TLS": f"ssl crt {site} alpn http/1.1",
        "REPLICA_A": "127.0.0.1:9",
    }
    compose = yaml.safe_load((CONFIGURATION.parents[2] / "docker-compose.yml").read_text())
    *_, check = compose["services"]["proxy"]["healthcheck"]["test"]
    check = check.replace("$$", "$").replace("/127.0.0.1/8000", f"/127.0.0.1/{port}")
    balance = [haproxy(), "-q", "-db", "-f", str(CONFIGURATION)]
    with ending(subprocess.Popen(balance, env=environment)):
        asked = lambda: subprocess.run(["bash", "-c", check], env=environment).returncode == 0  # noqa: E731
        await_that(asked)
        trusted = ssl.create_default_context(cafile=site)
        assert httpx.get(f"https://127.0.0.1:{port}/readyz", verify=trusted).status_code == 503
