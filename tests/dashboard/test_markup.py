"""Nothing that comes from outside becomes HTML."""

from __future__ import annotations

from html import unescape

import pytest

from spikeguard_dashboard import markup
from spikeguard_dashboard.markup import Column
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
