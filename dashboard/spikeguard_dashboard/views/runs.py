"""All runs and what needs somebody now."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from spikeguard_client import Incident, Run
from spikeguard_client.reading import Page
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.frame import framed, refreshed, staleness
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import RunId

RUN_COLUMNS = (
    Column("Run"),
    Column("State"),
    Column("Needs"),
    Column("Data age", numeric=True),
    Column("Step", numeric=True),
    Column("Loss", numeric=True),
    Column("Grad norm", numeric=True, wide=True),
    Column("Tokens/s", numeric=True, wide=True),
    Column("Incidents", numeric=True, wide=True),
)
INCIDENT_COLUMNS = (
    Column("Incident"),
    Column("State"),
    Column("Kind"),
    Column("What happened"),
    Column("Opened", wide=True),
)
RECENT = 12
LISTED = 200
NOT_LISTED = f"Only {LISTED} runs are listed: of each project those with an open incident first."


def runs_page() -> None:
    """The first page."""
    framed(_page, ["Runs"])


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    refreshed(visit, lambda: _draw(visit))


def _draw(visit: Visit) -> None:
    runs = look("runs", lambda: visit.client.runs(visit.token, limit=LISTED))
    recent = look("incidents", lambda: visit.client.incidents(visit.token, limit=RECENT))
    staleness(runs, recent)
    if runs.data is None:
        return
    st.html(markup.block(_summary(runs.data.items), run_table(runs.data)))
    if recent.data and recent.data.items:
        heading = markup.section("Latest incidents")
        st.html(markup.block(heading, incident_table(recent.data.items, visit)))


def _summary(runs: Sequence[Run]) -> Html:
    live = sum(run["state"] == "live" for run in runs)
    silent = sum(run["state"] == "silent" for run in runs)
    waiting = sum(run["waiting_approval"] for run in runs)
    title = f"{len(runs)} run{'s' * (len(runs) != 1)}, {live} live"
    chips = [markup.chip("waiting", f"{waiting} waiting for a decision")] * bool(waiting)
    return markup.heading(
        title, *chips, *[markup.chip("silent", f"{silent} silent")] * bool(silent)
    )


def run_table(runs: Page[Run]) -> Html:
    """One row a run; those that wait for a decision first, then open incidents, then the rest."""
    if not runs.items:
        return markup.paragraph(
            "No run has reported yet. Add spikeguard.attach(...) to a training loop, or try "
            "`make demo`."
        )
    rows = [_run_row(run) for run in sorted(runs.items, key=_urgency)]
    more = markup.paragraph(markup.soft(NOT_LISTED)) if len(runs.items) >= LISTED else ""
    return markup.joined(markup.table(RUN_COLUMNS, rows, stacked=True), more, gap="")


def _urgency(run: Run) -> tuple[bool, bool, bool]:
    return (not run["waiting_approval"], run["open_incident"] is None, run["state"] == "ended")


def _run_row(run: Run) -> list[Content]:
    found = RunId(run["project"], run["name"])
    return [
        markup.unbroken(markup.link(str(found), markup.run_address(found))),
        _state(run),
        _needs(run, found),
        words.duration(run["age_s"]) if run["state"] != "ended" else words.NOTHING,
        words.count(run["last_step"]),
        words.figure(run["last_loss"]),
        words.figure(run["last_grad_norm"]),
        words.big(run["tokens_per_second"]),
        words.count(run["incidents"]),
    ]


def _state(run: Run) -> Html:
    twice = markup.chip("silent", f"{run['live_attempts']} attempts alive")
    return markup.joined(
        markup.chip(run["state"]), twice if run["live_attempts"] > 1 else "", gap=" "
    )


def _needs(run: Run, found: RunId) -> Content:
    if run["open_incident"] is None and run["waiting_approval"]:
        return markup.link(markup.chip("waiting", "a decision on an order"), "./inbox")
    if run["open_incident"] is None:
        return markup.soft("nothing")
    address = markup.incident_address(found, run["open_incident"])
    if run["waiting_approval"]:
        text = f"a decision on incident {run['open_incident']}"
        return markup.link(markup.chip("waiting", text), address)
    return markup.link(markup.chip("open", f"incident {run['open_incident']} open"), address)


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
