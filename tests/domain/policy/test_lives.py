"""Every state x event pair of both tables, the page that draws them, how a command is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.events import Closed, Judgement, Opened, Recurred, Revised, Trend
from spikeguard_core.lifecycle import command_life
from spikeguard_core.lifecycle.command_life import COMMAND_MOVES, CommandEvent, IllegalMove, can
from spikeguard_core.lifecycle.command_outcome import after_end, after_return, next_cure, tallied
from spikeguard_core.lifecycle.incident import Incident, rise_batches
from spikeguard_core.lifecycle.incident_life import INCIDENT_MOVES, IncidentEvent, acted, fold
from spikeguard_core.suspicion import Suspicion
from spikeguard_protocol import (
    BatchRange,
    Cause,
    CommandState,
    IncidentState,
    Kind,
    Outcome,
    SegmentId,
    Verb,
)
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS

SEGMENT = SegmentId("00c0ffee00c0ffee", 0)
AGAIN = SegmentId("00c0ffee00c0ffee", 1)
PAGE = Path(__file__).parents[3] / "docs" / "lifecycles.md"

# What the design says in words, written out once more by hand.
LEGAL_COMMAND = {
    ("proposed", "revise"): "proposed",
    ("proposed", "supersede"): "superseded",
    ("proposed", "reject"): "rejected",
    ("proposed", "expire"): "expired",
    ("proposed", "heal"): "withdrawn_healed",
    ("proposed", "withdraw"): "withdrawn",
    ("proposed", "end_run"): "run_ended",
    ("proposed", "restart"): "void",
    ("proposed", "approve"): "approved",
    ("approved", "supersede"): "superseded",
    ("approved", "reject"): "rejected",
    ("approved", "expire"): "undelivered",
    ("approved", "heal"): "withdrawn_healed",
    ("approved", "withdraw"): "withdrawn",
    ("approved", "end_run"): "run_ended",
    ("approved", "restart"): "void",
    ("approved", "halt"): "halted",
    ("approved", "deliver"): "delivered",
    ("delivered", "refuse"): "refused",
    ("delivered", "apply"): "applied",
    ("delivered", "fail"): "failed",
    ("delivered", "lose"): "unknown",
    ("delivered", "expire"): "unknown",
    ("unknown", "refuse"): "refused",
    ("unknown", "apply"): "applied",
    ("unknown", "fail"): "failed",
    ("applied", "judge"): "judged",
}
LEGAL_INCIDENT = {
    ("open", "revise"): "open",
    ("open", "act"): "recovering",
    ("open", "recur"): "open",
    ("open", "close"): "closed",
    ("recovering", "revise"): "recovering",
    ("recovering", "act"): "recovering",
    ("recovering", "recur"): "open",
    ("recovering", "close"): "closed",
}


@pytest.mark.parametrize(("state", "event"), list(product(CommandState, CommandEvent)))
def test_a_command_moves_as_the_design_says_and_never_otherwise(
    state: CommandState, event: CommandEvent
) -> None:
    expected = LEGAL_COMMAND.get((state.value, event.value))
    assert can(state, event) is (expected is not None)
    if expected is not None:
        assert command_life.next_state("command", COMMAND_MOVES, state, event) == expected
        return
    with pytest.raises(IllegalMove, match=f"command that is {state} does not take {event}"):
        command_life.next_state("command", COMMAND_MOVES, state, event)


@pytest.mark.parametrize(("state", "event"), list(product(IncidentState, IncidentEvent)))
def test_an_incident_moves_as_the_design_says_and_never_otherwise(
    state: IncidentState, event: IncidentEvent
) -> None:
    expected = LEGAL_INCIDENT.get((state.value, event.value))
    if expected is not None:
        assert command_life.next_state("incident", INCIDENT_MOVES, state, event) == expected
        return
    with pytest.raises(IllegalMove, match=f"incident that is {state} does not take {event}"):
        command_life.next_state("incident", INCIDENT_MOVES, state, event)


def test_every_state_has_words_of_its_own() -> None:
    assert set(COMMAND_STATE_WORDS) == set(CommandState)
    assert len(set(COMMAND_STATE_WORDS.values())) == len(CommandState)


def test_people_are_said_not_to_have_answered_only_where_time_ran_out_on_them() -> None:
    blaming = {state for state, words in COMMAND_STATE_WORDS.items() if "nobody" in words}
    assert blaming == {CommandState.EXPIRED}
    leading = {event for (_, event), end in COMMAND_MOVES.items() if end in blaming}
    assert leading == {CommandEvent.EXPIRE}


def mermaid(moves: Mapping[tuple[Any, Any], Any], first: StrEnum) -> str:
    """The state diagram of a table, in Mermaid's language, beginning at `first`."""
    edges: dict[tuple[Any, Any], list[str]] = {}
    for (start, event), end in moves.items():
        edges.setdefault((start, end), []).append(event.value)
    leaving = {start for start, _ in edges}
    final = sorted({end for _, end in edges} - leaving)
    return "\n".join(
        [
            "stateDiagram-v2",
            f"    [*] --> {first}",
            *(f"    {a} --> {b}: {', '.join(words)}" for (a, b), words in edges.items()),
            *(f"    {state} --> [*]" for state in final),
        ]
    )


