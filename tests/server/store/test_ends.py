"""Every end of a proposal has its own name, and says why; nobody is blamed who could do nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import sqlalchemy as sql

from spikeguard_protocol import AttemptEnded, CommandId, SegmentId, SegmentPoint
from spikeguard_server.errors import WrongState
from spikeguard_server.ingest.decisions import decide
from tests.server.store.jobs import FIRST, SECOND, Curve, Job, execute, healthy, rows, spiking
from tests.server.store.test_commands import ONSET, state_of, waiting
from tests.server.store.test_housekeeping import pass_time

BEFORE = SegmentPoint(SegmentId(FIRST, 0), 560)
End = Callable[[sql.Engine, Job, CommandId, int], object]


def let_it_lapse(engine: sql.Engine, job: Job, _: CommandId, __: int) -> None:
    execute(engine, "update commands set expires_at = now()")
    job.train(561, 562, spiking(ONSET))


@pytest.mark.parametrize(
    ("end", "state", "because"),
    [
        (lambda _, job, *__: job.train(561, 700, healthy), "withdrawn_healed",
         "loss is back on trend"),
        (lambda _, job, *__: job.send(AttemptEnded("finished")), "run_ended",
         "the attempt ended: finished"),
        (lambda _, job, *__: job.send(AttemptEnded("RuntimeError")), "void",
         "the attempt ended: RuntimeError"),
        (lambda engine, *_: Job(engine, attempt=SECOND, age_s=0.0).start(BEFORE), "void",
         "attempt 2 took over"),
        (lambda engine, _, command, seen: decide(engine, command, "reject", seen, "Ada", "known"),
         "rejected", None),
        (let_it_lapse, "expired", "nobody answered in time"),
    ],
)  # fmt: skip
def test_each_end_has_its_own_name_and_its_reason(
    spiked: sql.Engine, end: End, state: str, because: str | None
) -> None:
    job, command, revision = waiting(spiked)
    end(spiked, job, command, revision)
    told = f"select state, end_reason from commands where number = {command.number}"
    [(found, reason)] = rows(spiked, told)
    assert found == state
    assert (because is None) == (reason is None)
    assert because is None or because in reason


def test_a_yes_that_comes_when_it_heals_is_told_so_and_withdraws_the_proposal(
    spiked: sql.Engine,
) -> None:
    """Of a spike that began to heal in the very message that nobody has looked at since."""
    _, command, revision = waiting(spiked)
    healed = "record = (record::jsonb || jsonb_build_object('excess', 0.0))::json"
    execute(spiked, f"update incidents set kind = 'recoverable', {healed}")
    with pytest.raises(WrongState, match=r"is withdrawn: Expected to heal by itself"):
        decide(spiked, command, "approve", revision, "Ada")
    assert state_of(spiked, command) == "withdrawn_healed"


def test_what_was_approved_and_never_fetched_blames_the_job(spiked: sql.Engine) -> None:
    _, command, revision = waiting(spiked)
    decide(spiked, command, "approve", revision, "Ada")
    execute(spiked, "update commands set expires_at = now()")
    pass_time(spiked, 1)
    told = "select state, decided_by, end_reason from commands where number = "
    assert rows(spiked, f"{told}{command.number}") == [
        ("undelivered", "Ada", "the job did not fetch it in time")
    ]


BEGAN = 431
PROPOSED = "select reason from commands where state = 'proposed'"


def not_finite() -> Curve:
    return lambda step: math.nan if step >= BEGAN else healthy(step)


def started_again(engine: sql.Engine, attempt: str, after: str) -> Job:
    return Job(engine, attempt=attempt).start(SegmentPoint(SegmentId(after, 0), 400))


def test_nobody_is_asked_until_it_comes_back_and_then_with_its_batches(engine: sql.Engine) -> None:
    first = Job(engine).start()
    first.train(1, BEGAN + 9, not_finite())
    assert len(rows(engine, PROPOSED)) == 1
    again = started_again(engine, SECOND, FIRST)
    again.train(401, BEGAN - 1)
    assert rows(engine, PROPOSED) == []
    assert rows(engine, "select state from incidents") == [("recovering",)]
    again.train(BEGAN, BEGAN + 9, not_finite())
    ((reason,),) = rows(engine, PROPOSED)
    assert "It came back once." in reason
    assert "skip batches 429 to 433 (5), with which it came back" in reason


def test_one_that_does_not_come_back_has_recovered(engine: sql.Engine) -> None:
    first = Job(engine).start()
    first.train(1, BEGAN + 9, not_finite())
    started_again(engine, SECOND, FIRST).train(401, BEGAN + 60)
    assert rows(engine, "select kind, outcome from incidents") == [("divergent", "recovered")]
