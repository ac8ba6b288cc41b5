"""What is said of an incident, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from spikeguard_client.shapes import Incident
from spikeguard_dashboard import words
from tests.dashboard.conftest import RUN
from tests.dashboard.recording_proxy import RecordingProxy


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dropped": True, "stuck": True}, "is dropped, the weights stand still."),
        (
            {"apart": True, "summary": "Ranks no longer held the same weights"},
            "Ranks no longer held the same weights; they train different models, however "
            "calm the loss is.",
        ),
        (
            {
                "peak_loss": "nan", "excess": "nan", "height": None,
                "summary": "The loss was not finite",
            },
            "the loss was not finite; it has not come back.",
        ),
        (
            {"summary": "A gradient was not finite; the loss did not rise"},
            "a gradient was not finite; the loss did not rise; at step",
        ),
    ],
)  # fmt: skip
def test_an_incident_is_told_by_what_happened_in_it(
    proxy: RecordingProxy, changes: dict[str, Any], said: str
) -> None:
    plain = {**proxy.read(f"{RUN}/incidents/1"), "loss_rose": False, **changes}
    told = words.story(convert(plain, Incident, strict=False))
    assert said.casefold() in told.casefold()
    assert ("rose from" in told) == ("summary" not in changes)


def test_the_story_of_a_closed_incident_says_how_it_ended(proxy: RecordingProxy) -> None:
    plain = proxy.read("/v1/runs/default/llama-8b-old/incidents/1")
    said = words.story(convert(plain, Incident, strict=False))
    assert said.endswith(f"; closed at step {plain['closed_step']:,}: recovered.")
