"""What jobs tell of batches that they left out is stored once, read in order, and stays."""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_protocol import (
    BatchesSkipped,
    BatchRange,
    CommandId,
    RunId,
    SegmentId,
    SegmentPoint,
)
from spikeguard_server.ingest.decisions import approve
from spikeguard_server.jobs.postmortem_facts import MOST_LEFT_OUT, postmortem_facts
from spikeguard_server.report.writing import document_of
from spikeguard_server.store.clock import database_now
from spikeguard_server.store.runs import lock_run
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import FIRST, SECOND, Job, execute, healthy, rows, spiking, value

KEY = run_key(RunId("default", "gpt"))
STORED = "select batch_first, batch_end, rank, names from skipped_batches order by 1, 3"
EVIL = "a|b <script>alert(1)</script>"


def left_out(
    first: int, rank: int = 0, names: tuple[str, ...] = (), command: str | None = None, end: int = 0
) -> BatchesSkipped:
    point = SegmentPoint(SegmentId(FIRST, 0), 20)
    return BatchesSkipped(BatchRange(first, end or first + 1), rank, point, command, names)


def test_told_twice_by_whatever_attempt_is_stored_once(engine: sql.Engine) -> None:
    """The attempt that was killed and the one that tells it again; the message that comes twice."""
    job = Job(engine)
    job.start()
    told = job.message(left_out(7, names=("doc-7",)), left_out(7, 1), left_out(8, names=("doc-8",)))
    job.post(told)
    job.post(told)
    again = Job(engine, attempt=SECOND)
    again.start(SegmentPoint(SegmentId(FIRST, 0), 1))
    again.send(left_out(7, names=("another",)))
    assert rows(engine, STORED) == [(7, 8, 0, ["doc-7"]), (7, 8, 1, []), (8, 9, 0, ["doc-8"])]


def ordered(engine: sql.Engine) -> tuple[Job, str]:
    """A spike, and the rollback that an attempt was told."""
    job = Job(engine)
    job.start()
    job.train(1, 400, batch=100)
    job.train(401, 560, spiking(401), batch=40)
    waiting = "select incident, number, revision from commands where state = 'proposed'"
    [(incident, number, revision)] = rows(engine, waiting)
    command = f"gpt#{incident}.{number}"
    approve(engine, CommandId.parse(command), revision, "Ada")
    job.train(561, 570, spiking(401))
    return job, command


def rolled_back(engine: sql.Engine) -> tuple[Job, str]:
    """The same, carried out."""
    job, command = ordered(engine)
    job.roll_back(command, 300, at_step=570, position=300)
    return job, command


def test_the_post_mortem_names_the_documents_that_the_incidents_commands_left_out(
    engine: sql.Engine,
) -> None:
    """The first of them, and how many more; what no command of it left out is not told."""
    job, command = rolled_back(engine)
    names = (EVIL, *(f"doc-{n}" for n in range(9)))
    several = [left_out(401 + n, names=names, command=command) for n in range(MOST_LEFT_OUT + 3)]
    job.send(*several, left_out(5))
    job.train(301, 700, healthy, segment=1, shift=20, batch=50)
    with engine.begin() as connection:
        run = lock_run(connection, KEY)
        assert run is not None
        facts = postmortem_facts(connection, run, 1, database_now(connection))
    assert (len(facts.left_out), facts.left_out_count) == (MOST_LEFT_OUT, MOST_LEFT_OUT + 3)
    [section] = [s for s in document_of(facts).sections if s.title == "Batches left out"]
    table, more = section.blocks
    assert table.rows[0] == (  # type: ignore[union-attr]
        "[401, 402)", "0", command, f"{EVIL}, {', '.join(names[1:8])}, and 2 more",
    )  # fmt: skip
    assert "And 3 more" in more.text  # type: ignore[union-attr]


def test_documents_that_are_told_of_after_the_close_have_the_post_mortem_written_anew(
    engine: sql.Engine,
) -> None:
    job, command = rolled_back(engine)
    job.train(301, 700, healthy, segment=1, shift=20, batch=50)
    due = "select report_due_at is not null from incidents"
    settle = "update incidents set report_due_at = null"
    assert value(engine, "select state from incidents") == "closed"
    for record, wanted in (
        (left_out(401, command=command), True),
        (left_out(401, command=command), False),  # known
        (left_out(402), False),
    ):
        execute(engine, settle)
        job.send(record)
        assert value(engine, due) is wanted
