"""All runs: what needs somebody now, and a table that is searched, filtered, sorted and paged.

Invariants: filters and page stand outside what is refreshed, so that half-typed text and the place
in the list survive it; filters stand in the address, so that a list can be shared. While runs are
chosen their rows keep their places. An outage is said once, above the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from spikeguard_client.shapes import Incident, Run
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.client import RunPage
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.frame import framed, refreshed, staleness
from spikeguard_dashboard.views.run_choice import chosen_actions, chosen_runs
from spikeguard_dashboard.views.run_filters import PAGE, Asked, asked_runs, turn_pages
from spikeguard_dashboard.views.run_table import draw_table
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import RunId

INCIDENT_COLUMNS = (
    Column("Incident"),
    Column("State"),
    Column("Kind"),
    Column("What happened"),
    Column("Opened", wide=True),
)
RECENT = 12
URGENT = 6  # runs that are named before the table


def runs_page() -> None:
    """The first page."""
    framed(_page, ["Runs"])


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    refreshed(visit, lambda: _urgent(visit))
    asked = asked_runs()
    refreshed(visit, lambda: _table(visit, asked))
    chosen_actions()
    refreshed(visit, lambda: _recent(visit))


def _urgent(visit: Visit) -> None:
    """Runs with an open incident or an order that waits, before everything else."""
    query = {"limit": URGENT, "order": "attention"}
    seen = look("urgent runs", lambda: visit.client.run_page(query))
    if seen.data is not None:
        st.html(markup.block(_heading(seen.data), _needs_list(seen.data.items)))


def _heading(runs: RunPage) -> Html:
    total = runs.total or len(runs.items)
    return markup.heading(f"{total:,} run{'s' * (total != 1)}")


def _needs_list(runs: Sequence[Run]) -> Html:
    """A line for each run that needs somebody."""
    waiting = sorted(filter(_wanting, runs), key=lambda run: not run["waiting_approval"])
    if not runs:
        return markup.paragraph(
            "No run has reported yet. Add spikeguard.attach(...) to a training loop, or try "
            "`make demo`."
        )
    if not waiting:
        return markup.paragraph(markup.soft("No run needs anybody now."))
    lines = markup.bullets(_need(run) for run in waiting)
    return Html(f'<div class="sg-needs">{lines.text}</div>')


def _wanting(run: Run) -> bool:
    twice, alone = run["live_attempts"] > 1, run["state"] == "silent"
    return run["open_incident"] is not None or run["waiting_approval"] or twice or alone


def _need(run: Run) -> Html:
    found = RunId(run["project"], run["name"])
    name = markup.unbroken(markup.link(str(found), markup.run_address(found)))
    return markup.joined(name, *_reasons(run, found))


def _reasons(run: Run, found: RunId) -> list[Content]:
    said: list[Content] = []
    if run["open_incident"] is None and run["waiting_approval"]:
        said.append(markup.chip("waiting", "a decision on an order"))
    elif run["open_incident"] is not None:
        address = markup.incident_address(found, run["open_incident"])
        number = run["open_incident"]
        text = f"a decision on incident {number}"
        if not run["waiting_approval"]:
            text = f"incident {number} open"
        tone = "waiting" if run["waiting_approval"] else "open"
        said += [markup.link(markup.chip(tone, text), address)]
        said += [markup.chip(run["open_kind"])] if run["open_kind"] else []
    if run["live_attempts"] > 1:
        said.append(markup.chip("silent", f"{run['live_attempts']} attempts alive"))
    if run["state"] == "silent":
        said.append(markup.chip("silent", f"silent for {words.duration(run['age_s'])}"))
    return said


def _table(visit: Visit, asked: Asked) -> None:
    key = f"runs {asked.query} {asked.cursor}"
    seen = look(key, lambda: visit.client.run_page(asked.query, asked.cursor))
    staleness(seen)
    if seen.data is None:
        return
    if not seen.data.items:
        st.html(markup.block(markup.paragraph("No run matches. Change the filters above.")))
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
