"""A short, seeded part of `python -m benchmarks.fuzz`: bent requests get documented answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sql

from benchmarks.fuzz import Sender
from benchmarks.fuzz_bodies import Bodies
from benchmarks.fuzz_truth import Findings
from benchmarks.ingest_load import Line
from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.settings import Settings
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import serving

if TYPE_CHECKING:
    from benchmarks.fuzz_calls import Calls

BODIES = 200
SEED = 20


@pytest.fixture
def sender(engine: sql.Engine, database_url: str) -> Iterator[Sender]:
    """Sends to a server whose database holds nothing else."""
    with engine.begin() as connection:
        token = issue_token(connection, Grant(Role.AGENT), "test")[0]
    with serving(Settings(database_url=database_url)) as url:
        address = urlsplit(url)
        line = Line((str(address.hostname), int(address.port or 0)), "/v1/messages", token)
        yield Sender(line, Bodies("test"))
        line.close()


def test_a_bent_message_is_refused_with_an_error_and_never_stored_half(
    engine: sql.Engine, sender: Sender
) -> None:
    """What is stored is what was acknowledged, row by row."""
    sender.send(BODIES)
    assert sender.findings.undocumented == []
    assert {200, 400, 409, 422} <= sender.findings.statuses.keys()
    stored = Findings()
    with engine.connect() as connection:
        stored.compare(connection, sender.expected)
    assert stored.half_stored == []
    assert stored.rows > BODIES


@pytest.fixture
def calls(engine: sql.Engine, database_url: str) -> Iterator[Calls]:
    """Every role at a server of its own, since calls revoke tokens and halt policies."""
    from benchmarks.fuzz_calls import Calls  # its schemathesis would slow every worker's start

    def issue(role: Role) -> str:
        with engine.begin() as connection:
            return issue_token(connection, Grant(role, person="Ada"), "test")[0]

    with serving(Settings(database_url=database_url)) as url:
        Job(Live(url, engine, {role: issue(role) for role in Role}), "fuzzed").start().train(5)
        yield Calls(url, issue)


def test_calls_answer_as_their_document_says(calls: Calls) -> None:
    """Every third call, with a request that fits the document and with one that does not."""
    calls.each_alone(examples=1, seed=SEED, without=["POST /v1/messages"], every=3)  # bent above
    assert calls.findings == {}
    assert len({label for label, _ in calls.answers}) > 20
