"""Two releases of the server at once: replicas whose detector states have different versions take
one run's messages in turn, as a balancer hands them out during a rolling upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle

import pytest
import sqlalchemy as sql

from spikeguard_core.monitor import state
from spikeguard_protocol import Ack, Message
from spikeguard_server.errors import Unready
from spikeguard_server.ingest import Monitors, receive
from spikeguard_server.ingest.detection import past_monitor
from spikeguard_server.ingest.timeouts import let_time_pass
from spikeguard_server.settings import Settings
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import (
    Curve,
    Job,
    columns,
    healthy,
    rows,
    saved_at,
    spiking,
    value,
)

NEW = state.STATE_VERSION
OLD = NEW - 1
RELEARNED = "select count(*) from audit where action = 'detection.relearned'"


@contextmanager
def release(version: int) -> Iterator[None]:
    """The detector's state is read and written in this version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "STATE_VERSION", version)
        yield


@dataclass
class Balancer:
    """Hands every message to the next replica, and to another one where that is not ready."""

    job: Job
    replicas: list[int]  # their versions
    settings: Settings = field(default_factory=Settings)
    refused: dict[int, int] = field(default_factory=lambda: {OLD: 0, NEW: 0})

    def __post_init__(self) -> None:
        self._turn = cycle([(version, Monitors()) for version in self.replicas])

    def send(self, message: Message) -> Ack:
        for _ in self.replicas:
            version, monitors = next(self._turn)
            with release(version):
                try:
                    return receive(
                        self.job.engine, message, settings=self.settings, monitors=monitors
                    )
                except Unready:
                    self.refused[version] += 1
        raise AssertionError("no replica takes it")

    def start(self) -> None:
        self.send(self.job.message(*self.job.beginning()))

    def train(self, first: int, last: int, curve: Curve = healthy) -> Ack:
        for begin in range(first, last + 1, 10):
            steps = range(begin, begin + 10)
            saved = [saved_at(s) for s in steps if s % 100 == 0]
            ack = self.send(self.job.message(columns(steps, curve), *saved))
        return ack


def told(engine: sql.Engine, run: str = "gpt") -> list[tuple[object, ...]]:
    """What was decided about the run."""
    mine = f"where run_id = (select run_id from runs where name = '{run}')"
    incidents = (
        f"select number, onset_step, kind, outcome, record->>'closed_step' from incidents {mine}"
    )
    commands = f"select number, verb, arguments::text, state from commands {mine} order by number"
    return [*rows(engine, incidents), *rows(engine, commands)]


def undisturbed(engine: sql.Engine, curve: Curve, last: int) -> list[tuple[object, ...]]:
    job = Job(engine, run="undisturbed")
    job.start()
    job.train(1, last, curve)
    return told(engine, "undisturbed")


def test_a_run_goes_through_an_upgrade_amid_a_spike_as_if_there_had_been_none(
    engine: sql.Engine,
) -> None:
    """Nothing acknowledged is missing, nothing is decided twice, and the same is decided."""
    upgraded_at = 440
    curve = spiking(421, length=60)
    expected = undisturbed(engine, curve, 640)
    assert expected
    job = Job(engine)
    before = Balancer(job, [OLD, OLD])
    before.start()
    before.train(1, upgraded_at, curve)
    during = Balancer(job, [OLD, NEW])
    during.train(upgraded_at + 1, 640, curve)
    assert told(engine) == expected
    steps = "select array_agg(step order by step) from samples join runs using (run_id)"
    assert value(engine, f"{steps} where name = 'gpt'") == [*range(1, 641)]
    assert value(engine, RELEARNED) == 1
    assert during.refused[NEW] == 0
    messages = (640 - upgraded_at) // 10
    assert during.refused[OLD] == messages - 2  # it took the first, the newer one the second
    numbers = rows(engine, "select number from audit join runs using (run_id) where name = 'gpt'")
    assert sorted(n for (n,) in numbers) == list(range(1, len(numbers) + 1))


def test_an_older_replica_that_knows_the_run_by_heart_refuses_it_too(engine: sql.Engine) -> None:
    """Its memory is good until the newer one has written: nothing is judged by both."""
    job = Job(engine, settings=Settings(detector_snapshot_steps=10**6))
    mixed = Balancer(job, [OLD, OLD, NEW], job.settings)
    mixed.start()
    mixed.train(1, 10)  # the second older one
    mixed.train(11, 20)  # the newer one
    mixed.train(21, 80)
    assert mixed.refused == {OLD: 12, NEW: 0}  # both, of each message
    with release(OLD), engine.begin() as connection, pytest.raises(Unready):
        let_time_pass(connection, run_key(job.message(sequence=1).run_id), Settings())


def test_an_incident_that_the_newer_release_does_not_see_is_withdrawn(engine: sql.Engine) -> None:
    job = Job(engine)
    with release(OLD):
        job.start()
        job.train(1, 400)
        job.train(401, 440, spiking(421))
    assert value(engine, "select state from incidents") == "open"
    with engine.begin() as connection:  # as if the older one had been mistaken
        connection.execute(sql.text("update chunks set loss = null"))
    job.monitors = None
    with release(NEW):
        job.train(441, 460)
    found = rows(engine, "select state, outcome, record->>'reason' from incidents")
    assert found[0][:2] == ("closed", "withdrawn")
    assert "does not see it" in found[0][2]
    assert value(engine, "select count(*) from commands where state = 'proposed'") == 0


def test_a_snapshot_of_the_older_release_is_stood_in_for_by_the_samples(
    engine: sql.Engine,
) -> None:
    """A rollback to before the upgrade leaves no detector blind."""
    job = Job(engine)
    with release(OLD):
        job.start()
        job.train(1, 400)
    key, place = run_key(job.message(sequence=1).run_id), Place(1, 0, 250)
    with engine.connect() as connection:
        past = past_monitor(connection, key, place)
        assert past is not None
        with release(OLD):
            before = past_monitor(connection, key, place)
    assert before is not None
    assert past.monitor.dump() == before.monitor.dump()


def test_a_state_of_a_newer_release_is_refused_and_left_alone(engine: sql.Engine) -> None:
    job = Job(engine)
    with release(NEW + 1):
        job.start()
        job.train(1, 100)
    before = value(engine, "select state from detector_states")
    job.monitors = None
    with pytest.raises(Unready) as refused:
        job.train(101, 110)
    assert refused.value.headers["Retry-After"] == "5"
    assert value(engine, "select state from detector_states") == before
    assert value(engine, "select max(step) from samples") == 100
