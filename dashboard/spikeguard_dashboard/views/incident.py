"""One incident, as somebody woken at 03:00 needs it: what, how bad, what now."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import streamlit as st

from spikeguard_client.shapes import Command, IncidentDetail, IncidentRevision
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.charts import Marker
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.series import Series
from spikeguard_dashboard.views.curves import (
    draw_curves,
    is_norm,
    kept_stretches,
    legend,
    measured,
)
from spikeguard_dashboard.views.frame import (
    asked_incident,
    asked_run,
    framed,
    nothing_named,
    refreshed,
    staleness,
)
from spikeguard_dashboard.views.postmortem import postmortem
from spikeguard_dashboard.views.run import quiet
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import OPTIONAL_SIGNALS, STANDARD_SIGNALS, IncidentId, RunId
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
    st.html(markup.block(_head(incident), _quiet(visit, run, incident)))
    st.html(markup.block(_decision(visit, incident)))
    _curves(visit, run, incident)
    st.html(markup.block(markup.section("Kind"), _kind(incident)))
    _trackers(visit, run)
    st.html(markup.block(markup.section("Commands"), commands(incident["commands"], visit)))
    postmortem(visit, run, incident)


def _head(incident: IncidentDetail) -> Html:
    chips = [markup.chip(incident["state"]), markup.chip(incident["kind"], incident["title"])]
    if words.waiting(incident["proposal"]):
        chips.append(markup.chip("waiting", "waiting for a decision"))
    story = markup.paragraph(words.story(incident), "sg-story")
    return markup.joined(markup.heading(incident["id"], *chips), story, gap="")


def _decision(visit: Visit, incident: IncidentDetail) -> Html:
    """What waits for a decision, and the server's page on which people decide and see causes."""
    page = markup.first_view_address(visit.settings.public_url, incident["id"])
    proposal = incident["proposal"]
    if proposal is None or not words.waiting(proposal):
        return markup.paragraph(markup.link("Cause, evidence and people", page))
    name = f"Proposed command {proposal['id']}, revision {proposal['revision']}"
    return markup.card(
        "ask",
        markup.soft(name),
        markup.paragraph(words.command(proposal["verb"], proposal["arguments"]), "order"),
        markup.paragraph(markup.soft(words.expiry(proposal)), "expiry"),
        markup.paragraph(markup.link("Look at it and decide", page)),
    )


def _trackers(visit: Visit, run: RunId) -> None:
    """Where the newest attempt that has links is shown by the job's own trackers."""
    detail = look(f"run {run}", lambda: visit.client.run(run)).data
    attempts = [] if detail is None else detail["attempts"]
    linked = [attempt for attempt in attempts if attempt["links"]]
    if linked:
        newest = max(linked, key=lambda attempt: attempt["number"])
        st.html(markup.block(markup.tracker_links(newest["links"])))


def tab_title(incident: IncidentDetail) -> str:
    """`(1) gpt-7#3` while something waits for a decision."""
    waits = sum(words.waiting(command) for command in incident["commands"])
    return f"({waits}) {incident['id']}" if waits else incident["id"]


def _quiet(visit: Visit, run: RunId, incident: IncidentDetail) -> Html:
    """What to look at where the run's job may have died, unless the incident ended before."""
    if incident["state"] == "closed" and incident["outcome"] != "run_ended":
        return markup.EMPTY
    detail = look(f"run {run}", lambda: visit.client.run(run)).data
    return markup.EMPTY if detail is None else quiet(detail)


def _kind(incident: IncidentDetail) -> Html:
    """What it is classified as, and how that came about."""
    meaning = words.KIND_MEANING.get(incident["kind"], "")
    final = "final" if incident["settled"] or incident["state"] == "closed" else "may be revised"
    sure = f"{words.percent(incident['confidence'])} confidence, {final}"
    now = markup.joined(markup.chip(incident["kind"]), f"{meaning};", markup.soft(sure))
    because = markup.paragraph(f"{incident['reason'].rstrip('.')}.")
    newest_first = sorted(incident["revisions"], key=lambda revision: -revision["number"])
    turns = turning_points(newest_first)
    table = _kinds(turns)
    if len(turns) < len(newest_first):
        summary = f"All {len(newest_first)} revisions"
        table = markup.joined(table, markup.folded(summary, _kinds(newest_first)), gap="")
    return markup.joined(markup.paragraph(now), because, table, gap="")


