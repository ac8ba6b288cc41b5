"""One of the disturbances of `python -m benchmarks.faults`, as it does it, for seconds.

Real replicas on a durable Postgres of their own; jobs that a disturbance may make wait, and whose
tables have to say afterwards what those of the same jobs say that nothing disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tests.agent.forks  # noqa: F401 - what a replica is forked from has imported the server
from benchmarks.faults import _status, database
from benchmarks.faults_job import Script
from benchmarks.faults_scenarios import (
    Outcome,
    Plan,
    restart_postgres,
    undisturbed,
)

SCRIPTS = (Script(5, onset=176, lost=frozenset({30}), steps=240),)


@pytest.fixture(scope="module")
def plan() -> Iterator[Plan]:
    """A little of each disturbance, and what the jobs come to without any."""
    with database() as postgres:
        made = Plan(postgres, kills=1, restarts=2, seconds=1.5, scripts=SCRIPTS)
        made.twins = undisturbed(made)
        yield made


def test_a_database_that_restarts_changes_no_row_and_no_decision(plan: Plan) -> None:
    outcome = restart_postgres(plan, crash=False)
    assert outcome.verdict.kept, outcome.line()
    assert outcome.verdict.runs >= len(SCRIPTS)
    assert outcome.verdict.commands >= outcome.verdict.runs  # each was rolled back
    assert all(outcome.done.values())
    hurt = sum(t.cut + t.unreached + sum(t.refused.values()) for t in outcome.tallies)
    assert hurt, "no job felt anything of it"


def test_a_disturbance_that_could_not_be_tried_is_said_and_fails_where_all_were_asked_for() -> None:
    untried = Outcome.untried("disk full", "mounting a small disk needs root")
    assert untried.line() == "NOT TRIED: mounting a small disk needs root"
    assert (_status([untried], all_wanted=False), _status([untried], all_wanted=True)) == (0, 2)
