"""All runs: incidents, open ones first, and a table that is searched, filtered, sorted and paged.

Filters and page stand outside what is refreshed, so that half-typed text and the place in the list
survive it; filters stand in the address, so that a list can be shared. While runs are chosen their
rows keep their places. An outage is said once, above the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from spikeguard_client.shapes import Incident
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.client import RunPage
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.frame import framed, refreshed, staleness
from spikeguard_dashboard.views.run_filters import PAGE, Asked, asked_runs, turn_pages
from spikeguard_dashboard.views.run_table import chosen_actions, chosen_runs, draw_table
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import RunId

INCIDENT_COLUMNS = (
    Column("Incident"),
    Column("State"),
    Column("Kind"),
    Column("What happened"),
    Column("Opened", wide=True),
)
RECENT = 6
NO_RUNS = (
    "No run is here. Change the filters above; or add spikeguard.attach(...) to a training loop, "
    "or try `make demo`."
)


def runs_page() -> None:
    """The first page."""
    framed(_page, ["Runs"])


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    refreshed(visit, lambda: _recent(visit))
    asked = asked_runs()
    refreshed(visit, lambda: _table(visit, asked))
    chosen_actions()


def _table(visit: Visit, asked: Asked) -> None:
    key = f"runs {asked.query} {asked.cursor}"
    seen = look(key, lambda: visit.client.run_page(asked.query, asked.cursor))
    staleness(seen)
    if seen.data is None:
        return
    if not seen.data.items:
        st.html(markup.block(markup.paragraph(NO_RUNS)))
        return
    draw_table(visit, seen.data.items, chosen_runs())
    turn_pages(asked, seen.data.next_cursor, _range(asked, seen.data))


def _range(asked: Asked, page: RunPage) -> str:
    first = (asked.number - 1) * PAGE + 1
    total = "" if page.total is None else f" of {page.total:,}"
    return f"{first:,} to {first + len(page.items) - 1:,}{total}"


def _recent(visit: Visit) -> None:
    recent = look("incidents", lambda: visit.client.newest_incidents(limit=RECENT))
    if recent.data is None:
        staleness(recent)
    if recent.data:
        heading = markup.section("Latest incidents")
        st.html(markup.block(heading, incident_table(recent.data, visit)))


def incident_table(incidents: Sequence[Incident], visit: Visit) -> Html:
    """One row an incident."""
    rows = [_incident_row(item, visit) for item in incidents]
    return markup.table(INCIDENT_COLUMNS, rows, stacked=True)


def _incident_row(incident: Incident, visit: Visit) -> list[Content]:
    run = RunId(incident["project"], incident["run"].rpartition("/")[2])
    waiting = words.waiting(incident["proposal"])
    state = markup.chip("waiting", "waiting for a decision") if waiting else ""
    address = markup.incident_address(run, incident["number"])
    sure = words.percent(incident["confidence"])
    return [
        markup.unbroken(markup.link(incident["id"], address)),
        markup.joined(markup.chip(incident["state"]), state),
        markup.unbroken(markup.chip(incident["kind"], incident["title"]), markup.soft(sure)),
        words.story(incident),
        markup.unbroken(words.clock(incident["opened_at"], visit.zone)),
    ]
