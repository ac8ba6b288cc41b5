"""Nothing that comes from outside becomes HTML, and an incident is told in one sentence."""

from __future__ import annotations

from html import unescape

import pytest
from msgspec import convert

from spikeguard_client.shapes import Incident
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Column
from tests.dashboard.conftest import RUN
from tests.dashboard.recording_proxy import RecordingProxy
from tests.hostile import HARMLESS, HOSTILE, acted_on

NASTY = "<script>alert('x')</script>\"&"


def test_every_piece_escapes_what_it_is_given() -> None:
    pieces = [
        markup.chip(NASTY),
        markup.chip("open", NASTY),
        markup.soft(NASTY),
        markup.code(NASTY),
        markup.link(NASTY, "./run"),
        markup.link("name", f"./run?{NASTY}"),
        markup.heading(NASTY),
        markup.section(NASTY),
        markup.paragraph(NASTY, NASTY),
        markup.facts([(NASTY, NASTY)]),
        markup.table([Column(NASTY)], [[NASTY]]),
        markup.card(NASTY, NASTY),
        markup.unbroken(NASTY),
        markup.prose(f"{NASTY}`{NASTY}`"),
        markup.table([Column(NASTY, numeric=True)], [["1"]], stacked=True),
    ]
    for made in pieces:
        assert "<script" not in made.text
        assert NASTY not in made.text


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_piece_reorders_or_hides_what_stands_beside_it(text: str) -> None:
    pieces = (
        markup.chip("open", text),
        markup.soft(text),
        markup.link(text, "./run"),
        markup.facts([(text, text)]),
        markup.table([Column("A", numeric=True)], [[text]], stacked=True),
        markup.prose(text),
    )
    for made in pieces:
        assert acted_on(unescape(made.text)) == []


def test_every_script_stays_readable() -> None:
    for text in HARMLESS:
        assert text in markup.soft(text).text


def test_an_address_that_would_run_a_script_is_no_link() -> None:
    assert "href" not in markup.link("click", "javascript:alert(1)").text


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
