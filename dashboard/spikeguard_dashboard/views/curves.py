"""Draws signals one below the other; shared by the pages of runs and incidents."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from spikeguard_client import Intervention, RunDetail
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.chart_cache import CHARTS
from spikeguard_dashboard.charts import Marker, Panel, Span, Spec, Window, signal_chart
from spikeguard_dashboard.history import Kept, kept_of, kept_steps
from spikeguard_dashboard.series import Series
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import RunId

TALL_PX, LOW_PX = 220, 130
MARKS, MARK = 6, 28  # interventions on the curve, and characters of each
DONE = frozenset({"applied", "judged", None})  # None: a note


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
            first=place == 0,
            last=place == len(there) - 1,
        )
        chart = _drawn(series, panel, kept, tuple(markers), tuple(spans))
        st.vega_lite_chart(chart, width="stretch", key=f"curve-{signal}")
    if missing:
        names = ", ".join(words.title(signal).lower() for signal in missing)
        st.html(markup.block(markup.paragraph(markup.soft(f"Not measured here: {names}."))))


def intervention_marks(visit: Visit, run: RunId, *, but: str) -> list[Marker]:
    """The newest commands that were carried out and changes from outside, named as in their
    tables; without those whose id or order begins with `but`."""
    found = look(f"interventions {run}", lambda: visit.client.interventions(visit.token, run)).data
    shown = [
        one
        for one in ([] if found is None else found.items)
        if one["step"] is not None and one["state"] in DONE
        if not one["id"].startswith(but) and not one["what"].startswith(but)
    ]
    return [_mark(one, one["step"] or 0) for one in shown[:MARKS]]


def _mark(one: Intervention, step: int) -> Marker:
    if one["state"] is not None:
        return Marker(step, words.shortened(one["what"], MARK), "command")
    number = one["id"].rpartition("-")[2]
    return Marker(step, words.shortened(f"note {number}: {one['what']}", MARK), "note")


def all_steps(series: Series) -> Window | None:
    """First and last step of any segment, so that all panels have the same axis."""
    steps = [step for stretch in series.segments for step in stretch.steps]
    return (min(steps), max(max(steps), min(steps) + 1)) if steps else None


def _drawn(
    series: Series, panel: Panel, kept: Kept, markers: tuple[Marker, ...], spans: tuple[Span, ...]
) -> Spec:
    """The chart, made anew only if something on it has changed since somebody looked last."""
    trend = series.trend if panel.signal == "loss" else None

    def make() -> Spec:
        return signal_chart(series, panel, kept, markers=markers, spans=spans, trend=trend)

    if not series.fingerprint:
        return make()
    key = (series.fingerprint, trend, panel, tuple(kept.items()), markers, spans)
    return CHARTS.get(key, make) or {}


def is_norm(signal: str) -> bool:
    """Whether a signal spans so many magnitudes that a log scale serves it."""
    return "norm" in signal


def measured(series: Series, signal: str) -> bool:
    """Whether there is any value of a signal."""
    return any(
        value is not None for stretch in series.segments for value in stretch.values.get(signal, ())
    )


def kept_stretches(series: Series, run: RunDetail | None) -> Kept:
    """Which stretches still stand, by the run's tree where it is at hand."""
    return kept_steps(run["segments"]) if run and run["segments"] else kept_of(series.segments)


def legend(band: float | None) -> None:
    """What dashes, triangles and shades mean; `band`: half its width, where one is drawn."""
    meanings = ["dashed grey: undone by a rollback", "triangle at the edge: not a finite number"]
    if band is not None:
        heading = f"band: where the loss was heading, ± {band:g} robust standard deviations"
        meanings.insert(0, heading)
    spans = markup.joined(*(markup.soft(text) for text in meanings))
    st.html(markup.block(markup.Html(f'<div class="sg-legend">{spans.text}</div>')))
