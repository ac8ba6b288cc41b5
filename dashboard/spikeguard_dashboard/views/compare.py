"""Two to six runs beside one another, by step or by tokens; the address says which and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import streamlit as st

from spikeguard_client.shapes import Incident, RunDetail, Series
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.alignment import Axis, binned, by_step, by_tokens, not_finite, standing
from spikeguard_dashboard.charts import Spec
from spikeguard_dashboard.comparison_chart import (
    STYLES,
    Line,
    Look,
    Mark,
    colours,
    comparison_chart,
)
from spikeguard_dashboard.history import Kept
from spikeguard_dashboard.markup import Content, Html
from spikeguard_dashboard.views.curves import is_norm, kept_stretches
from spikeguard_dashboard.views.frame import framed, refreshed, staleness
from spikeguard_dashboard.views.run_filters import ADDRESS
from spikeguard_dashboard.views.run_table import MOST_COMPARED
from spikeguard_dashboard.visit import Look as Seen, Visit, look
from spikeguard_protocol import OPTIONAL_SIGNALS, STANDARD_SIGNALS, ProtocolError, RunId

STEP, TOKENS = "Step", "Tokens"
FIRST: Final = ("loss", "grad_norm")
MOST_SIGNALS: Final = 4
INCIDENTS: Final = 100  # of a run, that are marked


@dataclass(frozen=True, slots=True)
class _Choice:
    """What is compared."""

    runs: Sequence[RunId]
    signals: Sequence[str]
    axis: str
    log: bool


@dataclass(frozen=True, slots=True)
class _Compared:
    """One run with what is drawn of it."""

    detail: RunDetail
    series: Series
    incidents: Sequence[Incident]
    kept: Kept
    axis: Axis


def compare_page() -> None:
    """`/compare?run=A&run=B&by=Tokens&signal=loss`."""
    framed(_page, ["Compare"])


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    st.html(markup.block(markup.heading("Compare runs")))
    choice = _choose()
    if len(choice.runs) < 2 or not choice.signals:
        said = markup.paragraph("Name two to six runs and a signal.", "order")
        how = markup.paragraph(
            markup.joined(markup.link("Tick runs in the table", "./"), "or name them above.")
        )
        st.html(markup.block(markup.card("calm", said, how)))
        return
    refreshed(visit, lambda: _draw(visit, choice))


def _choose() -> _Choice:
    with st.container(horizontal=True, vertical_alignment="bottom", key="compare-choice"):
        runs = st.multiselect(
            "Runs, NAME or PROJECT/NAME", [], key="run", bind=ADDRESS, accept_new_options=True,
            max_selections=MOST_COMPARED, width=420,
        )  # fmt: skip
        signals = st.multiselect(
            "Signals", [*STANDARD_SIGNALS, *OPTIONAL_SIGNALS], default=FIRST, key="signal",
            bind=ADDRESS, format_func=words.title, accept_new_options=True,
            max_selections=MOST_SIGNALS, width=320,
        )  # fmt: skip
        axis = st.segmented_control(
            "Aligned by", [STEP, TOKENS], default=STEP, key="by", bind=ADDRESS
        )
        log = st.toggle("Log scale for norms", value=True, key="log", bind=ADDRESS)
    return _Choice(_runs(runs), signals, axis or STEP, log)


def _runs(names: Sequence[str]) -> list[RunId]:
    """The runs that are named; what can be no name is said."""
    found: list[RunId] = []
    for name in names:
        try:
            found.append(RunId.parse(name.strip()))
        except ProtocolError as error:
            st.html(markup.block(markup.card("bad", markup.paragraph(f"{name}: {error}"))))
    return list(dict.fromkeys(found))


def _draw(visit: Visit, choice: _Choice) -> None:
    compared = [found for run in choice.runs if (found := _load(visit, run, choice)) is not None]
    if not compared:
        return
    st.html(markup.block(_legend(compared, visit), _said(choice)))
    unknown = [one.detail["id"] for one in compared if not one.axis.starts]
    if unknown:
        names = ", ".join(unknown)
        text = f"Not shown by tokens, since the job did not tell tokens_per_step: {names}."
        st.html(markup.block(markup.paragraph(markup.soft(text))))
    for signal in choice.signals:
        _chart(compared, choice, signal, dark=visit.dark)


def _load(visit: Visit, run: RunId, choice: _Choice) -> _Compared | None:
    client = visit.client
    detail: Seen[RunDetail] = look(f"run {run}", lambda: client.run(run))
    names = list(choice.signals)
    series: Seen[Series] = look(f"compared {run} {names}", lambda: client.series(run, *names))
    found: Seen[list[Incident]] = look(
        f"incidents {run} {INCIDENTS}", lambda: client.newest_incidents(run, limit=INCIDENTS)
    )
    staleness(detail, series, found)
    if detail.data is None or series.data is None:
        return None
    axis = by_tokens(detail.data) if choice.axis == TOKENS else by_step(detail.data)
    incidents = found.data or []
    kept = kept_stretches(series.data, detail.data)
    return _Compared(detail.data, series.data, incidents, kept, axis)


def _chart(compared: Sequence[_Compared], choice: _Choice, signal: str, *, dark: bool) -> None:
    spec = _spec(compared, choice, signal, dark=dark)
    if spec is None:
        text = f"{words.title(signal)} was not measured in these runs."
        st.html(markup.block(markup.paragraph(markup.soft(text))))
        return
    st.vega_lite_chart(spec, width="stretch", key=f"compare-{signal}")


def _spec(
    compared: Sequence[_Compared], choice: _Choice, signal: str, *, dark: bool
) -> Spec | None:
    points = [standing(one.series, signal, one.kept, one.axis) for one in compared]
    places = [at for run in points for at, _ in run]
    if not places:
        return None
    ends = (min(places), max(*places, min(places) + 1))
    lines = [
        Line(one.detail["id"], binned(run, ends), _marks(one), not_finite(run))
        for one, run in zip(compared, points, strict=True)
    ]
    log = choice.log and is_norm(signal)
    return comparison_chart(lines, Look(signal, choice.axis, ends, log=log, dark=dark))


def _marks(one: _Compared) -> list[Mark]:
    """Where incidents began, of those whose place on the axis is known."""
    found = []
    for incident in one.incidents:
        step = incident["onset_step"]
        places = [
            one.axis.place((part["attempt"], part["number"]), step)
            for part in one.series["segments"]
        ]
        place = next((at for at in places if at is not None), None)
        if place is not None:
            kind = words.plain(incident["kind"])
            found.append(Mark(place, f"incident {incident['number']}, {kind}, step {step:,}"))
    return found


def _legend(compared: Sequence[_Compared], visit: Visit) -> Html:
    """What is what: a line as it is drawn, the run with a link, where it stands."""
    rows = [
        markup.legend_line(
            colours(dark=visit.dark)[at], STYLES[at], _named(one.detail), _stands(one)
        )
        for at, one in enumerate(compared)
    ]
    lines = "".join(f"<li>{row.text}</li>" for row in rows)
    return Html(f'<div class="sg-needs"><ul>{lines}</ul></div>')


def _named(run: RunDetail) -> Html:
    found = RunId(run["project"], run["name"])
    return markup.link(str(found), markup.run_address(found))


def _stands(one: _Compared) -> str:
    run, count = one.detail, one.detail["incidents"]
    said = [
        words.plain(run["state"]), f"step {words.count(run['last_step'])}",
        f"loss {words.figure(run['last_loss'])}", f"{count} incident{'s' * (count != 1)}",
    ]  # fmt: skip
    return ", ".join(said + run["tags"])


def _said(choice: _Choice) -> Html:
    axis = "tokens trained" if choice.axis == TOKENS else "step"
    meanings = (
        f"by {axis}",
        "line: the middle of what lies there, or a spike's height",
        "band: from the lowest to the highest value",
        "diamond: an incident began",
        "triangle: not a finite number",
        "what a rollback undid is left out",
    )
    spans = markup.joined(*(markup.soft(text) for text in meanings))
    return Html(f'<div class="sg-legend">{spans.text}</div>')
