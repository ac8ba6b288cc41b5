"""A short part of `python -m benchmarks.faults`: what happens to messages changes nothing.

Two servers on one database take a job's messages; they are torn, repeated, early and late, and
answers are lost. The job goes back when told to, so one wrong answer would change all that follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sql

from benchmarks.faults_job import Script, Send, Tally, TrainingJob
from benchmarks.faults_site import automatic_rollbacks
from benchmarks.faults_truth import Facts, Verdict, judge_run, read_facts
from benchmarks.faults_wire import Mischief, plainly
from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.settings import Settings
from tests.server.face.serving import serving

SCRIPT = Script(3, onset=171, lost=frozenset({30}), steps=240)


Train = Callable[[str, Send], tuple[TrainingJob, Facts]]


@pytest.fixture
def train(engine: sql.Engine, database_url: str, tmp_path: Path) -> Iterator[Train]:
    """Trains the script under a name, sending in some way; the job and what is stored of it."""
    automatic_rollbacks(engine)
    with engine.begin() as connection:
        token = issue_token(connection, Grant(Role.AGENT), "test")[0]

    settings = Settings(database_url=database_url)
    with serving(settings) as one, serving(settings) as other:

        def run(name: str, send: Send) -> tuple[TrainingJob, Facts]:
            job = TrainingJob(
                name, SCRIPT, [one, other], token, tmp_path, send, lambda _: 0, 0.0,
                random=Random(1),
            )  # fmt: skip
            job.train()
            with engine.connect() as connection:
                return job, read_facts(connection, name)

        yield run


def test_torn_repeated_early_and_late_messages_change_no_sample_and_no_decision(
    train: Train,
) -> None:
    kinds = Counter[str]()
    job, bent = train("bent", Mischief(kinds))
    _, twin = train("calm", plainly)
    verdict = Verdict()
    judge_run(verdict, bent, twin, job.tally, "bent")
    assert verdict.kept, verdict.examples
    assert len(kinds) == 5, "not every kind of mischief was done"
    assert "rollback" in [verb for _, verb, _ in job.tally.executed]


def _facts(*losses: float, audit: tuple[int, ...] = (1, 2), state: str = "closed") -> Facts:
    samples = tuple((0, step, loss) for step, loss in enumerate(losses))
    return Facts(samples, {"incidents": ((state,),)}, audit)


@pytest.mark.parametrize(
    ("found", "broken"),
    [
        (_facts(1.0, 2.0), []),
        (_facts(1.0), ["missing"]),
        (_facts(1.0, 9.0), ["missing"]),
        (_facts(1.0, 2.0, 3.0), ["foreign"]),
        (Facts(((0, 0, 1.0), (0, 1, 2.0), (0, 1, 2.0)), _facts().tables, (1,)), ["twice"]),
        (_facts(1.0, 2.0, audit=(1, 3)), ["audit_holes"]),
        (_facts(1.0, 2.0, state="open"), ["differing"]),
    ],
    ids=["all well", "lost", "changed", "never sent", "doubled", "hole in the audit", "decided"],
)
def test_the_judge_finds_every_broken_promise(found: Facts, broken: list[str]) -> None:
    """A benchmark that could not fail would prove nothing."""
    tally, verdict = Tally(acknowledged={(0, 0): 1.0, (0, 1): 2.0}), Verdict()
    judge_run(verdict, found, _facts(1.0, 2.0), tally, "run")
    names = ("missing", "twice", "foreign", "differing", "audit_holes")
    assert [name for name in names if getattr(verdict, name)] == broken
    assert verdict.kept == (not broken)
