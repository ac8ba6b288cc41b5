"""Curves as Vega-Lite charts, made with Altair: data in, specification out.

Knows neither Streamlit nor the server. Every measured value is visible: one that is not finite
becomes a triangle at the edge it left through. A stretch that a rollback undid stays, dimmed and
dashed. Colours come from `palette`, and every one of them is said by a word or a shape as well.
Rows reach the specification without passing through Altair, which would copy and check each of them
(0.5 s of a core for a curve of 1,400 points; 0.2 s so).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import altair as alt
from altair.utils.schemapi import debug_mode

from spikeguard_client.shapes import SegmentSeries, Series, Trend
from spikeguard_dashboard import words
from spikeguard_dashboard.history import Kept
from spikeguard_dashboard.palette import Palette, palette

MAX_BAND_POINTS = 200
BAND_STARTS_BEFORE = 60  # steps; further back the extrapolation says nothing
FEW_POINTS = 120
FEW_DECADES = 200.0
FEW_TICKS = 3
DASHES = {"onset": [1, 0], "detected": [5, 3], "peak": [2, 2], "command": [8, 3], "note": [1, 3]}
STYLES = {"onset": "solid", "detected": "dashed", "peak": "dotted", "command": "dashed",
          "note": "dotted"}  # of the same lines, as CSS has them  # fmt: skip
Window = tuple[int, int]  # first and last step shown
Row = dict[str, Any]
Spec = dict[str, Any]  # of Vega-Lite
STANDS, UNDONE = "stands", "undone by a rollback"


@dataclass(frozen=True, slots=True)
class Marker:
    """A moment on the step axis, drawn as a line; the legend says what it is."""

    step: int
    label: str
    role: str  # a colour of the palette: onset, detected, peak, command or note


@dataclass(frozen=True, slots=True)
class Span:
    """Steps [first, last] of an incident, shaded, with its number above."""

    first: int
    last: int | None  # None while it is open
    number: int


@dataclass(frozen=True, slots=True)
class Panel:
    """How one signal is drawn."""

    signal: str
    log: bool = False
    height: int = 220  # pixels
    dark: bool = False
    steps: Window | None = None  # the window; None = all there is
    last: bool = True  # the step axis is named below the last one


def curve_points(series: Series, signal: str, kept: Kept) -> list[Row]:
    """One row a measured value: step, value, line, fate, batch, shown, segment.

    A line is drawn per `line`. A segment that was rolled back in the middle gives two of them that
    meet at the step of the rollback.
    """
    return [row for stretch in series["segments"] for row in _rows(stretch, signal, kept)]


def _rows(stretch: SegmentSeries, signal: str, kept: Kept) -> Iterator[Row]:
    limit = kept.get((stretch["attempt"], stretch["number"]), -math.inf)
    name = f"{stretch['attempt'][:4]}.{stretch['number']}"
    values = stretch["values"].get(signal, ())
    for step, value, batch in zip(stretch["steps"], values, stretch["batches"], strict=False):
        if value is None:
            continue
        row = {"step": step, "value": value, "segment": name}
        row |= {"batch": words.batches(batch), "shown": words.figure(value, 5)}
        if step <= limit:
            yield {**row, "line": f"{name} a", "fate": STANDS}
        if step >= limit:
            yield {**row, "line": f"{name} b", "fate": UNDONE}


@debug_mode(False)  # to check every part of every chart takes longer than to make it
def signal_chart(
    series: Series,
    panel: Panel,
    kept: Kept,
    *,
    markers: Sequence[Marker] = (),
    spans: Sequence[Span] = (),
    trend: Trend | None = None,
) -> Spec:
    """One signal over steps, with what happened to the run marked on it."""
    points = curve_points(series, panel.signal, kept)
    ticks = log_ticks(row["value"] for row in points) if panel.log else ()
    frame = _Frame(panel, panel.steps or _range(points), palette(dark=panel.dark), ticks, {})
    return dressed(
        [
            *_span_layers(spans, frame),
            *_band_layers(trend, frame),
            *_marker_layers(markers, frame),
            *_curve_layers(points, frame),
            *_edge_layers(points, frame),
            _hover_layer(frame),
        ],
        panel.height,
        frame.colours,
        frame.datasets,
    )


def _range(points: Sequence[Row]) -> Window:
    steps = [row["step"] for row in points]
    return (min(steps), max(max(steps), min(steps) + 1)) if steps else (0, 1)


def _at(y_px: int) -> alt.YValue:
    """A height in pixels below the plot's upper edge."""
    return alt.YValue(y_px)  # type: ignore[no-untyped-call]


