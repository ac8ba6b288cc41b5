"""One project's flood hides nothing of another project: in what Prometheus scrapes, in the lists
that people read, in what time makes due, in what people are told."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_core.notification.topics import Topic
from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.metrics import MAX_RUNS
from spikeguard_server.settings import Settings
from spikeguard_server.store.conversations import due_conversations, tell
from spikeguard_server.store.engine import open_engine, write
from spikeguard_server.store.reads.fleet import runs_due
from tests.server.conftest import Databases
from tests.server.face.serving import serving
from tests.server.store import jobs as store_jobs

FLOOD = 520
DIVERGENT = ("default", "gpt")  # the run of the project that must not go blind


def flood(connection: sql.Connection, count: int, incidents: bool, project: str = "flood") -> None:
    """So many runs of another project, all newer, with or without an open incident each."""
    connection.execute(
        sql.text(
            "insert into runs (run_id, project, name, created_at, last_message_at, state, attempts,"
            " incidents, open_incident) select md5(:project || n)::uuid, :project, 'run-' || n,"
            " now() + interval '1 hour', now(), 'live', 1, 1, case when :open then 1 end"
            " from generate_series(1, :count) n"
        ),
        {"project": project, "count": count, "open": incidents},
    )
    if incidents:
        copied = sql.text(
            "insert into incidents select (jsonb_populate_record(i, jsonb_build_object('run_id',"
            " r.run_id, 'number', 1, 'opened_at', now() + interval '1 hour'))).*"
            " from incidents i join runs g on g.run_id = i.run_id and g.name = 'gpt',"
            " runs r where r.project = :project"
        )
        attempts = sql.text(
            "insert into attempts select (jsonb_populate_record(a, jsonb_build_object('run_id',"
            " r.run_id))).* from attempts a join runs g on g.run_id = a.run_id and g.name = 'gpt',"
            " runs r where r.project = :project"
        )
        for statement in (attempts, copied):
            connection.execute(statement, {"project": project})


@pytest.fixture(scope="module")
def diverged(databases: Databases) -> str:
    """The name of a database in which one run's spike is divergent."""
    url = databases.make("diverged")
    engine = open_engine(Settings(database_url=url))
    job = store_jobs.Job(engine).start()
    job.train(1, 300, batch=100)
    job.train(301, 320, lambda _: float("nan"), batch=10)
    engine.dispose()
    return "diverged"


class Site:
    """A server over a database of its own, and who calls it."""

    def __init__(self, url: str, engine: sql.Engine) -> None:
        self.url, self.engine = url, engine
        with engine.begin() as connection:
            self._secrets = {
                role: issue_token(connection, Grant(role), "test")[0]
                for role in (Role.METRICS, Role.VIEWER)
            }

    def get(self, path: str, role: Role = Role.VIEWER, **query: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._secrets[role]}"}
        answer = httpx.get(f"{self.url}{path}", params=query, headers=headers, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer

    def flood(self, count: int, *, incidents: bool, project: str = "flood") -> None:
        with self.engine.begin() as connection:
            flood(connection, count, incidents, project)

    def divergent(self) -> set[tuple[str, str]]:
        """(project, run) of the series that the alert on divergent spikes fires for."""
        text = self.get("/metrics/fleet", Role.METRICS).text
        found = re.findall(
            r'run_incident_info{incident="1",kind="divergent",project="(.+?)",run="(.+?)"}', text
        )
        return set(found)

    def metric(self, name: str) -> float:
        text = self.get("/metrics/fleet", Role.METRICS).text
        return float(re.search(rf"^{name} (\S+)$", text, re.M)[1])  # type: ignore[index]


@pytest.fixture
def site(databases: Databases, diverged: str) -> Iterator[Site]:
    with databases.lent(diverged) as url, serving(Settings(database_url=url)) as address:
        engine = open_engine(Settings(database_url=url))
        yield Site(address, engine)
        engine.dispose()


def test_open_spikes_of_one_project_do_not_push_another_ones_out_of_the_scrape(site: Site) -> None:
    """Of 520 newer runs, each with an open spike."""
    site.flood(FLOOD, incidents=True)
    assert DIVERGENT in site.divergent()
    assert len(site.divergent()) == MAX_RUNS
    assert site.metric("spikeguard_runs_not_shown") == FLOOD + 1 - MAX_RUNS


def test_what_time_makes_due_and_what_people_are_told_goes_by_projects_in_turn(site: Site) -> None:
    site.flood(30, incidents=True)
    with site.engine.begin() as connection:
        gpt = connection.scalar(sql.text("select run_id from runs where name = 'gpt'"))
        connection.execute(
            sql.text(
                "update runs set last_message_at = now() - interval '2 days' where name <> 'gpt';"
                "update runs set last_message_at = now() - interval '25 hours' where name = 'gpt';"
                "delete from conversations;"
                "insert into channels select project, channel, 'webhook', '{}', '{}', now(), 'test'"
                " from (values ('flood', 'a'), ('flood', 'b'), ('default', 'a')) as c"
                " (project, channel)"
            )
        )
        for run_id in connection.scalars(sql.text("select run_id from runs order by name = 'gpt'")):
            write(connection, tell(run_id, 1, Topic.OPENED))
        lists: dict[str, Sequence[Any]] = {
            "ticker": runs_due(connection, Settings(), datetime.now(UTC), limit=2),
            "conversations": [key.run_id for _, key in due_conversations(connection, limit=2)],
        }
    assert {name for name, found in lists.items() if gpt not in found} == set()


def test_who_reads_much_at_once_keeps_neither_others_nor_the_health_check_waiting(
    databases: Databases,
) -> None:
    """Twenty calls of one person that the database keeps waiting, by two sessions."""
    with databases.lent() as url, serving(Settings(database_url=url)) as address, ExitStack() as on:
        engine = open_engine(Settings(database_url=url))
        on.callback(engine.dispose)
        with engine.begin() as connection:
            mine, other = (issue_token(connection, Grant(Role.VIEWER), "test")[0] for _ in "ab")
        login = {"token": mine, "name": "Ada Lovelace"}
        session = httpx.post(f"{address}/v1/sessions", json=login, timeout=120).json()["token"]
        calling = on.enter_context(ThreadPoolExecutor(20))

        def ask(path: str, secret: str) -> int:
            headers = {"Authorization": f"Bearer {secret}"}
            return httpx.get(f"{address}{path}", headers=headers, timeout=120).status_code

        with engine.begin() as connection:
            connection.execute(sql.text("lock table silences in access exclusive mode"))
            secrets = [mine, session] * 10
            waiting = [calling.submit(ask, "/v1/silences", each) for each in secrets]
            blocked = sql.text("select count(*) from pg_locks where not granted")
            seen = [0]
            while not seen[-1] or seen[-1] != seen[-2]:  # as many as there ever will be
                time.sleep(0.5)
                seen.append(connection.scalar(blocked) or 0)
            assert ask("/v1/runs", other) == 200
            assert ask("/healthz", other) == 200
        assert {each.result() for each in waiting} == {200}
