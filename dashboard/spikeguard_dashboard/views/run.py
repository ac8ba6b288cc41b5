"""One run: its curves, what happened to it, and what was done to it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import streamlit as st

from spikeguard_client.shapes import Attempt, AuditEntry, Incident, Note, RunDetail, RunWarning
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.charts import Marker, Span, Window
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.curves import draw_curves, kept_stretches, legend, note_marks
from spikeguard_dashboard.views.frame import (
    DOT,
    asked_run,
    framed,
    nothing_named,
    refreshed,
    staleness,
)
from spikeguard_dashboard.views.runs import incident_table
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import OPTIONAL_SIGNALS, STANDARD_SIGNALS, RunId
from spikeguard_protocol.findings import Finding, findings_from_settings
from spikeguard_protocol.paths import act_path
from spikeguard_protocol.phrases import duration_phrase

WINDOWS = {"All": None, "Last 5,000": 5000, "Last 1,000": 1000, "Last 200": 200, "Choose": 0}
RECORD_COLUMNS = (
    *(Column("When"), Column("Who"), Column("What"), Column("Subject"), Column("State")),
    Column("Reason"),
)
FIRST_CHOICE = ["loss", "grad_norm", "update_norm"]


def run_page() -> None:
    """`/run?run=project/name`."""
    run = asked_run()
    framed(_page, ["Run" if run is None else str(run)])


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    run = asked_run()
    if run is None:
        nothing_named("run", "/run?run=default/gpt-124m-7")
        return
    refreshed(visit, lambda: _draw(visit, run))


def _draw(visit: Visit, run: RunId) -> None:
    seen = look(f"run {run}", lambda: visit.client.run(run))
    found = look(f"incidents {run}", lambda: visit.client.newest_incidents(run))
    staleness(seen, found)
    if seen.data is None:
        return
    detail = seen.data
    incidents = found.data or []
    facts = markup.facts(_facts(detail))
    st.html(markup.block(_head(detail), quiet(detail), facts, *_limits(detail)))
    st.html(markup.block(_beside(run, detail)))
    _curves(visit, run, detail, incidents)
    _tables(visit, run, detail, incidents)


def _head(run: RunDetail) -> Html:
    chips = [markup.chip(run["state"])]
    if run["live_attempts"] > 1:
        text = f"{run['live_attempts']} attempts alive: no commands are given"
        chips.append(markup.chip("silent", text))
    if run["open_incident"] is not None:
        address = markup.incident_address(RunId(run["project"], run["name"]), run["open_incident"])
        text = "waiting for a decision" if run["waiting_approval"] else "open"
        word = "waiting" if run["waiting_approval"] else "open"
        chips.append(
            markup.link(markup.chip(word, f"incident {run['open_incident']} {text}"), address)
        )
    return markup.heading(run["id"], *chips)


def quiet(run: RunDetail) -> Html:
    """What to look at where the job may have died, and how old what is shown then is."""
    if run["look_at_job"] is None:
        return markup.EMPTY
    said = [markup.paragraph(run["look_at_job"], "order")]
    if run["state"] == "silent":
        age = duration_phrase(run["age_s"])
        told = f"Nothing came from this run for {age}. What is shown may be out of date."
        said.append(markup.paragraph(told))
    return markup.card("warn", *said)


def _beside(run: RunId, detail: RunDetail) -> Html:
    """Its tags, and the pages that belong to it."""
    name = f"{run.project}/{run.name}"
    return markup.joined(
        *(markup.chip("calm", tag) for tag in detail["tags"]),
        markup.link("Compare with another run", f"./compare?run={name}"),
        gap=DOT,
    )


def _facts(run: RunDetail) -> list[tuple[str, Content]]:
    return [
        ("Step", words.count(run["last_step"])),
        ("Loss, nats per token", words.figure(run["last_loss"])),
        ("Gradient norm, L2", words.figure(run["last_grad_norm"])),
        ("Tokens/s", words.big(run["tokens_per_second"])),
        ("Age of data", duration_phrase(run["age_s"])),
        ("Incidents", words.count(run["incidents"])),
        ("Attempts", words.count(len(run["attempts"]))),
    ]


def _curves(visit: Visit, run: RunId, detail: RunDetail, incidents: Sequence[Incident]) -> None:
    signals, log_norms, window = _controls(detail["last_step"] or 0)
    if not signals:
        st.html(markup.block(markup.paragraph("Choose a signal to see its curve.")))
        return
    first, last = window or (None, None)
    key = f"series {run} {signals} {window}"
    seen = look(key, lambda: visit.client.series(run, *signals, first=first, last=last))
    staleness(seen)
    if seen.data is None:
        return
    marks = [*_returns(detail), *note_marks(detail["notes"])]
    draw_curves(
        {**seen.data, "trend": None},
        kept_stretches(seen.data, detail),
        signals,
        log_norms=log_norms,
        dark=visit.dark,
        window=window,
        markers=marks,
        spans=[_span(incident) for incident in incidents],
    )
    legend(None, marks, dark=visit.dark)


def _controls(last_step: int) -> tuple[list[str], bool, Window | None]:
    """Which signals, on which scale, over which steps."""
    which, when, how = st.columns([5, 5, 2], vertical_alignment="bottom")
    signals = which.multiselect(
        "Signals",
        [*STANDARD_SIGNALS, *OPTIONAL_SIGNALS],
        default=FIRST_CHOICE,
        format_func=words.title,
        accept_new_options=True,
        key="signals",
    )
    choice = when.segmented_control("Steps", list(WINDOWS), default="All", key="window")
    log_norms = how.toggle("Log scale for norms", value=True, key="log")
    return list(signals), log_norms, _window(choice or "All", last_step)


def _window(choice: str, last_step: int) -> Window | None:
    width = WINDOWS[choice]
    if width is None:
        return None
    if width:
        return max(1, last_step - width + 1), max(2, last_step)
    left, right = st.columns(2)
    first = left.number_input("First step", min_value=1, value=1, key="first")
    last = right.number_input("Last step", min_value=2, value=max(2, last_step), key="last")
    return (int(first), int(last)) if first < last else (int(first), int(first) + 1)


def _span(incident: Incident) -> Span:
    return Span(incident["onset_step"], incident["closed_step"], incident["number"])


def _returns(detail: RunDetail) -> list[Marker]:
    """Where the run was taken back to, or started again."""
    return [
        Marker(segment["parent"]["step"], words.plain(segment["reason"]), "command")
        for segment in detail["segments"]
        if segment["parent"] is not None
    ]


def _act(visit: Visit, run: RunId) -> Html:
    """Where people order something of the run, whatever its incident."""
    page = markup.link("Act on this run", f"{visit.settings.public_url}{act_path(run)}")
    said = "roll back to one of its targets, skip batches, lower the learning rate, stop"
    return markup.paragraph(markup.joined(page, markup.soft(said)))


def _tables(visit: Visit, run: RunId, detail: RunDetail, incidents: Sequence[Incident]) -> None:
    if detail["state"] != "ended":
        st.html(markup.block(_act(visit, run)))
    if incidents:
        st.html(markup.block(markup.section("Incidents"), incident_table(incidents, visit)))
    if notes := detail["notes"]:
        st.html(markup.block(markup.section("Changes from outside"), *_notes(notes, visit)))
    if warned := detail["precursors"]:
        st.html(markup.block(markup.section("Warnings"), *_warnings(warned, visit)))
    newest = _newest_attempt(detail)
    if found := findings_from_settings(newest["settings"]) if newest else []:
        with st.expander(f"What the doctor found in this job ({len(found)})"):
            st.html(markup.block(_finding_table(found)))
    with st.expander("Attempts"):
        st.html(markup.block(_attempts(detail, visit)))
    with st.expander("Record of interventions"):
        _record(visit, run)


def _newest_attempt(detail: RunDetail) -> Attempt | None:
    return max(detail["attempts"], key=lambda attempt: attempt["number"], default=None)


def _limits(detail: RunDetail) -> list[Html]:
    """What its owner should do something about, while the job runs."""
    newest = _newest_attempt(detail)
    if newest is None or detail["state"] == "ended":
        return []
    told = [ability for ability in newest["abilities"] if ability["remedy"]]
    rows = [
        markup.paragraph(
            markup.joined(
                markup.chip(ability["answer"], words.ability(ability)),
                words.sentences(ability["reason"], ability["remedy"]),
            )
        )
        for ability in told
    ]
    return [markup.card("warn", *rows)] if rows else []


def _finding_table(found: Sequence[Finding]) -> Html:
    columns = [Column("What"), Column("Level"), Column("Seen"), Column("What follows, what helps")]
    rows: list[Sequence[Content]] = [
        [
            f"{each.rule.title} ({each.name})",
            markup.chip(each.rule.level),
            each.evidence,
            " ".join((each.rule.consequence, each.rule.remedy, f"Source: {each.rule.source}")),
        ]
        for each in found
    ]
    return markup.table(columns, rows, stacked=True)


def _warnings(warned: Sequence[RunWarning], visit: Visit) -> tuple[Html, Html]:
    """What moved while the loss did not."""
    columns = [
        *(Column("When"), Column("Step", numeric=True), Column("Signal")),
        *(Column("Value", numeric=True), Column("Deviations above its baseline", numeric=True)),
    ]
    rows: list[Sequence[Content]] = [
        [
            markup.unbroken(words.clock(warning["at"], visit.zone)),
            words.count(warning["step"]),
            words.title(warning["signal"]),
            words.figure(warning["value"]),
            words.figure(warning["z"], 2) if isfinite(warning["z"]) else "at its limit",
        ]
        for warning in warned
    ]
    told = "These left their baselines and no incident followed: the loss stayed on its trend."
    return markup.paragraph(told), markup.table(columns, rows, stacked=True)


def _notes(notes: Sequence[Note], visit: Visit) -> tuple[Html, Html]:
    """What people told of or an attempt began with, and what became of the loss."""
    columns = [
        *(Column("Note", numeric=True), Column("After step", numeric=True), Column("When")),
        *(Column("Who"), Column("What"), Column("Expectation"), Column("Effect on the loss")),
    ]
    rows: list[Sequence[Content]] = [
        [
            words.count(note["number"]),
            words.count(note["step"]),
            markup.unbroken(words.clock(note["at"], visit.zone)),
            note["author"] if note["began"] is None else f"attempt {note['began']}",
            note["text"] if note["reason"] is None else f"{note['text']} ({note['reason']})",
            words.expected(note["expect"], note["expect_size"]),
            note["outcome"],
        ]
        for note in notes
    ]
    told = "Told with the command spikeguard note, or found where an attempt began with them."
    return markup.paragraph(told), markup.table(columns, rows, stacked=True)


def _attempts(detail: RunDetail, visit: Visit) -> Html:
    columns = [
        *(Column("Attempt"), Column("Started"), Column("Last message", wide=True)),
        *(Column("Ended"), Column("Ranks", numeric=True), Column("Agent", wide=True)),
        Column("Samples dropped", numeric=True, wide=True),
    ]
    rows = [
        [
            f"{attempt['number']} ({attempt['id'][:8]})",
            words.clock(attempt["started_at"], visit.zone),
            words.clock(attempt["last_message_at"], visit.zone),
            attempt["end_reason"] or words.clock(attempt["ended_at"], visit.zone),
            words.count(attempt["world_size"]),
            attempt["agent_version"] or words.NOTHING,
            words.count(attempt["dropped_samples"]),
        ]
        for attempt in detail["attempts"]
    ]
    newest = _newest_attempt(detail)
    links = [markup.link(*one) for one in newest["links"].items()] if newest else []
    said = markup.paragraph(markup.joined(markup.soft("The run in"), *links)) if links else ""
    return markup.joined(said, markup.table(columns, rows), gap="")


def _record(visit: Visit, run: RunId) -> None:
    """Every intervention, with who and why."""
    seen = look(f"audit {run}", lambda: visit.client.newest_audit(run))
    staleness(seen)
    rows = [_entry(entry, visit) for entry in (seen.data or [])]
    st.html(markup.block(markup.table(RECORD_COLUMNS, rows, stacked=True)))


def _entry(entry: AuditEntry, visit: Visit) -> list[Content]:
    before, after = entry["before"], entry["after"]
    states = " → ".join(words.plain(state) for state in (before, after) if state)
    changes = [words.change(change) for change in entry["changes"]]
    return [
        markup.unbroken(words.clock(entry["at"], visit.zone)),
        entry["actor"],
        words.plain(entry["action"]),
        markup.unbroken(entry["subject"]),
        "; ".join(part for part in (states, *changes) if part),
        entry["reason"] or "",
    ]
