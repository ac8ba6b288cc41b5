"""Figures, times and commands as a person reads them."""

from __future__ import annotations

import math
from zoneinfo import ZoneInfo

import pytest
from msgspec import convert

from spikeguard_client.shapes import Incident
from spikeguard_dashboard import words
from spikeguard_protocol.phrases import TIMES, ended_phrase
from tests.dashboard import story


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3.76641, "3.766"),
        (1234.5, "1,234"),
        (0.0, "0.000"),
        (3e-7, "3.000e-07"),
        (2.5e9, "2.500e+09"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (None, "—"),
    ],
)
def test_a_figure_keeps_four_digits_and_says_what_is_not_finite(
    value: float | None, shown: str
) -> None:
    assert words.figure(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (59.6, "1 min"), (125, "2 min 5 s"), (1312, "21 min"), (40000, "11 h 6 min")],
)
def test_a_duration_has_at_most_two_units(seconds: float, shown: str) -> None:
    assert words.duration(seconds) == shown


def test_a_time_is_said_in_the_readers_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert words.clock("2026-03-14T02:12:09Z", berlin) == "Sat 14 Mar 03:12:09 CET"
    assert words.clock(None, berlin) == "—"


def test_a_rollback_names_target_and_batches_inclusively() -> None:
    proposal = story.command()
    assert words.command("rollback", proposal["arguments"]) == (
        "Roll back to step 1,200 (step-1200), skip batches 1,240 to 1,289 (50)."
    )


def test_a_rollback_that_lowers_the_rate_says_so() -> None:
    arguments = {"target": "s", "step": 7, "skip": None, "lr_factor": 0.5, "lr_steps": 200}
    assert words.command("rollback", arguments) == (
        f"Roll back to step 7 (s), learning rate {TIMES} 0.5 for 200 steps, then back."
    )


@pytest.mark.parametrize(
    ("verb", "arguments", "part"),
    [
        ("skip_batches", {"batches": [5, 6]}, "Skip batch 5."),
        (
            "scale_lr",
            {"factor": 0.33, "steps": 50},
            f"Learning rate {TIMES} 0.33 for 50 steps, then back.",
        ),
        ("watch", {"steps": 200}, "look again after 200 steps"),
        ("checkpoint_now", {}, "Save a checkpoint"),
        ("stop", {}, "Stop the attempt"),
        ("a_new_verb", {}, "A new verb."),
    ],
)
def test_every_command_has_a_sentence(verb: str, arguments: dict[str, object], part: str) -> None:
    assert part in words.command(verb, arguments)


def test_the_story_of_an_open_incident_says_how_far_off_it_is() -> None:
    said = words.story(convert(story.incident(), Incident, strict=False))
    assert said == (
        "Step 1,246: the loss rose from 3.766 to 5.186 (peak at step 1,266), after the update norm "
        "had moved; at step 1,400 it is 0.31 above trend."
    )


def test_the_story_of_a_closed_incident_says_how_it_ended() -> None:
    said = words.story(convert(story.recovered(), Incident, strict=False))
    assert said.endswith("; closed at step 1,500: recovered.")


def test_a_run_that_is_stuck_is_told_so() -> None:
    incident = convert(story.incident(dropped=True, stuck=True), Incident, strict=False)
    assert words.story(incident).endswith("is dropped, the weights stand still.")


def test_ranks_that_have_parted_are_told_of_and_no_rise_of_the_loss() -> None:
    said = "Ranks of the job no longer held the same weights"
    incident = convert(
        story.incident(apart=True, summary=said, loss_rose=False), Incident, strict=False
    )
    assert words.story(incident) == (
        "Step 1,246: ranks of the job no longer held the same weights; what they train is no one "
        "model's, however calm the loss is."
    )


def test_a_loss_that_went_non_finite_is_told_without_a_figure_for_the_excess() -> None:
    plain = story.incident(
        peak_loss="nan",
        excess="nan",
        height=None,
        summary="The loss was not finite",
        loss_rose=False,
    )
    incident = convert(plain, Incident, strict=False)
    assert words.story(incident).startswith("Step 1,246: the loss was not finite; ")
    assert words.story(incident).endswith("it has not come back.")


def test_a_loss_that_did_not_rise_is_not_said_to_have_risen() -> None:
    said = "A gradient was not finite; the loss did not rise"
    quiet = story.incident(pre_loss=2.04, peak_loss=2.177, summary=said, loss_rose=False)
    told = words.story(convert(quiet, Incident, strict=False))
    assert told.startswith("Step 1,246: a gradient was not finite; the loss did not rise; at step")


def test_the_end_of_a_command_is_said_in_sentences_and_once() -> None:
    assert ended_phrase("withdrawn", "it lost its reason (too early).") == (
        "Withdrawn. It lost its reason (too early)."
    )
    expired = "expired: nobody answered in time"
    assert ended_phrase(expired, "nobody answered in time") == f"E{expired[1:]}."
    assert ended_phrase("rejected", None) == "Rejected."
