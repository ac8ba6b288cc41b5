"""What `python -m benchmarks.faults` concludes from what it finds.

A benchmark that could not fail would prove nothing.
"""

from __future__ import annotations

import pytest

from benchmarks.faults import _status
from benchmarks.faults_job import Tally
from benchmarks.faults_scenarios import Outcome
from benchmarks.faults_truth import Facts, Verdict, judge_run


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
    tally, verdict = Tally(acknowledged={(0, 0): 1.0, (0, 1): 2.0}), Verdict()
    judge_run(verdict, found, _facts(1.0, 2.0), tally, "run")
    names = ("missing", "twice", "foreign", "differing", "audit_holes")
    assert [name for name in names if getattr(verdict, name)] == broken
    assert verdict.kept == (not broken)


def test_a_disturbance_that_could_not_be_tried_is_said_and_fails_where_all_were_asked_for() -> None:
    untried = Outcome.untried("disk full", "mounting a small disk needs root")
    assert untried.line() == "NOT TRIED: mounting a small disk needs root"
    assert (_status([untried], all_wanted=False), _status([untried], all_wanted=True)) == (0, 2)