def turning_points(newest_first: Sequence[IncidentRevision]) -> list[IncidentRevision]:
    """The newest revision, and every one that changed the kind."""
    older = [*newest_first[1:], None]
    return [
        revision
        for place, (revision, before) in enumerate(zip(newest_first, older, strict=True))
        if place == 0 or before is None or before["kind"] != revision["kind"]
    ]


def _kinds(revisions: Sequence[IncidentRevision]) -> Html:
    rows: list[Sequence[Content]] = [
        [
            words.count(revision["step"]),
            markup.unbroken(
                markup.chip(revision["kind"]), markup.soft(words.percent(revision["confidence"]))
            ),
            revision["reason"],
        ]
        for revision in revisions
    ]
    return markup.table(
        [Column("Step", numeric=True), Column("Classified as"), Column("Because")], rows
    )


def _curves(visit: Visit, run: RunId, incident: IncidentDetail) -> None:
    key = f"{run}#{incident['number']}"
    detail = look(f"run {run}", lambda: visit.client.run(run)).data
    seen = look(f"samples {key}", lambda: _samples(visit, run, incident))
    staleness(seen)
    if seen.data is None or not seen.data.segments:
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
    legend(seen.data.trend.band if seen.data.trend else None)


def _samples(visit: Visit, run: RunId, incident: IncidentDetail) -> Series:
    """The copied samples; before there are any, the run's own around the onset."""
    copied = visit.client.incident_curves(IncidentId(run, incident["number"]), COPIED)
    if copied.segments:
        return copied
    first = max(1, incident["onset_step"] - AROUND)
    return visit.client.curves(run, COPIED, first=first)


def _ordered(series: Series) -> list[str]:
    """Standard signals in their usual order, the user's own after them."""
    usual = [signal for signal in STANDARD_SIGNALS if signal in series.signals]
    return usual + [signal for signal in series.signals if signal not in usual]


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
    """Onset, detection, peak, and where commands took effect."""
    marks = [
        Marker(incident["onset_step"], "onset", "onset"),
        Marker(incident["detected_step"], "detected", "detected"),
        Marker(incident["peak_step"], "peak", "peak"),
    ]
    for command in incident["commands"]:
        if command["applied_step"] is not None:
            verb = words.plain(command["verb"])
            marks.append(Marker(command["applied_step"], f"{verb} applied", "command"))
    return marks


def commands(items: Sequence[Command], visit: Visit) -> Html:
    """Every command with who decided, when, and what became of it."""
    if not items:
        return markup.paragraph(markup.soft("None so far."))
    columns = [
        *(Column("Command"), Column("State"), Column("What"), Column("Decided by", named=True)),
        *(Column("When"), Column("Applied at step", numeric=True)),
        Column("What became of it"),
    ]
    rows = [_command_row(item, visit) for item in items]
    return markup.table(columns, rows, stacked=True)


def _command_row(item: Command, visit: Visit) -> list[Content]:
    told = (item["decision_reason"], item["end_reason"], item["result"], item["judgement"])
    said = "; ".join(part for part in (*told, item["effect"]) if part)
    return [
        f"{item['id'].rpartition('#')[2]} rev. {item['revision']}",
        markup.chip(item["state"], words.COMMAND_STATE.get(item["state"])),
        words.command(item["verb"], item["arguments"]),
        item["decided_by"] or words.NOTHING,
        words.clock(item["decided_at"] or item["proposed_at"], visit.zone),
        words.count(item["applied_step"]),
        said,
    ]