def test_the_page_shows_the_tables_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert mermaid(COMMAND_MOVES, CommandState.PROPOSED) in page
    assert mermaid(INCIDENT_MOVES, IncidentState.OPEN) in page


# --- folding events into the record ---

LOOK = Judgement(Kind.RECOVERABLE, 0.55, "most such spikes heal")
WORSE = Judgement(Kind.LINGERING, 0.8, "stopped falling")
OPENED = Opened(
    step=101,
    onset_step=100,
    onset_batches=BatchRange(99, 100),
    signal="grad_norm",
    z=22.0,
    pre_loss=3.1,
    trend=Trend(99, 3.1, 0.0, 0.02),
    judgement=LOOK,
    first_moves={"grad_norm": 100},
)


def _folded(*events: Opened | Revised | Recurred | Closed) -> Incident:
    incident: Incident | None = None
    for event in events:
        incident = fold(incident, event, number=3, segment=SEGMENT)
    assert incident is not None
    return incident


def _revised(step: int, excess: float | None, peak: float | None = 5.0) -> Revised:
    return Revised(step, WORSE, 102, peak, excess, {"loss": 90.0}, settled=False)


@pytest.mark.parametrize(
    ("sure", "excess", "kind"),
    [
        (0.95, 1.5, Kind.LINGERING),
        (0.7, 1.5, Kind.RECOVERABLE),  # a guess
        (0.95, 0.01, Kind.RECOVERABLE),  # it is back
    ],
)
def test_nothing_is_expected_to_heal_whose_sure_cause_does_not(
    sure: float, excess: float, kind: Kind
) -> None:
    causes = (Suspicion(Cause.WEIGHT_CORRUPTION, sure),)
    healing = Judgement(Kind.RECOVERABLE, 0.55, "most such spikes heal")
    incident = _folded(OPENED, replace(_revised(210, excess), judgement=healing, causes=causes))
    assert incident.kind is kind
    assert ("seldom heals" in incident.reason) is (kind is Kind.LINGERING)


@pytest.mark.parametrize(
    ("excess", "newest"), [(0.4, 120), (0.01, 102), (math.nan, 120), (math.inf, 120), (None, 120)]
)
def test_the_newest_anomalous_step_follows_the_loss_while_it_stands_out(
    excess: float | None, newest: int
) -> None:
    assert _folded(OPENED, _revised(120, excess)).anomalous_step == newest


@pytest.mark.parametrize(("band", "newest"), [(1.5, 120), (3.0, 102), (6.0, 102)])
def test_whether_a_loss_still_stands_out_follows_the_policys_band(band: float, newest: int) -> None:
    """Whoever draws the band narrower wants what lies beyond it to count."""
    opened = replace(OPENED, trend=Trend(99, 3.1, 0.0, scale=0.02, band=band))
    assert _folded(opened, _revised(120, 0.06)).anomalous_step == newest


def test_only_a_cure_makes_an_incident_recovering() -> None:
    incident = _folded(OPENED)
    for verb in Verb:
        cures = verb in (Verb.ROLLBACK, Verb.SKIP_BATCHES, Verb.SCALE_LR, Verb.APPLY)
        assert acted(incident, verb).state == ("recovering" if cures else "open")


def test_the_batches_of_its_first_rise_stay_what_they_were_when_it_comes_back_higher() -> None:
    treated = acted(_folded(OPENED, _revised(120, 0.4)), Verb.ROLLBACK)
    assert rise_batches(treated) == BatchRange(99, 102)
    again = Recurred(127, 126, BatchRange(125, 126), WORSE)
    incident = fold(treated, again, number=3, segment=AGAIN)
    higher = Revised(130, WORSE, 128, 9.0, 4.0, {"loss": 99.0}, settled=False)
    incident = fold(incident, higher, number=3, segment=AGAIN)
    assert incident is not None
    assert incident.peak_step == 128
    assert rise_batches(incident) == BatchRange(99, 102)


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


@pytest.mark.parametrize("verb", [Verb.WATCH, Verb.CHECKPOINT_NOW, Verb.STOP])
def test_what_cures_nothing_is_not_judged_by_how_it_ended(verb: Verb) -> None:
    did = "stopped the run" if verb is Verb.STOP else "changes nothing of the training"
    said = {after_end(verb, LATER, outcome=outcome) for outcome in Outcome}
    assert said == {f"nothing to judge: it {did}"}
    assert after_return(verb, None, step=500) is None


def test_what_followed_is_the_next_cure_and_not_a_look() -> None:
    done = [(1, Verb.SCALE_LR, "a"), (2, Verb.WATCH, "b"), (3, Verb.ROLLBACK, "c")]
    assert [next_cure(number, done) for number in range(4)] == ["a", "c", "c", None]


def test_of_earlier_stops_is_told_how_often_and_not_that_the_run_ended_with_them() -> None:
    stops = [(Verb.STOP, Outcome.RUN_ENDED)] * 2
    tallies = tallied([*stops, (Verb.ROLLBACK, Outcome.RECOVERED)])
    told = [tally.words for tally in tallies]
    assert told == ["stopped twice", "rolled back once: recovered"]
