"""One incident: what happened, and its curves. The server's page has cause, commands and people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import streamlit as st

from spikeguard_client.shapes import IncidentDetail, RunDetail, Series
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.charts import Marker
from spikeguard_dashboard.markup import Content, Html
from spikeguard_dashboard.views.curves import draw_curves, is_norm, kept_stretches, legend, measured
from spikeguard_dashboard.views.frame import (
    DOT,
    asked_incident,
    asked_run,
    framed,
    nothing_named,
    refreshed,
    staleness,
)
from spikeguard_dashboard.views.run import quiet
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import OPTIONAL_SIGNALS, STANDARD_SIGNALS, IncidentId, RunId
from spikeguard_protocol.paths import incident_page_path
from spikeguard_protocol.vocabulary import SPEAKS_OF

SHOWN_AT_FIRST = 3
AROUND = 200  # steps before the onset, where the server has no copied samples yet
MOST_ASKED = 16  # signals that the server answers with at once
_WANTED = (
    "loss",
    "grad_norm",
    "grad_norm_at_step",
    "update_norm",
    *chain.from_iterable(SPEAKS_OF.values()),
)
COPIED = tuple(dict.fromkeys([*_WANTED, *OPTIONAL_SIGNALS]))[:MOST_ASKED]  # where measured


def incident_page() -> None:
    """`/incident?run=project/name&number=3`."""
    run, number = asked_run(), asked_incident()
    trail: list[Content] = ["Incident"]
    if run and number:
        trail = [markup.link(str(run), markup.run_address(run)), f"incident {number}"]
    framed(_page, trail)


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    run, number = asked_run(), asked_incident()
    if run is None or number is None:
        nothing_named("incident", "/incident?run=default/gpt-124m-7&number=3")
        return
    refreshed(visit, lambda: _draw(visit, run, number))


def _draw(visit: Visit, run: RunId, number: int) -> None:
    key = f"{run}#{number}"
    seen = look(f"incident {key}", lambda: visit.client.incident(IncidentId(run, number)))
    staleness(seen)
    if seen.data is None:
        return
    incident = seen.data
    st.set_page_config(page_title=tab_title(incident))
    detail = look(f"run {run}", lambda: visit.client.run(run)).data
    st.html(markup.block(_head(incident), _quiet(detail, incident)))
    st.html(markup.block(_where_people_act(visit, incident)))
    _curves(visit, run, detail, incident)


def _head(incident: IncidentDetail) -> Html:
    chips = [markup.chip(incident["state"]), markup.chip(incident["kind"], incident["title"])]
    if words.waiting(incident["proposal"]):
        chips.append(markup.chip("waiting", "waiting for a decision"))
    story = markup.paragraph(words.story(incident), "sg-story")
    return markup.joined(markup.heading(incident["id"], *chips), story, gap="")


def _where_people_act(visit: Visit, incident: IncidentDetail) -> Html:
    """The server's pages of it: cause, evidence, commands, people, and its post-mortem."""
    page = visit.settings.public_url + incident_page_path(IncidentId.parse(incident["id"]))
    if words.waiting(incident["proposal"]):
        name = markup.link("Look at it and decide", page)
        return markup.card("ask", markup.paragraph(name, "order"))
    links = [markup.link("Cause, commands and people", page)]
    if incident["has_postmortem"]:
        links.append(markup.link("Post-mortem", f"{page}/postmortem"))
    return markup.paragraph(markup.joined(*links, gap=DOT))


def tab_title(incident: IncidentDetail) -> str:
    """`(1) gpt-7#3` while something waits for a decision."""
    waits = sum(words.waiting(command) for command in incident["commands"])
    return f"({waits}) {incident['id']}" if waits else incident["id"]


def _quiet(detail: RunDetail | None, incident: IncidentDetail) -> Html:
    """What to look at where the run's job may have died, unless the incident ended before."""
    ended_before = incident["state"] == "closed" and incident["outcome"] != "run_ended"
    return markup.EMPTY if detail is None or ended_before else quiet(detail)


def _curves(visit: Visit, run: RunId, detail: RunDetail | None, incident: IncidentDetail) -> None:
    key = f"{run}#{incident['number']}"
    seen = look(f"samples {key}", lambda: _samples(visit, run, incident))
    staleness(seen)
    if seen.data is None or not seen.data["segments"]:
        st.html(markup.block(markup.paragraph("No samples of it have arrived yet.")))
        return
    there = [signal for signal in _ordered(seen.data) if measured(seen.data, signal)]
    chosen, log_norms = _controls(incident, there)
    draw_curves(
        seen.data,
        kept_stretches(seen.data, detail),
        chosen,
        log_norms=log_norms,
        dark=visit.dark,
        markers=markers(incident),
    )
    trend = seen.data["trend"]
    legend(trend["band"] if trend else None, markers(incident), dark=visit.dark)


def _samples(visit: Visit, run: RunId, incident: IncidentDetail) -> Series:
    """The copied samples; before there are any, the run's own around the onset."""
    copied = visit.client.incident_series(IncidentId(run, incident["number"]), *COPIED)
    if copied["segments"]:
        return copied
    first = max(1, incident["onset_step"] - AROUND)
    return visit.client.series(run, *COPIED, first=first)


def _ordered(series: Series) -> list[str]:
    """Standard signals in their usual order, the user's own after them."""
    usual = [signal for signal in STANDARD_SIGNALS if signal in series["signals"]]
    return usual + [signal for signal in series["signals"] if signal not in usual]


def _controls(incident: IncidentDetail, there: list[str]) -> tuple[list[str], bool]:
    which, how = st.columns([4, 1], vertical_alignment="bottom")
    likely = next(iter(incident["causes"]), None)
    spoken = SPEAKS_OF.get(likely["cause"], ()) if likely else ()
    usual = [s for s in there if is_norm(s) and s != "param_norm"]
    telling = list(dict.fromkeys(s for s in ("loss", *spoken, *usual) if s in there))
    chosen = which.multiselect(
        "Signals",
        there,
        default=telling[:SHOWN_AT_FIRST],
        format_func=words.title,
        key="incident-signals",
    )
    return list(chosen), how.toggle("Log norms", value=True, key="incident-log")


def markers(incident: IncidentDetail) -> list[Marker]:
    """Onset, detection, peak, and where commands that change the training took effect."""
    marks = [
        Marker(incident["onset_step"], "onset", "onset"),
        Marker(incident["detected_step"], "detected", "detected"),
        Marker(incident["peak_step"], "peak", "peak"),
    ]
    for command in incident["commands"]:
        if command["applied_step"] is not None and command["verb"] != "watch":
            verb = words.plain(command["verb"])
            marks.append(Marker(command["applied_step"], f"{verb} applied", "command"))
    return marks
