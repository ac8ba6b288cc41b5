"""Curves as Vega-Lite charts: data in, specification out.

Knows neither Streamlit nor the server. Every measured value is visible: one that is not finite
becomes a triangle at the edge it left through. A stretch that a rollback undid stays, dimmed and
dashed. Colours come from `palette`, and every one of them is said by a word or a shape as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
Spec = dict[str, Any]  # of Vega-Lite, or a part of one
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
    points, colours = curve_points(series, panel.signal, kept), palette(dark=panel.dark)
    window = panel.steps or _range(points)
    ticks = log_ticks(row["value"] for row in points) if panel.log else ()
    return chart(
        [
            *_span_layers(spans, window, colours),
            *_band_layers(trend, window, panel, colours),
            *_marker_layers(markers, window, colours),
            *_curve_layers(points, panel, colours),
        ],
        {
            "x": axis("step", window, "Step" if panel.last else None, ",d", 10),
            "y": value_axis("value", panel.signal, log=panel.log, count=4, ticks=ticks),
        },
        panel.height,
        colours,
    )


def _range(points: Sequence[Row]) -> Window:
    steps = [row["step"] for row in points]
    return (min(steps), max(max(steps), min(steps) + 1)) if steps else (0, 1)


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


# --- parts that all charts share ---


def axis(field: str, ends: tuple[float, float], title: str | None, form: str, count: int) -> Spec:
    """The axis on which `field` lies between `ends`."""
    scale = {"domain": list(ends), "nice": False, "zero": False}
    shown = {"title": title, "format": form, "tickCount": count, "labelOverlap": True}
    return quantity(field, scale=scale, axis={**shown, "tickMinStep": 1, "grid": False})


def value_axis(
    field: str, signal: str, *, log: bool, count: int, ticks: Sequence[float] = ()
) -> Spec:
    """The axis of a signal's values; Vega chooses the ticks where none are given."""
    scale = {"type": "log", "nice": False} if log else {"zero": False, "nice": True}
    shown: Spec = {"title": words.axis_title(signal), "tickCount": count, "format": ".4~g"}
    shown |= {"minExtent": 46, "labelOverlap": True}
    return quantity(field, scale=scale, axis={**shown, "values": list(ticks)} if ticks else shown)


def quantity(field: str, **more: Any) -> Spec:
    """What is read from a field of numbers."""
    return {"field": field, "type": "quantitative", **more}


def by_name(field: str, names: Sequence[str], values: Sequence[Any]) -> Spec:
    """A colour, a dash or an opacity for each name in `field`."""
    scale = {"domain": list(names), "range": list(values)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}


def tooltips(titles: dict[str, str], number: str, form: str) -> list[Spec]:
    """What is shown of a point under the pointer: titles by field, of which `number` is one."""
    return [
        {"field": field, "title": title}
        | ({"type": "quantitative", "format": form} if field == number else {"type": "nominal"})
        for field, title in titles.items()
    ]


def layer(rows: list[Row], mark: str, encoding: Spec, **look: Any) -> Spec:
    """A mark for each of `rows`; what `encoding` has as None is left out of it."""
    return {"data": rows, "mark": {"type": mark, **look}, "encoding": encoding}


def chart(layers: Sequence[Spec], encoding: Spec, height: int, colours: Palette) -> Spec:
    """The layers in the quiet look that all charts share; `encoding`: that of those layers which
    have no other; `height` is the plot's own, in pixels."""
    axes = {
        "gridColor": colours.grid,
        "domainColor": colours.grid,
        "tickColor": colours.grid,
        "labelColor": colours.text,
        "titleColor": colours.text,
        "titleFontSize": 11,
        "labelFontSize": 11,
        "titleFontWeight": "normal",
    }
    datasets: dict[str, list[Row]] = {}
    drawn = []
    for one in layers:
        shared = [name for name, rows in datasets.items() if rows is one["data"]]
        name = shared[0] if shared else f"rows {len(datasets)}"
        datasets[name] = one["data"]
        known = {**encoding, **one["encoding"]}
        used = {channel: how for channel, how in known.items() if how is not None}
        drawn.append({**one, "data": {"name": name}, "encoding": used})
    return {
        "layer": drawn,
        "height": height,
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": {"view": {"strokeWidth": 0}, "axis": axes},
        "datasets": datasets,
    }


# --- what is drawn ---


