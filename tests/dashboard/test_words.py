"""What is said of an incident, in one sentence."""

from __future__ import annotations

from msgspec import convert

from spikeguard_client.shapes import Incident
from spikeguard_dashboard import words
from tests.dashboard.conftest import RUN
from tests.dashboard.recording_proxy import RecordingProxy


def test_an_incident_is_told_in_the_servers_words_with_where_it_stands(
    proxy: RecordingProxy,
) -> None:
    plain = proxy.read(f"{RUN}/incidents/1")
    said = words.story(convert(plain, Incident, strict=False))
    assert said.startswith("Step 2,201: the loss rose from 2.")
    assert said.endswith(f"; at step {plain['newest_step']:,} it is {plain['height']}.")
    summary = "A gradient was not finite; the loss did not rise"
    told = convert({**plain, "summary": summary, "height": None}, Incident, strict=False)
    assert words.story(told) == f"Step 2,201: a{summary[1:]}."


def test_the_story_of_a_closed_incident_says_how_it_ended(proxy: RecordingProxy) -> None:
    plain = proxy.read("/v1/runs/default/llama-8b-old/incidents/1")
    said = words.story(convert(plain, Incident, strict=False))
    assert said.endswith(f"; closed at step {plain['closed_step']:,}: recovered.")
