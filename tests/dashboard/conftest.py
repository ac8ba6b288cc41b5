"""A real server with three runs: one waits for a decision, one recovered, one has two attempts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spikeguard_client import Client
from spikeguard_protocol import (
    Ability,
    Answer,
    AttemptEnded,
    AttemptStarted,
    CommandResult,
    ResultState,
    SegmentReason,
    SegmentStarted,
    abilities_to_settings,
)
from spikeguard_server.cli.serve import listen
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.agent.wire import await_that
from tests.dashboard.recording_proxy import RecordingProxy, recording
from tests.server.conftest import Databases, databases, postgres
from tests.server.face.conftest import VERBS, Job, Live, ticking, tokens_of
from tests.server.face.test_judgements import approve, roll_back

__all__ = ["databases", "postgres"]  # fixtures

RUN = "/v1/runs/default/llama-8b-c4"
ABILITIES = (
    Ability("rollback", Answer.YES, cost="the steps since then are trained again"),
    Ability("skip_update", Answer.NO, "AdamW takes no found_inf", "AdamW does with fused=True"),
)
FOUND = {"finding.rate_high": "AdamW: a rate of 0.6", "finding.of_a_newer_agent": "so it is"}


@pytest.fixture(scope="session")
def proxy(databases: Databases) -> Iterator[RecordingProxy]:
    settings = Settings(database_url=databases.make("dashboard"), tick_s=1.0)
    engine = open_engine(settings)
    with listen("127.0.0.1", 0) as listener, ticking(settings, engine, listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        live = Live(url, engine, tokens_of(engine))
        waits(live)
        recovers(live)
        trains_twice(live)
        with recording(url, live.session("Ada Lovelace")) as proxy:
            yield proxy
    engine.dispose()


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> None:
    if "proxy" in request.fixturenames:
        request.getfixturevalue("proxy").clean()


def waits(live: Live) -> None:
    """With a warning, changes from outside, what grows, and a checkpoint that was ordered."""
    job = Job(live, "llama-8b-c4")
    told = {"tags": "c4", **FOUND, **abilities_to_settings(ABILITIES)}
    job.send(
        AttemptStarted(None, 8, VERBS, "test", 524_288, told),
        SegmentStarted(0, SegmentReason.START, None, 0),
    )
    ada = Client(live.url, live.session("Ada Lovelace"))
    for part in range(22):
        grows = {"attention_logit_max": 20.0 + 3 * part, "grad_clipped": 1.0}
        warns = 60.0 if part == 12 else 21.0
        job.send(job.steps(4, update_norm=warns), job.steps(96, update_norm=21.0, **grows))
        job.send(job.saved())
        if part == 15:
            ada.note(job.id, "new data mix, 30 % code", reason="week 10", expect="lower")
    ada.order(job.id, "checkpoint_now", "the file system goes down")
    (order,) = job.send().orders
    job.send(CommandResult(order.command, ResultState.APPLIED, "step-2200", job.step))
    job.climb()


def recovers(live: Live) -> None:
    job = Job(live, "llama-8b-old").start().spike()
    roll_back(job, approve(job), 700)
    await_that(lambda: job.incident()["state"] == "closed")
    job.send(AttemptEnded("done"))
    job.reported()


def trains_twice(live: Live) -> None:
    for job in (Job(live, "vit-g", "vision").start(), Job(live, "vit-g", "vision").start()):
        job.train(20)
