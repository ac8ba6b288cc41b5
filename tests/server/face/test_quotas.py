"""How many new runs a token and a project may begin in a day, and that nothing is lost by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_protocol import AttemptStarted, Message, Role, SegmentReason, SegmentStarted, encode
from spikeguard_server.access.grants import Grant, issue_token, open_session
from spikeguard_server.identity.permissions import hash_secret
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.tokens import find_caller
from tests.agent.job import FAST
from tests.agent.job import Job as Training
from tests.server.conftest import Databases
from tests.server.face.serving import serving

STEPS = 60


@dataclass
class Site:
    """A server with small quotas."""

    url: str
    engine: sql.Engine

    def token(self, role: Role = Role.AGENT, project: str | None = None) -> str:
        with self.engine.begin() as connection:
            return issue_token(connection, Grant(role, project), "test")[0]

    def begin(self, token: str, run: str, attempt: str = "a", project: str = "p") -> httpx.Response:
        """The first message of an attempt."""
        records = (
            AttemptStarted(None, 1, (), "test"), SegmentStarted(0, SegmentReason.START, None, 0)
        )  # fmt: skip
        message = Message(project, run, attempt * 16, 1, 0.0, records)
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(
            f"{self.url}/v1/messages", content=encode(message), headers=headers, timeout=30
        )

    def call(self, method: str, path: str, **body: Any) -> httpx.Response:
        """As a person."""
        with self.engine.begin() as connection:
            caller = find_caller(connection, hash_secret(self.token(Role.ADMIN)))
        assert caller is not None
        with self.engine.begin() as connection:
            secret = open_session(connection, caller, "Ada Lovelace", 60.0)[0]
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx.request(
            method, f"{self.url}{path}", headers=headers, json=body or None, timeout=30
        )

    def age(self) -> None:
        """A day passes."""
        with self.engine.begin() as connection:
            connection.execute(sql.text("update new_runs set began_at = now() - interval '25 h'"))
            connection.execute(
                sql.text("update attempts set alive_at = alive_at - interval '25 h'")
            )


@contextmanager
def limited(databases: Databases, **limits: Any) -> Iterator[Site]:
    with databases.lent() as database:
        settings = Settings(database_url=database, **limits)
        engine = open_engine(settings)
        with serving(settings) as url:
            yield Site(url, engine)
        engine.dispose()


@pytest.mark.parametrize(
    ("limits", "whose"),
    [({"new_runs_per_project": 2}, "Project p"), ({"new_runs_per_token": 2}, "Token ")],
    ids=["project", "token"],
)
def test_a_run_beyond_the_quota_is_told_the_limit_the_remedy_and_when_to_try_again(
    databases: Databases, limits: dict[str, int], whose: str
) -> None:
    """Runs that are known, and their new attempts, always get in, and so do others' new runs."""
    with limited(databases, **limits) as site:
        mine, other = site.token(), site.token()
        assert [site.begin(mine, f"run-{n}").status_code for n in range(2)] == [200, 200]
        refused = site.begin(mine, "run-2")
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        error = refused.json()["error"]
        assert (error["code"], error["limit"], error["field"]) == ("run_quota", 2, "run")
        assert error["message"].startswith(whose)
        assert "SPIKEGUARD_NEW_RUNS_PER_" in error["remedy"]
        assert "spikeguard archive" in error["remedy"]
        assert site.begin(mine, "run-0").status_code == 200  # once more
        assert site.begin(mine, "run-0", attempt="b").status_code == 200
        assert site.begin(other, "theirs", project="q").status_code == 200
        site.age()
        assert site.begin(mine, "run-2").status_code == 200


def test_an_archived_run_makes_room_for_a_new_one(databases: Databases) -> None:
    with limited(databases, new_runs_per_project=1, silent_after_s=1.0) as site:
        token = site.token()
        site.begin(token, "first")
        assert site.begin(token, "second").status_code == 429
        with site.engine.begin() as connection:
            old = sql.text("update attempts set alive_at = alive_at - interval '1 minute'")
            connection.execute(old)
        assert site.call("POST", "/v1/runs/p/first/archive").status_code == 200
        assert site.begin(token, "second").status_code == 200


def test_an_agent_that_meets_the_quota_keeps_its_data_and_sends_it_once_there_is_room(
    databases: Databases, tmp_path: Path
) -> None:
    """Every step arrives, and no gap is declared. The loop is not held up meanwhile."""
    patient = replace(FAST, flush_s=20.0, snapshot_every=0)
    with limited(databases, new_runs_per_project=1) as site:
        token = site.token()
        site.begin(token, "other", project="default")
        for attempt in range(2):  # the second one sends what the first could not
            job = Training(tmp_path, settings=patient, server=site.url, token=token)
            job.train_to(STEPS)
            assert site.call("GET", "/v1/runs/default/test").status_code == 404
            if attempt == 1:
                site.age()
            job.guard.finish()
        found = site.call("GET", "/v1/runs/default/test").json()
        assert [attempt["dropped_samples"] for attempt in found["attempts"]] == [0, 0]
        series = site.call("GET", "/v1/runs/default/test/series").json()
    told = sorted(step for segment in series["segments"] for step in segment["steps"])
    assert told == sorted([*range(1, STEPS + 1)] * 2)