def _curve_layers(points: list[Row], panel: Panel, colours: Palette) -> Iterator[Spec]:
    """Lines, broken where a value has no place; dots as well where there are few of them; and a
    triangle for every value without a place, at the edge it left through."""
    placed = [math.isfinite(row["value"]) and (row["value"] > 0 or not panel.log) for row in points]
    broken = [
        {**row, "value": row["value"] if there else None}
        for row, there in zip(points, placed, strict=True)
    ]
    fates = [STANDS, UNDONE]
    look = {
        "detail": {"field": "line", "type": "nominal"},
        "color": by_name("fate", fates, [colours.curve, colours.abandoned]),
        "opacity": by_name("fate", fates, [1.0, 0.9]),
    }
    dashes = by_name("fate", fates, [[1, 0], [4, 2]])
    yield layer(broken, "line", {**look, "strokeDash": dashes}, strokeWidth=1.5, clip=True)
    if len(points) <= FEW_POINTS:
        yield layer(broken, "point", look, size=14, filled=True, clip=True)
    yield _hover_layer(broken, panel)
    lost = [row for row, there in zip(points, placed, strict=True) if not there]
    below = [{**row, "value": None} for row in lost if row["value"] <= 0]
    above = [{**row, "value": None} for row in lost if not row["value"] <= 0]
    for rows, shape, y_px in (
        (above, "triangle-up", 7), (below, "triangle-down", panel.height - 7)
    ):  # fmt: skip
        if rows:
            at = {"y": {"value": y_px}, "tooltip": _tooltips(panel)}
            mark = {"shape": shape, "size": 70, "filled": True, "color": colours.onset}
            yield layer(rows, "point", at, **mark, opacity=1.0, clip=True)


def _tooltips(panel: Panel) -> list[Spec]:
    titles = {"step": "Step", "shown": words.title(panel.signal), "batch": "Data"}
    return tooltips({**titles, "fate": "Stretch", "segment": "Segment"}, "step", ",d")


def _hover_layer(points: list[Row], panel: Panel) -> Spec:
    """A line under the pointer, at the nearest step, with the values of that step."""
    near = {"type": "point", "nearest": True, "on": "pointerover", "encodings": ["x"]}
    shown = {"condition": {"param": "near", "value": 0.9, "empty": False}, "value": 0.0}
    look = {"y": None, "opacity": shown, "tooltip": _tooltips(panel)}
    drawn = layer(points, "rule", look, strokeWidth=1, color="#808a99")
    return {**drawn, "params": [{"name": "near", "select": near}]}


def _band_layers(
    trend: Trend | None, window: Window, panel: Panel, colours: Palette
) -> Iterator[Spec]:
    """The baseline: the extrapolated trend, and its band as wide as the policy says."""
    rows = _band_rows(trend, window, log=panel.log) if trend else []
    if rows:
        area = {"y": quantity("low"), "y2": {"field": "high"}}
        yield layer(rows, "area", area, color=colours.band, opacity=0.18, clip=True)
        dashed = {"strokeWidth": 1.5, "strokeDash": [6, 3], "clip": True}
        yield layer(rows, "line", {"y": quantity("level")}, color=colours.band, **dashed)


def _band_rows(trend: Trend, window: Window, *, log: bool) -> list[Row]:
    """The band at evenly spread steps; on a log scale only where it is above zero."""
    low, high = max(window[0], trend["step"] - BAND_STARTS_BEFORE), window[1]
    half = trend["band"] * trend["scale"]
    stride = max(1, (high - low) // MAX_BAND_POINTS)
    levels = [(step, level_at(trend, step)) for step in [*range(low, high, stride), high]]
    return [
        {"step": step, "level": level, "low": level - half, "high": level + half}
        for step, level in levels
        if not log or level > half
    ]


def level_at(trend: Trend, step: int) -> float:
    """Where the loss was heading at `step`: straight in the logarithm of the step."""
    start = max(trend["step"], 0) + 1
    return trend["level"] + trend["slope"] * start * math.log((max(step, 0) + 1) / start)


def _marker_layers(markers: Sequence[Marker], window: Window, colours: Palette) -> Iterator[Spec]:
    """A line for each moment."""
    for role, dash in DASHES.items():
        rows: list[Row] = [
            {"step": one.step}
            for one in markers
            if one.role == role and window[0] <= one.step <= window[1]
        ]
        if rows:
            look = {"strokeWidth": 1.25, "strokeDash": dash}
            yield layer(rows, "rule", {"y": None}, color=getattr(colours, role), **look)


def _span_layers(spans: Sequence[Span], window: Window, colours: Palette) -> Iterator[Spec]:
    """A shaded stretch for each incident."""
    low, high = window
    rows: list[Row] = [
        {"step": max(low, span.first), "end": min(high, _end(span, high)), "number": span.number}
        for span in spans
        if span.first <= high and _end(span, high) >= low
    ]
    if rows:
        whole = {"y": None, "x2": {"field": "end"}}
        yield layer(rows, "rect", whole, color=colours.onset, opacity=0.13, clip=True)
        yield layer(rows, "rule", {"y": None}, color=colours.onset, opacity=0.8, clip=True)
        above = {"y": {"value": -2}, "text": quantity("number")}
        yield layer(rows, "text", above, color=colours.onset, baseline="bottom", fontSize=11)


def _end(span: Span, high: int) -> int:
    return high if span.last is None else max(span.last, span.first)
