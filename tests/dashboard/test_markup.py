"""Nothing that comes from outside becomes HTML."""

from __future__ import annotations

from html import unescape

import pytest

from spikeguard_dashboard import markup
from spikeguard_dashboard.markup import Column
from spikeguard_protocol import RunId
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
        markup.table([Column(NASTY, named=True)], [["1"]], stacked=True),
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
        markup.table([Column("A", named=True)], [[text]], stacked=True),
        markup.prose(text),
    )
    for made in pieces:
        assert acted_on(unescape(made.text)) == []


def test_every_script_stays_readable() -> None:
    for text in HARMLESS:
        assert text in markup.soft(text).text


def test_what_one_types_is_told_from_what_one_reads() -> None:
    said = markup.prose("`spikeguard runs` lists those there are")
    assert said.text == "<code>spikeguard runs</code> lists those there are"


def test_a_number_keeps_its_name_where_a_table_is_stacked() -> None:
    columns = [Column("Run"), Column("Step", numeric=True), Column("Until", named=True)]
    made = markup.table(columns, [["gpt", "7", "noon"]], stacked=True).text
    assert '<td class="">gpt</td>' in made
    assert '<td class="num" data-label="Step">7</td>' in made
    assert '<td class="" data-label="Until">noon</td>' in made


def test_an_address_that_would_run_a_script_is_no_link() -> None:
    assert "href" not in markup.link("click", "javascript:alert(1)").text


def test_deep_links_are_those_that_are_documented() -> None:
    run = RunId.parse("gpt-124m-7")
    assert markup.run_address(run) == "./run?run=default/gpt-124m-7"
    assert markup.incident_address(run, 3) == "./incident?run=default/gpt-124m-7&number=3"


def test_the_way_back_from_signing_in_is_one_query_value() -> None:
    address = markup.login_address("http://h:1", "http://h:2/incident?run=a/b&number=3")
    assert (
        address == "http://h:1/login?next=http%3A%2F%2Fh%3A2%2Fincident%3Frun%3Da%2Fb%26number%3D3"
    )
