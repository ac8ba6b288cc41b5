"""A server that is killed, or whose detector fails: nothing is lost and nothing happens twice."""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection

import pytest
import sqlalchemy as sql

from spikeguard_protocol import decode_message, encode
from spikeguard_server.errors import SequenceGap
from spikeguard_server.ingest.detection import Monitors, freeze, thaw
from spikeguard_server.ingest.receive import Received, receive
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.agent.forks import FORKS
from tests.server.store.jobs import Job, columns, execute, rows, spiking, value

CURVE = spiking(251, length=40)
STEPS = 400
BATCH = 20
DECISIONS = """
select number, step, kind, confidence, reason
from incident_revisions order by incident, number
"""
STATE = "select step, state from detector_states"


def serve(url: str, pipe: Connection) -> None:
    """Take messages and acknowledge them until somebody kills this process."""
    engine, monitors = open_engine(Settings(database_url=url)), Monitors()
    while True:
        message = decode_message(pipe.recv_bytes())
        pipe.send(receive(engine, Received(message, Settings(), monitors)).sequence)


class Replica:
    """A server process that can be killed."""

    def __init__(self, url: str) -> None:
        self._pipe, its_own = FORKS.Pipe()
        self._process = FORKS.Process(target=serve, args=(url, its_own))
        self._process.start()
        its_own.close()

    def send(self, body: bytes) -> None:
        self._pipe.send_bytes(body)

    def acknowledged(self) -> int:
        return int(self._pipe.recv())

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def messages(job: Job) -> list[bytes]:
    """A whole run with a spike, as the bytes that travel."""
    started = job.message(*job.beginning())
    steps = [range(begin, begin + BATCH) for begin in range(1, STEPS + 1, BATCH)]
    return [encode(m) for m in (started, *(job.message(columns(s, CURVE)) for s in steps))]


def test_a_replica_killed_in_mid_message_loses_nothing_and_does_nothing_twice(
    engine: sql.Engine, database_url: str
) -> None:
    """Every few messages the process dies at a random moment; the next one gets the rest."""
    undisturbed = Job(engine, run="undisturbed").start()
    undisturbed.train(1, STEPS, CURVE, batch=BATCH, save_every=10**9)
    reference, state = rows(engine, DECISIONS), rows(engine, STATE)
    execute(engine, "delete from incident_revisions", "delete from detector_states")
    sent, moments = messages(Job(engine)), random.Random(5)
    acknowledged, kills = 0, 0
    while acknowledged < len(sent):
        replica = Replica(database_url)
        for _ in range(moments.randint(1, 6)):
            if acknowledged < len(sent):
                replica.send(sent[acknowledged])
                acknowledged = replica.acknowledged()
        if acknowledged < len(sent):
            replica.send(sent[acknowledged])
            time.sleep(moments.random() * 0.03)  # anywhere in the transaction, or before it
            kills += 1
        replica.kill()
        stored = value(engine, "select last_sequence from attempts where run_id in "
                               "(select run_id from runs where name = 'gpt')")  # fmt: skip
        assert stored in (acknowledged, acknowledged + 1)
    assert kills >= 3
    count = "select count(*), count(distinct step) from samples s join runs r using (run_id)"
    assert rows(engine, f"{count} where r.name = 'gpt'") == [(STEPS, STEPS)]
    assert rows(engine, DECISIONS) == reference
    assert rows(engine, STATE) == state


def test_a_transaction_that_fails_leaves_no_trace_in_memory_either(engine: sql.Engine) -> None:
    """It fails at its COMMIT. The kept monitor moved on in vain: the next message must not build
    on it."""
    job = Job(engine).start()
    job.train(1, 100)
    before = rows(engine, STATE)
    execute(
        engine,
        "create constraint trigger fails_late after update on attempts "
        "deferrable initially deferred for each row execute function refuse_change()",
    )
    message = job.message(columns(range(101, 111), lambda _: 99.0))
    with pytest.raises(sql.exc.ProgrammingError, match="refused"):
        job.post(message)
    execute(engine, "drop trigger fails_late on attempts")
    assert rows(engine, STATE) == before
    assert value(engine, "select count(*) from samples") == 100
    job.sequence -= 1
    job.train(101, 200)
    assert value(engine, "select incidents from runs") == 0


def test_a_gap_seen_by_one_replica_is_a_gap_for_all(engine: sql.Engine) -> None:
    """Replicas take the same run's messages in turn and agree, each with a memory of its own."""
    one, two = Job(engine), Job(engine)
    one.start()
    two.sequence = 1
    for begin in range(1, 201, 20):
        job, other = (one, two) if begin % 40 == 1 else (two, one)
        job.sequence = max(one.sequence, two.sequence)
        job.train(begin, begin + 19, batch=20)
        with pytest.raises(SequenceGap):
            other.post(other.message(sequence=job.sequence + 2))
    assert value(engine, "select count(*) from samples") == 200


NOTED = "select action from audit where action like 'detection.%' order by number"


def poison(engine: sql.Engine) -> None:
    """Make the stored state one that reads well and fails on whatever comes next."""
    monitor = thaw(value(engine, "select state from detector_states"))
    monitor.leading["grad_norm"].baseline.values.clear()
    with engine.begin() as connection:
        connection.execute(
            sql.text("update detector_states set state = :state, state_step = step"),
            {"state": freeze(monitor)},
        )


def test_a_message_that_detection_fails_on_is_stored_and_acknowledged(engine: sql.Engine) -> None:
    """The outbox would send it again for ever, and nothing after it."""
    job = Job(engine, monitors=None).start()
    job.train(1, 200)
    poison(engine)
    ack = job.train(201, 220)
    assert ack.sequence == job.sequence
    assert value(engine, "select count(*) from samples") == 220
    assert value(engine, "select last_step from runs") == 220
    assert rows(engine, NOTED) == [("detection.failed",)]
    reason = value(engine, "select reason from audit where action = 'detection.failed'")
    assert "stored and not judged" in reason


def test_a_detector_that_goes_on_failing_begins_anew_and_sees_the_next_spike(
    engine: sql.Engine,
) -> None:
    job = Job(engine, monitors=None).start()
    job.train(1, 200)
    poison(engine)
    job.train(201, 230, batch=10)
    assert rows(engine, NOTED) == [("detection.failed",), ("detection.restarted",)]
    job.train(231, 500, save_every=10**9)
    assert value(engine, "select failures from detector_states") == 0
    assert value(engine, "select incidents from runs") == 0
    job.train(501, 520, spiking(501))
    assert rows(engine, "select number, onset_step from incidents") == [(1, 501)]


def test_an_incident_that_is_not_followed_any_more_is_closed_and_says_why(
    engine: sql.Engine,
) -> None:
    """One that stayed open would keep every later spike from being seen."""
    job = Job(engine, monitors=None).start()
    job.train(1, 300, spiking(251))
    assert value(engine, "select open_incident from runs") == 1
    poison(engine)
    job.train(301, 330, spiking(251), batch=10)
    assert rows(engine, "select state, outcome, record->>'reason' from incidents") == [
        ("closed", "run_ended", "detection failed and began anew")
    ]
    assert value(engine, "select open_incident from runs") is None
