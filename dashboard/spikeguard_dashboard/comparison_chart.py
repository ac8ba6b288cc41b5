"""Several runs in one chart: data in, Vega-Lite specification out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spikeguard_dashboard import words
from spikeguard_dashboard.alignment import Bin
from spikeguard_dashboard.charts import (
    Row,
    Spec,
    axis,
    by_name,
    chart,
    layer,
    quantity,
    tooltips,
    value_axis,
)
from spikeguard_dashboard.palette import palette

# Okabe and Ito's, in an order in which neighbours are told apart; lighter on dark ground.
LIGHT: Final = ("#0b62a4", "#c44e00", "#00795a", "#a3437c", "#9a6a00", "#4a4f57")
DARK: Final = ("#5cb8f0", "#ff8a4c", "#35c79b", "#e79bc4", "#f0b73c", "#c3ccd8")
STYLES: Final = ("solid", "dashed", "dotted", "solid", "dashed", "dotted")  # as CSS has them
ROW_PX: Final = 11  # of the marks of one run
HEIGHT_PX: Final = 260
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


def colours(*, dark: bool) -> Sequence[str]:
    """Of the runs, in their order."""
    return DARK if dark else LIGHT


def comparison_chart(lines: Sequence[Line], look: Look) -> Spec:
    """Lines with their bands; incidents as marks above, values that are not finite as triangles."""
    rows = [row for line in lines for row in _rows(line, look)]
    names = [line.name for line in lines]
    shown = tooltips(
        {"run": "Run", "at": "At", "shown": "Value", "range": "Lowest to highest"}, "at", ",.0f"
    )
    dashes = by_name("run", names, [_DASHES[style] for style in STYLES[: len(names)]])
    band = {"y": quantity("low"), "y2": {"field": "high"}}
    layers = [
        layer(rows, "area", band, opacity=0.16, clip=True),
        layer(rows, "line", {"tooltip": shown, "strokeDash": dashes}, strokeWidth=1.75, clip=True),
    ]
    marks = [("diamond", [_mark(line, one) for one in line.marks]) for line in lines]
    lost = ("triangle-up", [_lost(line, at) for line in lines for at in line.lost])
    for row, (shape, found) in enumerate((*marks, lost)):  # one below the other: none hides another
        if found:
            at = {"y": {"value": 8 + ROW_PX * row}, "tooltip": shown}
            mark = {"shape": shape, "size": 80, "filled": True, "opacity": 1.0, "clip": True}
            layers.append(layer(found, "point", at, **mark))
    form = ",d" if look.axis == "Step" else ".3~s"
    encoding = {
        "x": axis("at", look.ends, look.axis, form, 8),
        "y": value_axis("value", look.signal, log=look.log, count=5),
        "color": by_name("run", names, colours(dark=look.dark)[: len(names)]),
    }
    return chart(layers, encoding, HEIGHT_PX, palette(dark=look.dark))


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
