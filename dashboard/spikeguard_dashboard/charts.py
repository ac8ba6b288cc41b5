"""Curves as Altair charts: data in, chart out.

Law: pure; knows neither Streamlit nor the server. Every measured value is visible: one that is not
finite becomes a triangle at the edge it left through. A stretch that a rollback undid stays, dimmed
and dashed. Colours come from `palette`, and every one of them is said by a word or a shape as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import altair as alt
import pandas as pd

from spikeguard_dashboard import words
from spikeguard_dashboard.history import Kept
from spikeguard_dashboard.palette import Palette, palette
from spikeguard_dashboard.shapes import Series, Stretch, Trend

BAND_SCALES = 3.0  # robust standard deviations on each side of the trend
MAX_BAND_POINTS = 200
LABEL_ROW_PX = 13
Window = tuple[int, int]  # first and last step shown
STANDS, UNDONE = "stands", "undone by a rollback"


@dataclass(frozen=True, slots=True)
class Marker:
    """A moment on the step axis, drawn as a labelled line."""

    step: int
    label: str
    role: str  # a colour of the palette: onset, detected, peak or command


@dataclass(frozen=True, slots=True)
class Span:
    """Steps [first, last] of an incident, shaded and named."""

    first: int
    last: int | None  # None while it is open
    label: str


@dataclass(frozen=True, slots=True)
class Panel:
    """How one signal is drawn."""

    signal: str
    log: bool = False
    height: int = 220  # pixels
    dark: bool = False
    steps: Window | None = None  # the window; None = all there is


def curve_points(series: Series, signal: str, kept: Kept) -> pd.DataFrame:
    """One row a measured value: step, value, line, fate, batch, shown, segment.

    A line is drawn per `line`. A segment that was rolled back in the middle gives two of them that
    meet at the step of the rollback.
    """
    rows = [row for stretch in series.segments for row in _rows(stretch, signal, kept)]
    columns = ["step", "value", "line", "fate", "batch", "shown", "segment"]
    return pd.DataFrame(rows, columns=columns)


def _rows(stretch: Stretch, signal: str, kept: Kept) -> Iterator[tuple[object, ...]]:
    limit = kept.get((stretch.attempt, stretch.number), -math.inf)
    name = f"{stretch.attempt[:4]}.{stretch.number}"
    values = stretch.values.get(signal, ())
    for step, value, batch in zip(stretch.steps, values, stretch.batches, strict=False):
        if value is None:
            continue
        rest = (words.batches(batch), words.figure(value, 5), name)
        if step <= limit:
            yield step, value, f"{name} a", STANDS, *rest
        if step >= limit:
            yield step, value, f"{name} b", UNDONE, *rest


def signal_chart(
    series: Series,
    panel: Panel,
    kept: Kept,
    *,
    markers: Sequence[Marker] = (),
    spans: Sequence[Span] = (),
    trend: Trend | None = None,
) -> alt.LayerChart:
    """One signal over steps, with what happened to the run marked on it."""
    points = curve_points(series, panel.signal, kept)
    seen = points[points["value"].map(math.isfinite)]
    if panel.log:
        seen = seen[seen["value"] > 0]
    colours = palette(dark=panel.dark)
    window = panel.steps or _range(points)
    layers = [
        *_span_layers(spans, window, colours),
        *_band_layers(trend, window, panel, colours),
        *_marker_layers(markers, window, colours),
        *_curve_layers(points, seen, window, panel, colours),
        *_edge_layers(points, window, panel, colours),
        _hover_layer(points, window, panel),
    ]
    return _dressed(alt.LayerChart(layer=layers), panel, colours)


def _step_axis(window: Window) -> alt.X:
    scale = alt.Scale(domain=list(window), nice=False, zero=False)
    axis = alt.Axis(title="Step", format=",d", tickMinStep=1, labelOverlap=True, grid=False)
    return alt.X("step:Q", scale=scale, axis=axis)


def _range(points: pd.DataFrame) -> Window:
    if points.empty:
        return 0, 1
    return int(points["step"].min()), max(int(points["step"].max()), int(points["step"].min()) + 1)


def _value_scale(panel: Panel, field: str = "value") -> alt.Y:
    scale = alt.Scale(type="log", nice=False) if panel.log else alt.Scale(zero=False, nice=True)
    axis = alt.Axis(title=words.axis_title(panel.signal), tickCount=5, format="~g", minExtent=44)
    return alt.Y(f"{field}:Q", scale=scale, axis=axis)


def _curve_layers(
    points: pd.DataFrame, seen: pd.DataFrame, window: Window, panel: Panel, colours: Palette
) -> list[alt.Chart]:
    """Lines, broken where a value was not finite; dots where there are few of them."""
    broken = points.copy()
    broken["value"] = broken["value"].where(broken.index.isin(seen.index))
    base = alt.Chart(broken).encode(
        x=_step_axis(window),
        y=_value_scale(panel),
        detail="line:N",
        color=alt.Color(
            "fate:N",
            scale=alt.Scale(domain=[STANDS, UNDONE], range=[colours.curve, colours.abandoned]),
            legend=None,
        ),
        opacity=alt.condition(alt.datum.fate == UNDONE, alt.value(0.7), alt.value(1.0)),
        strokeDash=alt.StrokeDash(
            "fate:N", scale=alt.Scale(domain=[STANDS, UNDONE], range=[[1, 0], [3, 3]]), legend=None
        ),
    )
    line = base.mark_line(strokeWidth=1.5, clip=True, interpolate="linear")
    if len(points) > 120:
        return [line]
    dots = base.mark_point(size=14, filled=True, clip=True).encode(strokeDash=alt.Undefined)
    return [line, dots]


def _edge_layers(
    points: pd.DataFrame, window: Window, panel: Panel, colours: Palette
) -> list[alt.Chart]:
    """A triangle for every value that is not finite: up at the top, down for minus infinity."""
    lost = points[~points["value"].map(math.isfinite)]
    below = lost["value"] == -math.inf
    return [
        *_triangles(lost[~below], window, "triangle-up", 7, colours),
        *_triangles(lost[below], window, "triangle-down", panel.height - 7, colours),
    ]


def _triangles(
    rows: pd.DataFrame, window: Window, shape: str, y_px: int, colours: Palette
) -> list[alt.Chart]:
    if rows.empty:
        return []
    chart = alt.Chart(rows.drop(columns="value")).mark_point(
        shape=shape, size=70, filled=True, color=colours.onset, opacity=1.0, clip=True
    )
    return [chart.encode(x=_step_axis(window), y=alt.value(y_px), tooltip=_tooltips("Not finite"))]


def _tooltips(name: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("step:Q", title="Step", format=",d"),
        alt.Tooltip("shown:N", title=name),
        alt.Tooltip("batch:N", title="Data"),
        alt.Tooltip("fate:N", title="Stretch"),
        alt.Tooltip("segment:N", title="Segment"),
    ]


def _hover_layer(points: pd.DataFrame, window: Window, panel: Panel) -> alt.Chart:
    """A line under the pointer, at the nearest step, with the values of that step."""
    near = alt.selection_point(nearest=True, on="pointerover", encodings=["x"], empty=False)
    chart = alt.Chart(points.drop(columns="value")).mark_rule(strokeWidth=1, color="#808a99")
    shown = chart.encode(
        x=_step_axis(window),
        opacity=alt.condition(near, alt.value(0.9), alt.value(0.0)),
        tooltip=_tooltips(words.title(panel.signal)),
    )
    return cast(alt.Chart, shown.add_params(near))


def _band_layers(
    trend: Trend | None, window: Window, panel: Panel, colours: Palette
) -> list[alt.Chart]:
    """The baseline: the extrapolated trend and three robust standard deviations around it."""
    if trend is None:
        return []
    rows = pd.DataFrame(_band_rows(trend, *window, log=panel.log))
    chart = alt.Chart(rows).encode(x=_step_axis(window))
    area = chart.mark_area(color=colours.band, opacity=0.18, clip=True)
    line = chart.mark_line(color=colours.band, strokeWidth=1.5, strokeDash=[6, 3], clip=True)
    return [
        area.encode(y=_value_scale(panel, "low"), y2="high:Q"),
        line.encode(y=_value_scale(panel, "level")),
    ]


def _band_rows(trend: Trend, low: int, high: int, *, log: bool) -> list[dict[str, float]]:
    """The band at evenly spread steps; on a log scale only where it is above zero."""
    stride = max(1, (high - low) // MAX_BAND_POINTS)
    half = BAND_SCALES * trend.scale
    levels = [(step, trend.at(step)) for step in [*range(low, high, stride), high]]
    return [
        {"step": step, "level": level, "low": level - half, "high": level + half}
        for step, level in levels
        if not log or level > half
    ]


def _marker_layers(markers: Sequence[Marker], window: Window, colours: Palette) -> list[alt.Chart]:
    """A line and a name above the plot for each moment, a row each, so that near ones are read."""
    low, high = window
    inside = [marker for marker in markers if low <= marker.step <= high]
    return [
        layer
        for row, marker in enumerate(sorted(inside, key=lambda marker: -marker.step))
        for layer in _marker(marker, row, window, colours)
    ]


def _marker(marker: Marker, row: int, window: Window, colours: Palette) -> list[alt.Chart]:
    low, high = window
    late = marker.step > low + 0.7 * (high - low)
    data = pd.DataFrame([{"step": marker.step, "label": f"{marker.label} {marker.step:,}"}])
    colour = getattr(colours, marker.role)
    dash = {"onset": [1, 0], "detected": [5, 3], "peak": [2, 2], "command": [8, 3]}[marker.role]
    chart = alt.Chart(data).encode(x=_step_axis(window))
    top = -LABEL_ROW_PX * row - 8
    line = chart.mark_rule(color=colour, strokeWidth=1.25, strokeDash=dash).encode(y=alt.value(top))
    name = chart.mark_text(
        color=colour, align="right" if late else "left", dx=-4 if late else 4, fontSize=11
    )
    return [line.encode(y2=alt.value("height")), name.encode(y=alt.value(top), text="label:N")]


def _span_layers(spans: Sequence[Span], window: Window, colours: Palette) -> list[alt.Chart]:
    """A shaded stretch for each incident, named at its foot."""
    low, high = window
    rows = [
        {"step": max(low, span.first), "end": min(high, _end(span, high)), "label": span.label}
        for span in spans
        if span.first <= high and _end(span, high) >= low
    ]
    if not rows:
        return []
    chart = alt.Chart(pd.DataFrame(rows)).encode(x=_step_axis(window))
    shade = chart.mark_rect(color=colours.onset, opacity=0.13, clip=True).encode(x2="end:Q")
    edge = chart.mark_rule(color=colours.onset, opacity=0.8, clip=True)
    name = chart.mark_text(color=colours.onset, align="left", baseline="bottom", dx=3, fontSize=11)
    return [shade, edge, name.encode(y=alt.value(-2), text="label:N")]


def _end(span: Span, high: int) -> int:
    return high if span.last is None else max(span.last, span.first)


def _dressed(chart: alt.LayerChart, panel: Panel, colours: Palette) -> alt.LayerChart:
    """The quiet look that all charts share."""
    dressed = (
        chart.properties(height=panel.height, width="container")
        .configure_view(strokeWidth=0)
        .configure_axis(
            gridColor=colours.grid,
            domainColor=colours.grid,
            tickColor=colours.grid,
            labelColor=colours.text,
            titleColor=colours.text,
            titleFontSize=11,
            labelFontSize=11,
            titleFontWeight="normal",
        )
    )
    return cast(alt.LayerChart, dressed)
