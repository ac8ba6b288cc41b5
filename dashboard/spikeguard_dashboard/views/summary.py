"""What the incidents of the last weeks came to, by week, by run and by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from spikeguard_client import IncidentFigures, Summary
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.frame import framed, refreshed, staleness
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import IncidentId, RunId
from spikeguard_protocol.phrases import cause_phrase

SPANS = {1: "This week", 4: "4 weeks", 13: "A quarter", 52: "A year"}
FIGURES = ("Incidents", "To detect", "To decide", "To recover", "Lost", "Saved")


def summary_page() -> None:
    """`/summary`."""
    framed(_page, ["Summary"])


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    weeks = st.segmented_control(
        "Weeks", list(SPANS), format_func=SPANS.__getitem__, default=4, label_visibility="collapsed"
    )
    refreshed(visit, lambda: _draw(visit, weeks or 4))


def _draw(visit: Visit, weeks: int) -> None:
    seen = look(f"summary {weeks}", lambda: visit.client.summary(visit.token, weeks))
    staleness(seen)
    if seen.data is not None:
        st.html(summary_view(seen.data))


def summary_view(found: Summary) -> str:
    """The whole page."""
    return markup.block(
        markup.heading(f"Incidents from {found['begins'][:10]} to {found['ends'][:10]}"),
        markup.paragraph(found["in_short"], "sg-story"),
        markup.section("By week"),
        _table("Week", [(week["week"], week["figures"]) for week in found["weeks"]]),
        markup.section("By run"),
        _runs(found),
        markup.section("By kind and cause"),
        _causes(found),
        markup.section(f"Open follow-ups ({found['followups_count']:,})"),
        _followups(found),
    )


def _table(first: str, rows: Sequence[tuple[Content, IncidentFigures]]) -> Html:
    columns = [Column(first), *(Column(name, named=True) for name in FIGURES)]
    cells: list[Sequence[Content]] = [[name, *_cells(figures)] for name, figures in rows]
    return markup.table(columns, cells, stacked=True)


def _cells(figures: IncidentFigures) -> list[Content]:
    return [
        f"{figures['incidents']:,}",
        *(
            words.NOTHING if seconds is None else words.duration(seconds)
            for seconds in (figures["detect_s"], figures["decide_s"], figures["recover_s"])
        ),
        _steps(figures["lost_steps"], figures["lost_money"]),
        _steps(figures["saved_steps"], figures["saved_money"]),
    ]


def _steps(steps: int, money: Mapping[str, float]) -> str:
    if not steps:
        return words.NOTHING
    priced = [f"{value:,.2f} {currency}" for currency, value in sorted(money.items())]
    return ", ".join([f"{steps:,} step{'s' * (steps != 1)}", *priced])


def _runs(found: Summary) -> Html:
    rows: list[tuple[Content, IncidentFigures]] = []
    for run in found["runs"]:
        place = RunId(run["project"], run["name"])
        rows.append((markup.link(str(place), markup.run_address(place)), run["figures"]))
    return _table("Run", rows) if rows else markup.paragraph(markup.soft("None had one."))


def _causes(found: Summary) -> Html:
    if not found["causes"]:
        return markup.paragraph(markup.soft("None."))
    columns = [Column("Kind"), Column("Likeliest cause")]
    columns += [Column(name, named=True) for name in ("Incidents", "Runs", "Steps lost")]
    rows: list[Sequence[Content]] = [
        [
            markup.chip(cause["kind"] or "unknown"),
            cause_phrase(cause["cause"]) if cause["cause"] else "not asked",
            *(f"{cause[name]:,}" for name in ("incidents", "runs", "lost_steps")),
        ]
        for cause in found["causes"]
    ]
    return markup.table(columns, rows, stacked=True)


def _followups(found: Summary) -> Html:
    if not found["followups"]:
        return markup.paragraph(markup.soft("None."))
    rows: list[Sequence[Content]] = []
    for one in found["followups"]:
        place = IncidentId.parse(one["incident"])
        link = markup.link(one["incident"], markup.incident_address(place.run, place.number))
        owner = one["owner"] or "nobody"
        rows.append([link, markup.prose(one["text"]), owner, markup.unbroken(one["since"][:10])])
    columns = [
        Column("Incident"),
        Column("What"),
        Column("Owner", named=True),
        Column("Since", wide=True),
    ]
    return markup.table(columns, rows, stacked=True)