def log_ticks(values: Iterable[float]) -> list[float]:
    """Powers of ten within `values`, with their double and fivefold where those are few, and more
    of their multiples where those are few still."""
    there = [value for value in values if math.isfinite(value) and value > 0]
    if not there:
        return []
    low, high = min(there), max(there)
    if high / low >= FEW_DECADES:
        return _ticks(low, high, (1,))
    ticks = _ticks(low, high, (1, 2, 5))
    return ticks if len(ticks) >= FEW_TICKS else _ticks(low, high, (1, 1.5, 2, 3, 4, 5, 6, 8))


def _ticks(low: float, high: float, factors: Sequence[float]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


@dataclass(frozen=True, slots=True)
class _Frame:
    """What all layers of one chart share: they must agree on both axes."""

    panel: Panel
    window: Window
    colours: Palette
    ticks: Sequence[float]  # of the value axis; Vega chooses where there are none
    datasets: dict[str, list[Row]]  # what the layers draw; filled by `chart`

    def chart(self, name: str, rows: list[Row]) -> alt.Chart:
        """A layer to be, over rows of its own."""
        self.datasets[name] = rows
        return alt.Chart(alt.NamedData(name))

    def x(self) -> alt.X:
        scale = alt.Scale(domain=list(self.window), nice=False, zero=False)
        title = "Step" if self.panel.last else None
        axis = alt.Axis(
            title=title, format=",d", tickMinStep=1, tickCount=10, labelOverlap=True, grid=False
        )
        return alt.X("step:Q", scale=scale, axis=axis)

    def y(self, field: str = "value") -> alt.Y:
        log = self.panel.log
        scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False, nice=True)
        title = words.axis_title(self.panel.signal)
        axis = alt.Axis(title=title, tickCount=4, format=".4~g", minExtent=46, labelOverlap=True)
        if self.ticks:
            axis.values = list(self.ticks)
        return alt.Y(f"{field}:Q", scale=scale, axis=axis)

    def shown(self, step: int) -> bool:
        return self.window[0] <= step <= self.window[1]


def _drawable(value: float, frame: _Frame) -> bool:
    """Whether a value has a place on the axis: finite, and above zero on a log scale."""
    return math.isfinite(value) and (value > 0 or not frame.panel.log)


def _curve_layers(points: list[Row], frame: _Frame) -> list[alt.Chart]:
    """Lines, broken where a value has no place; dots as well where there are few of them."""
    broken = [
        {**row, "value": row["value"] if _drawable(row["value"], frame) else None} for row in points
    ]
    colours, fates = frame.colours, [STANDS, UNDONE]
    fate_colours = alt.Scale(domain=fates, range=[colours.curve, colours.abandoned])
    fate_dashes = alt.Scale(domain=fates, range=[[1, 0], [4, 2]])
    fate_opacities = alt.Scale(domain=fates, range=[1.0, 0.9])
    base = frame.chart("points", broken).encode(
        x=frame.x(),
        y=frame.y(),
        detail=alt.Detail("line:N"),
        color=alt.Color("fate:N", scale=fate_colours, legend=None),
        opacity=alt.Opacity("fate:N", scale=fate_opacities, legend=None),
    )
    dashes = alt.StrokeDash("fate:N", scale=fate_dashes, legend=None)
    line = base.mark_line(strokeWidth=1.5, clip=True).encode(strokeDash=dashes)
    if len(points) > FEW_POINTS:
        return [line]
    return [line, base.mark_point(size=14, filled=True, clip=True)]


def _edge_layers(points: list[Row], frame: _Frame) -> list[alt.Chart]:
    """A triangle for every value without a place, at the edge it left through."""
    lost = [row for row in points if not _drawable(row["value"], frame)]
    below = [row for row in lost if row["value"] <= 0]
    above = [row for row in lost if not row["value"] <= 0]
    return [
        *_triangles(above, frame, "triangle-up", 7),
        *_triangles(below, frame, "triangle-down", frame.panel.height - 7),
    ]


def _triangles(rows: list[Row], frame: _Frame, shape: str, y_px: int) -> list[alt.Chart]:
    if not rows:
        return []
    placeless = [{**row, "value": None} for row in rows]
    chart = frame.chart(shape, placeless).mark_point(
        shape=shape, size=70, filled=True, color=frame.colours.onset, opacity=1.0, clip=True
    )
    tooltips = _tooltips(words.title(frame.panel.signal))
    return [chart.encode(x=frame.x(), y=_at(y_px), tooltip=tooltips)]


