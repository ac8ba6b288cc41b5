"""Curves of runs: on one axis, with what was undone apart, and what is not finite marked."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import altair as alt
import pytest
from msgspec import convert

from spikeguard_client.shapes import RunDetail, Segment, SegmentSeries, Series
from spikeguard_dashboard.alignment import BINS, FEW, binned, by_tokens, not_finite, standing
from spikeguard_dashboard.charts import (
    Marker,
    Panel,
    Span,
    Spec,
    curve_points,
    level_at,
    signal_chart,
)
from spikeguard_dashboard.history import Kept, kept_steps
from spikeguard_dashboard.palette import DARK, LIGHT, Palette

ATTEMPT, ONSET = "9f2c51d07ab34e86", 1246
MAIN = (ATTEMPT, 0)
ALL: Kept = {MAIN: math.inf}


def series(losses: list[Any], first: int = 1, **columns: list[Any]) -> Series:
    segment = {
        "attempt": ATTEMPT,
        "number": 0,
        "current": True,
        "steps": list(range(first, first + len(losses))),
        "values": {"loss": losses, **columns},
        "batches": [[n, n + 1] for n in range(len(losses))],
    }
    trend = {"step": ONSET - 1, "level": 3.8, "slope": -0.0002, "scale": 0.035, "band": 3.0}
    answer = {"signals": ["loss"], "segments": [segment], "truncated": False, "trend": trend}
    return convert(answer, Series, strict=False)


def layers(spec: Spec, mark: str) -> list[dict[str, Any]]:
    found = [layer for layer in spec["layer"] if layer["mark"]["type"] == mark]
    sets = spec["datasets"]
    return [{**layer, "rows": sets[layer["data"]["name"]]} for layer in found]


def test_a_value_that_is_not_finite_is_a_triangle_at_its_edge() -> None:
    chart = signal_chart(series([2.0, "nan", "inf", "-inf", 2.1]), Panel("loss"), ALL)
    shapes = {
        layer["mark"]["shape"]: layer
        for layer in layers(chart, "point")
        if "shape" in layer["mark"]
    }
    up, down = shapes["triangle-up"], shapes["triangle-down"]
    assert [(row["step"], row["shown"]) for row in up["rows"]] == [(2, "NaN"), (3, "∞")]
    assert [(row["step"], row["shown"]) for row in down["rows"]] == [(4, "-∞")]
    assert up["encoding"]["y"]["value"] < 20 < down["encoding"]["y"]["value"]


def test_the_line_is_broken_where_a_value_is_not_finite() -> None:
    chart = signal_chart(series([2.0, "nan", 2.1]), Panel("loss"), ALL)
    (line,) = layers(chart, "line")[-1:]
    assert [row["value"] for row in line["rows"]] == [2.0, None, 2.1]


def test_a_zero_is_marked_on_a_log_scale_rather_than_dropped() -> None:
    found = series([1.0, 1.0], grad_norm=[0.0, 3.0])
    chart = signal_chart(found, Panel("grad_norm", log=True), ALL)
    down = [x for x in layers(chart, "point") if x["mark"].get("shape") == "triangle-down"]
    assert [row["step"] for row in down[0]["rows"]] == [1]


def test_a_stretch_that_was_undone_is_a_line_of_its_own_and_dimmed() -> None:
    points = curve_points(series([2.0, 2.1, 9.0, 9.5]), "loss", {MAIN: 2})
    fates = [(row["step"], row["fate"]) for row in points]
    assert fates == [
        (1, "stands"),
        (2, "stands"),
        (2, "undone by a rollback"),
        (3, "undone by a rollback"),
        (4, "undone by a rollback"),
    ]
    assert len({row["line"] for row in points}) == 2


def test_the_band_follows_the_trend_beyond_the_onset() -> None:
    found = series([3.8] * 300, first=ONSET - 150)
    trend = found["trend"]
    assert trend is not None
    (area,) = layers(signal_chart(found, Panel("loss"), ALL, trend=trend), "area")
    last = area["rows"][-1]
    assert last["step"] == ONSET + 149
    assert last["level"] == pytest.approx(level_at(trend, last["step"]))
    assert last["high"] - last["low"] == pytest.approx(6 * trend["scale"])


def test_each_incident_is_shaded_with_its_number_and_each_moment_a_line() -> None:
    chart = signal_chart(
        series([2.0] * 100),
        Panel("loss"),
        ALL,
        markers=[Marker(30, "onset", "onset"), Marker(300, "out of the window", "note")],
        spans=[Span(20, 22, 1), Span(90, None, 2)],
    )
    (numbers,) = layers(chart, "text")
    assert [row["number"] for row in numbers["rows"]] == [1, 2]
    (shade,) = layers(chart, "rect")
    assert [(row["step"], row["end"]) for row in shade["rows"]] == [(20, 22), (90, 100)]
    steps = [row["step"] for rule in layers(chart, "rule") for row in rule["rows"]]
    assert 30 in steps
    assert 300 not in steps


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("colours", "ground"), [(LIGHT, "#ffffff"), (DARK, "#11161c")])
def test_every_colour_that_writes_text_can_be_read_on_its_ground(
    colours: Palette, ground: str
) -> None:
    """4.5 is the contrast that WCAG 2 AA asks of text."""
    for colour in (colours.onset, colours.detected, colours.peak, colours.command, colours.text):
        light, dark = sorted((_luminance(colour), _luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, colour


@pytest.mark.parametrize("log", [False, True])
def test_the_specification_is_what_vega_lite_and_json_allow(log: bool) -> None:
    """Nothing checks it on the hot path, so it is checked here."""
    chart = signal_chart(
        series([2.0, "nan", "-inf", *[2.1] * 200]),
        Panel("loss", log=log, last=not log),
        ALL,
        markers=[Marker(10, "onset", "onset"), Marker(190, "peak", "peak")],
        spans=[Span(10, 20, 1), Span(150, None, 2)],
        trend=series([])["trend"],
    )
    alt.LayerChart.from_dict(chart)
    json.dumps(chart, allow_nan=False)


A, B = "a" * 16, "b" * 16


def segment(attempt: str, number: int, parent: tuple[str, int, int] | None) -> dict[str, Any]:
    place = (
        None if parent is None else dict(zip(("attempt", "segment", "step"), parent, strict=True))
    )
    return {"attempt": attempt, "number": number, "parent": place, "current": True}


def detail(*segments: dict[str, Any], **tokens: int | None) -> RunDetail:
    sizes = {A: tokens["a"], B: tokens.get("b")}
    attempts = [{"id": name, "tokens_per_step": size} for name, size in sizes.items()]
    return cast(RunDetail, {"attempts": attempts, "segments": list(segments)})


def test_tokens_are_counted_along_the_line_of_history_through_rollbacks_and_other_batch_sizes() -> (
    None
):
    run = detail(
        segment(A, 0, None), segment(A, 1, (A, 0, 100)), segment(B, 0, (A, 1, 150)), a=10, b=20
    )
    axis = by_tokens(run)
    assert axis.place((A, 0), 120) == 1200
    assert axis.place((A, 1), 120) == 1200  # trained again: counted once
    assert axis.place((B, 0), 160) == 1500 + 10 * 20
    assert by_tokens(detail(segment(A, 0, None), a=None)).place((A, 0), 1) is None


def part(number: int, steps: range, losses: list[float | None]) -> SegmentSeries:
    return {
        "attempt": A, "number": number, "current": True, "steps": list(steps),
        "values": {"loss": losses}, "batches": [None] * len(steps),
    }  # fmt: skip


def test_what_was_undone_is_left_out_and_no_extreme_is_lost_in_a_bin() -> None:
    run = detail(segment(A, 0, None), segment(A, 1, (A, 0, 5000)), a=1)
    first: list[float | None] = [2.0] * 6000
    first[1233], first[2000], first[5500] = 9.0, math.inf, 99.0  # the last one was undone
    parts = [part(0, range(1, 6001), first), part(1, range(5001, 8001), [1.0] * 3000)]
    series: Series = {"signals": ["loss"], "segments": parts, "truncated": False, "trend": None}
    points = standing(series, "loss", kept_steps(run["segments"]), by_tokens(run))
    assert len(points) == 8000 > FEW
    bins = binned(points, (1, 8000))
    assert len(bins) == BINS
    assert max(one.high for one in bins) == 9.0
    assert [one.middle for one in bins if one.high == 9.0] == [9.0]  # the line shows a spike
    assert {one.middle for one in bins if one.high != 9.0} == {2.0, 1.0}
    assert not_finite(points) == [2001]


def branch(number: int, *, current: bool, parent: tuple[int, int] | None = None) -> Segment:
    point = None
    if parent is not None:
        point = {"attempt": ATTEMPT, "segment": parent[0], "step": parent[1]}
    found = {"attempt": ATTEMPT, "number": number, "current": current, "parent": point}
    return cast(Segment, found)


def key(number: int) -> tuple[str, int]:
    return ATTEMPT, number


def test_a_segment_stands_up_to_where_it_was_taken_back() -> None:
    kept = kept_steps([branch(0, current=True), branch(1, current=True, parent=(0, 40))])
    assert kept == {key(0): 40, key(1): math.inf}


def test_a_segment_rolled_back_across_is_undone_whole() -> None:
    tree = [
        branch(0, current=True),
        branch(1, current=False, parent=(0, 60)),
        branch(2, current=True, parent=(0, 40)),
    ]
    assert kept_steps(tree) == {key(0): 40, key(2): math.inf}
