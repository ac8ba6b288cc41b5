"""A command is judged by what followed it, and by nothing else."""

from __future__ import annotations

import pytest

from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.lifecycle.command_outcome import after_end, after_return, next_cure
from spikeguard_protocol import Outcome, Verb

LATER = "gpt#1.3"


@pytest.mark.parametrize("verb", CURES)
def test_a_cure_that_the_run_s_end_left_unjudged_says_how_far_it_had_come(verb: Verb) -> None:
    reason = "the run ended 29 steps past the onset: loss is on trend"
    said = after_end(verb, None, outcome=Outcome.RUN_ENDED, reason=reason)
    assert said == f"not judged: {reason}"
    assert after_end(verb, None, outcome=Outcome.HEALED, reason="x") == after_end(
        verb, None, outcome=Outcome.HEALED
    )


@pytest.mark.parametrize("verb", CURES)
def test_a_cure_that_another_followed_is_credited_with_nothing(verb: Verb) -> None:
    for said in (
        after_end(verb, LATER, outcome=Outcome.RECOVERED),
        after_return(verb, LATER, step=500),
    ):
        assert said == "nobody can tell: gpt#1.3 followed before its effect showed"


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (Verb.WATCH, "watching changes nothing of the training"),
        (Verb.CHECKPOINT_NOW, "saving a checkpoint changes nothing of the training"),
        (Verb.STOP, "it stopped the run"),
    ],
)
def test_what_cures_nothing_is_not_judged_by_how_it_ended(verb: Verb, said: str) -> None:
    assert {after_end(verb, LATER, outcome=outcome) for outcome in Outcome} == {
        f"nothing to judge: {said}"
    }
    assert after_return(verb, None, step=500) is None


def test_what_followed_is_the_next_cure_and_not_a_look() -> None:
    done = [(1, Verb.SCALE_LR, "a"), (2, Verb.WATCH, "b"), (3, Verb.ROLLBACK, "c")]
    assert [next_cure(number, done) for number in range(4)] == ["a", "c", "c", None]
