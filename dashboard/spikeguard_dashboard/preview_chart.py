"""The loss with two strips below it: incidents by the policy in force, and by the changed one.

Law: pure. A bar is an incident from onset to close; a tick on it is a command that would have been
proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from spikeguard_dashboard import words
from spikeguard_dashboard.charts import Row, Spec, Window, curve_points
from spikeguard_dashboard.history import Kept
from spikeguard_dashboard.palette import palette
from spikeguard_dashboard.series import Series

LOSS_PX, STRIP_PX = 180, 56


@dataclass(frozen=True, slots=True)
class Event:
    """One incident of one of the two."""

    whose: str
    first: int
    last: int
    label: str
    proposed: tuple[int, ...] = ()  # steps


def loss_chart(loss: Series, kept: Kept, ends: Window, *, dark: bool) -> Spec:
    """The curve; its left edge is that of the strips."""
    points: list[Row] = curve_points(loss, "loss", kept)
    chart = _curve(ends, palette(dark=dark).curve)
    return _dressed(chart, LOSS_PX, {"points": points}, dark=dark)


def event_chart(events: Sequence[Event], ends: Window, *, dark: bool) -> Spec:
    """A strip for each of the two policies."""
    ground = palette(dark=dark)
    bars = [
        {"whose": one.whose, "step": one.first, "end": max(one.last, one.first + 1),
         "label": one.label}
        for one in events
    ]  # fmt: skip
    ticks = [
        {"whose": one.whose, "step": step, "label": f"proposed at {step:,}"}
        for one in events
        for step in one.proposed
    ]
    chart = alt.layer(_bars(ends, ground.onset), _ticks(ends, ground.command))
    return _dressed(chart, STRIP_PX, {"bars": bars, "ticks": ticks}, dark=dark)


def _dressed(chart: Any, height: int, datasets: dict[str, list[Row]], *, dark: bool) -> Spec:
    ground = palette(dark=dark)
    sized = chart.properties(
        height=height, width="container",
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )  # fmt: skip
    quiet = sized.configure_view(strokeWidth=0).configure_axis(
        gridColor=ground.grid, domainColor=ground.grid, tickColor=ground.grid,
        labelColor=ground.text, titleColor=ground.text, titleFontSize=11, labelFontSize=11,
        titleFontWeight="normal",
    )  # fmt: skip
    return {**quiet.to_dict(validate=False), "datasets": datasets}


def _x(ends: Window, *, titled: bool) -> alt.X:
    scale = alt.Scale(domain=list(ends), nice=False, zero=False)
    axis = alt.Axis(title="Step" if titled else None, format=",d", tickCount=8, grid=False,
                    labels=titled)  # fmt: skip
    return alt.X("step:Q", scale=scale, axis=axis)


def _curve(ends: Window, colour: str) -> Any:
    scale = alt.Scale(zero=False, nice=True)
    y = alt.Y("value:Q", scale=scale, axis=alt.Axis(title=words.axis_title("loss"), minExtent=60))
    chart = alt.Chart(alt.NamedData("points")).mark_line(strokeWidth=1.4, color=colour, clip=True)
    return chart.encode(
        x=_x(ends, titled=False), y=y, detail="line:N",
        strokeDash=alt.StrokeDash(
            "fate:N", legend=None,
            scale=alt.Scale(domain=["stands", "undone by a rollback"], range=[[1, 0], [4, 2]]),
        ),
    )  # fmt: skip


def _whose() -> alt.Y:
    axis = alt.Axis(title=None, minExtent=60, grid=False, domain=False, ticks=False)
    return alt.Y("whose:N", scale=alt.Scale(domain=["in force", "changed"]), axis=axis)


def _bars(ends: Window, colour: str) -> Any:
    chart = alt.Chart(alt.NamedData("bars")).mark_bar(
        color=colour, opacity=0.75, height=12, clip=True, minBandSize=3
    )
    return chart.encode(
        x=_x(ends, titled=True), x2=alt.X2("end:Q"), y=_whose(),
        tooltip=[alt.Tooltip("label:N", title="Incident"), alt.Tooltip("whose:N", title="By")],
    )  # fmt: skip


def _ticks(ends: Window, colour: str) -> Any:
    chart = alt.Chart(alt.NamedData("ticks")).mark_tick(
        color=colour, thickness=3, size=22, opacity=1.0, clip=True
    )
    return chart.encode(
        x=_x(ends, titled=True), y=_whose(), tooltip=[alt.Tooltip("label:N", title="Command")]
    )
