"""Draws signals one below the other; shared by the pages of runs and incidents."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from spikeguard_client.shapes import Note, RunDetail, Series
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.charts import STYLES, Marker, Panel, Span, Window, signal_chart
from spikeguard_dashboard.history import Kept, kept_of, kept_steps
from spikeguard_dashboard.palette import palette

TALL_PX, LOW_PX = 220, 130
MARKS, MARK = 6, 28  # notes on the curve, and characters of each


def draw_curves(
    series: Series,
    kept: Kept,
    signals: Sequence[str],
    *,
    log_norms: bool,
    dark: bool,
    window: Window | None = None,
    markers: Sequence[Marker] = (),
    spans: Sequence[Span] = (),
) -> None:
    """The first signal tall, the others lower; one that was not measured is said in words."""
    missing = [signal for signal in signals if not measured(series, signal)]
    there = [signal for signal in signals if signal not in missing]
    for place, signal in enumerate(there):
        panel = Panel(
            signal,
            log=log_norms and is_norm(signal),
            height=LOW_PX if place else TALL_PX,
            dark=dark,
            steps=window or all_steps(series),
            last=place == len(there) - 1,
        )
        trend = series["trend"] if signal == "loss" else None
        chart = signal_chart(series, panel, kept, markers=markers, spans=spans, trend=trend)
        st.vega_lite_chart(chart, width="stretch", key=f"curve-{signal}")
    if missing:
        names = ", ".join(words.title(signal).lower() for signal in missing)
        st.html(markup.block(markup.paragraph(markup.soft(f"Not measured here: {names}."))))


def note_marks(notes: Sequence[Note]) -> list[Marker]:
    """The newest changes from outside."""
    newest = sorted(notes, key=lambda note: -note["number"])[:MARKS]
    return [
        Marker(
            note["step"], words.shortened(f"note {note['number']}: {note['text']}", MARK), "note"
        )
        for note in newest
    ]


def all_steps(series: Series) -> Window | None:
    """First and last step of any segment, so that all panels have the same axis."""
    steps = [step for stretch in series["segments"] for step in stretch["steps"]]
    return (min(steps), max(max(steps), min(steps) + 1)) if steps else None


def is_norm(signal: str) -> bool:
    """Whether a signal spans so many magnitudes that a log scale serves it."""
    return "norm" in signal


def measured(series: Series, signal: str) -> bool:
    """Whether there is any value of a signal."""
    return any(
        value is not None
        for stretch in series["segments"]
        for value in stretch["values"].get(signal, ())
    )


def kept_stretches(series: Series, run: RunDetail | None) -> Kept:
    """Which stretches still stand, by the run's tree where it is at hand."""
    return kept_steps(run["segments"]) if run and run["segments"] else kept_of(series["segments"])


def legend(band: float | None, markers: Sequence[Marker], *, dark: bool) -> None:
    """What lines, dashes, triangles and shades mean; `band`: half its width, where one is drawn."""
    colours = palette(dark=dark)
    lines = [
        markup.legend_line(getattr(colours, m.role), STYLES[m.role], m.label, f"{m.step:,}")
        for m in sorted(markers, key=lambda marker: marker.step)
    ]
    meanings = ["dashed grey: undone by a rollback", "triangle at the edge: not a finite number"]
    if band is not None:
        heading = f"band: where the loss was heading, ± {band:g} robust standard deviations"
        meanings.insert(0, heading)
    named = [markup.Html(f"<span>{line.text}</span>") for line in lines]
    spans = markup.joined(*named, *(markup.soft(text) for text in meanings))
    st.html(markup.block(markup.Html(f'<div class="sg-legend">{spans.text}</div>')))