def _tooltips(name: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("step:Q", title="Step", format=",d"),
        alt.Tooltip("shown:N", title=name),
        alt.Tooltip("batch:N", title="Data"),
        alt.Tooltip("fate:N", title="Stretch"),
        alt.Tooltip("segment:N", title="Segment"),
    ]


def _hover_layer(frame: _Frame) -> alt.Chart:
    """A line under the pointer, at the nearest step, with the values of that step."""
    near = alt.selection_point(nearest=True, on="pointerover", encodings=["x"], empty=False)
    chart = alt.Chart(alt.NamedData("points")).mark_rule(strokeWidth=1, color="#808a99")
    shown = chart.encode(
        x=frame.x(),
        opacity=alt.condition(near, alt.value(0.9), alt.value(0.0)),
        tooltip=_tooltips(words.title(frame.panel.signal)),
    )
    return cast(alt.Chart, shown.add_params(near))


def _band_layers(trend: Trend | None, frame: _Frame) -> list[alt.Chart]:
    """The baseline: the extrapolated trend, and its band as wide as the policy says."""
    rows = _band_rows(trend, frame) if trend else []
    if not rows:
        return []
    colour = frame.colours.band
    chart = frame.chart("band", rows).encode(x=frame.x())
    area = chart.mark_area(color=colour, opacity=0.18, clip=True)
    line = chart.mark_line(color=colour, strokeWidth=1.5, strokeDash=[6, 3], clip=True)
    return [area.encode(y=frame.y("low"), y2=alt.Y2("high:Q")), line.encode(y=frame.y("level"))]


def _band_rows(trend: Trend, frame: _Frame) -> list[Row]:
    """The band at evenly spread steps; on a log scale only where it is above zero."""
    low, high = max(frame.window[0], trend["step"] - BAND_STARTS_BEFORE), frame.window[1]
    half = trend["band"] * trend["scale"]
    stride = max(1, (high - low) // MAX_BAND_POINTS)
    levels = [(step, level_at(trend, step)) for step in [*range(low, high, stride), high]]
    return [
        {"step": step, "level": level, "low": level - half, "high": level + half}
        for step, level in levels
        if not frame.panel.log or level > half
    ]


def level_at(trend: Trend, step: int) -> float:
    """Where the loss was heading at `step`: straight in the logarithm of the step."""
    start = max(trend["step"], 0) + 1
    return trend["level"] + trend["slope"] * start * math.log((max(step, 0) + 1) / start)


def _marker_layers(markers: Sequence[Marker], frame: _Frame) -> list[alt.Chart]:
    """A line for each moment."""
    layers = []
    for role, dash in DASHES.items():
        rows: list[Row] = [
            {"step": one.step} for one in markers if one.role == role and frame.shown(one.step)
        ]
        if rows:
            rule = frame.chart(role, rows).mark_rule(
                color=getattr(frame.colours, role), strokeWidth=1.25, strokeDash=dash
            )
            layers.append(rule.encode(x=frame.x()))
    return layers


def _span_layers(spans: Sequence[Span], frame: _Frame) -> list[alt.Chart]:
    """A shaded stretch for each incident."""
    low, high = frame.window
    rows: list[Row] = [
        {"step": max(low, span.first), "end": min(high, _end(span, high)), "number": span.number}
        for span in spans
        if span.first <= high and _end(span, high) >= low
    ]
    if not rows:
        return []
    colour = frame.colours.onset
    chart = frame.chart("spans", rows).encode(x=frame.x())
    shade = chart.mark_rect(color=colour, opacity=0.13, clip=True).encode(x2=alt.X2("end:Q"))
    edge = chart.mark_rule(color=colour, opacity=0.8, clip=True)
    name = chart.mark_text(color=colour, baseline="bottom", fontSize=11)
    return [shade, edge, name.encode(y=_at(-2), text=alt.Text("number:Q"))]


def _end(span: Span, high: int) -> int:
    return high if span.last is None else max(span.last, span.first)


def dressed(
    layers: list[Any], height: int, colours: Palette, datasets: dict[str, list[Row]]
) -> Spec:
    """The layers in the quiet look that all charts share; `height` is the plot's own, in pixels."""
    axis = alt.AxisConfig(
        gridColor=colours.grid,
        domainColor=colours.grid,
        tickColor=colours.grid,
        labelColor=colours.text,
        titleColor=colours.text,
        titleFontSize=11,
        labelFontSize=11,
        titleFontWeight="normal",
    )
    chart = alt.LayerChart(  # each method of altair's that adds to it copies all its layers
        layer=layers,
        height=height,
        width="container",
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        config=alt.Config(view=alt.ViewConfig(strokeWidth=0), axis=axis),
    )
    return {**chart.to_dict(validate=False), "datasets": datasets}
