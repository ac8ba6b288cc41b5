"""Several runs in one chart: data in, Vega-Lite specification out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import altair as alt

from spikeguard_dashboard import words
from spikeguard_dashboard.alignment import Bin
from spikeguard_dashboard.charts import Row, Spec, dressed
from spikeguard_dashboard.palette import palette

# Okabe and Ito's, in an order in which neighbours are told apart; lighter on dark ground.
LIGHT: Final = ("#0b62a4", "#c44e00", "#00795a", "#a3437c", "#9a6a00", "#4a4f57")
DARK: Final = ("#5cb8f0", "#ff8a4c", "#35c79b", "#e79bc4", "#f0b73c", "#c3ccd8")
STYLES: Final = ("solid", "dashed", "dotted", "solid", "dashed", "dotted")  # as CSS has them
ROW_PX: Final = 11  # of the marks of one run
_DASHES: Final = {"solid": (1, 0), "dashed": (7, 4), "dotted": (2, 3)}  # pixels


@dataclass(frozen=True, slots=True)
class Mark:
    """An incident on the axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """One run."""

    name: str
    bins: Sequence[Bin]
    marks: Sequence[Mark] = ()
    lost: Sequence[float] = ()  # where values are not finite


@dataclass(frozen=True, slots=True)
class Look:
    """How a chart of one signal is drawn."""

    signal: str
    axis: str  # its title
    ends: tuple[float, float]
    log: bool = False
    dark: bool = False
    height: int = 260  # pixels


def colours(*, dark: bool) -> Sequence[str]:
    """Of the runs, in their order."""
    return DARK if dark else LIGHT


def comparison_chart(lines: Sequence[Line], look: Look) -> Spec:
    """Lines with their bands; incidents as marks above, values that are not finite as triangles."""
    rows = [row for line in lines for row in _rows(line, look)]
    datasets: dict[str, list[Row]] = {"rows": rows}
    colour = _colour(lines, look)
    layers = [_band(look, colour), _lines(lines, look, colour)]
    marks = [("diamond", [_mark(line, one) for one in line.marks]) for line in lines]
    lost = ("triangle-up", [_lost(line, at) for line in lines for at in line.lost])
    for row, (shape, found) in enumerate((*marks, lost)):  # one below the other: none hides another
        if found:
            datasets[f"marks {row}"] = found
            layers.append(_points(f"marks {row}", shape, look, colour, 8 + ROW_PX * row))
    return dressed(layers, look.height, palette(dark=look.dark), datasets)


def _rows(line: Line, look: Look) -> list[Row]:
    shown = [one for one in line.bins if one.low > 0 or not look.log]
    return [
        {"run": line.name, "at": one.at, "low": one.low, "value": one.middle, "high": one.high,
         "shown": words.figure(one.middle, 5), "range": _range(one)}
        for one in shown
    ]  # fmt: skip


def _range(one: Bin) -> str:
    if one.low == one.high:
        return words.figure(one.low, 5)
    return f"{words.figure(one.low, 5)} to {words.figure(one.high, 5)}"


def _mark(line: Line, mark: Mark) -> Row:
    return {"run": line.name, "at": mark.at, "shown": mark.label, "range": ""}


def _lost(line: Line, at: float) -> Row:
    return {"run": line.name, "at": at, "shown": "not a finite number", "range": ""}


def _colour(lines: Sequence[Line], look: Look) -> alt.Color:
    names = [line.name for line in lines]
    scale = alt.Scale(domain=names, range=list(colours(dark=look.dark)[: len(names)]))
    return alt.Color("run:N", scale=scale, legend=None)


def _x(look: Look) -> alt.X:
    scale = alt.Scale(domain=list(look.ends), nice=False, zero=False)
    form = ",d" if look.axis == "Step" else ".3~s"
    axis = alt.Axis(title=look.axis, format=form, tickCount=8, labelOverlap=True, grid=False)
    return alt.X("at:Q", scale=scale, axis=axis)


def _y(look: Look, field: str) -> alt.Y:
    scale = alt.Scale(type="log", nice=False) if look.log else alt.Scale(zero=False, nice=True)
    axis = alt.Axis(
        title=words.axis_title(look.signal), tickCount=5, format=".4~g", minExtent=46,
        labelOverlap=True,
    )  # fmt: skip
    return alt.Y(f"{field}:Q", scale=scale, axis=axis)


def _tooltips() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("run:N", title="Run"),
        alt.Tooltip("at:Q", title="At", format=",.0f"),
        alt.Tooltip("shown:N", title="Value"),
        alt.Tooltip("range:N", title="Lowest to highest"),
    ]


def _band(look: Look, colour: alt.Color) -> Any:
    chart = alt.Chart(alt.NamedData("rows")).mark_area(opacity=0.16, clip=True)
    return chart.encode(x=_x(look), y=_y(look, "low"), y2=alt.Y2("high:Q"), color=colour)


def _lines(lines: Sequence[Line], look: Look, colour: alt.Color) -> Any:
    names = [line.name for line in lines]
    dash = alt.Scale(domain=names, range=[list(_DASHES[style]) for style in STYLES[: len(names)]])
    chart = alt.Chart(alt.NamedData("rows")).mark_line(strokeWidth=1.75, clip=True)
    return chart.encode(
        x=_x(look), y=_y(look, "value"), color=colour, tooltip=_tooltips(),
        strokeDash=alt.StrokeDash("run:N", scale=dash, legend=None),
    )  # fmt: skip


def _points(name: str, shape: str, look: Look, colour: alt.Color, y_px: int) -> Any:
    chart = alt.Chart(alt.NamedData(name)).mark_point(
        shape=shape, size=80, filled=True, opacity=1.0, clip=True
    )
    top = alt.YValue(y_px)  # type: ignore[no-untyped-call]
    return chart.encode(x=_x(look), y=top, color=colour, tooltip=_tooltips())
