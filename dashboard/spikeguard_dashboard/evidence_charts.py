"""Norms by layer as a heat map and a batch's tokens as bars: data in, Vega-Lite specification out.

Law: pure; knows neither Streamlit nor the server. What is not finite has a mark of its own, and the
step of the onset a line; colours come from `palette`.
"""

from __future__ import annotations

import math
from typing import Any

from spikeguard_client import Layers, TokenHistogram
from spikeguard_dashboard.palette import palette
from spikeguard_protocol.phrases import token_rank_phrase

ROW_PX, BARS_PX = 17, 170
MOST_DOUBLINGS = 5.0  # of a norm, at which the colour is deepest
Spec = dict[str, Any]  # of Vega-Lite


def heat_map(found: Layers, *, dark: bool) -> Spec:
    """A row a layer or some, a column a step; how far each is above its usual norm."""
    shown = found["map"]
    assert shown is not None
    colours = palette(dark=dark)
    cells = [
        {"row": name, "step": step, **_ratio(ratio)}
        for name, ratios in zip(shown["rows"], shown["ratios"], strict=True)
        for step, ratio in zip(found["steps"], ratios, strict=True)
        if ratio is not None
    ]
    first = shown["first_row"]
    onset = next((step for step in found["steps"] if step >= found["onset_step"]), None)
    bold = "" if first is None else shown["rows"][first]
    across = {"field": "step", "type": "ordinal", "axis": _steps(found["steps"], colours.text)}
    down: Spec = {"field": "row", "type": "nominal", "sort": shown["rows"], "title": None}
    down["axis"] = {
        "labelLimit": 260, "labelFontSize": 10, "labelOverlap": False,
        "ticks": False, "domain": False, "labelColor": colours.text,
        "labelFontWeight": {"condition": {"test": f"datum.value === {_js(bold)}", "value": "bold"},
                            "value": "normal"},
    }  # fmt: skip
    tip = [
        {"field": "row", "title": "layer"},
        {"field": "step"},
        {"field": "shown", "title": "times its usual norm"},
    ]
    return _framed(
        [
            {
                "mark": {"type": "rect"},
                "encoding": {
                    "x": across, "y": down, "tooltip": tip,
                    "color": {
                        "field": "doublings", "type": "quantitative", "title": "times usual",
                        "legend": {"labelExpr": "format(pow(2, datum.value), 'd')"},
                        "scale": {"domain": [0, MOST_DOUBLINGS], "clamp": True,
                                  "range": [colours.grid, colours.onset],
                                  "interpolate": "rgb"},
                    },
                },
            },
            {
                "transform": [{"filter": "!datum.finite"}],
                "mark": {"type": "text", "text": "x", "fontSize": 13, "color": colours.text},
                "encoding": {"x": across, "y": down, "tooltip": tip},
            },
            {
                "data": {"values": [] if onset is None else [{"step": onset}]},
                "mark": {"type": "rule", "strokeDash": [3, 2], "color": colours.text},
                "encoding": {"x": {**across, "bandPosition": 0}},
            },
        ],
        cells,
        ROW_PX * len(shown["rows"]),
        colours.text,
    )  # fmt: skip


def histogram(found: TokenHistogram, *, dark: bool) -> Spec:
    """Shares of the batch's tokens by how common they were before, beside those before."""
    colours = palette(dark=dark)
    last = max((n for n in range(len(found["bins"])) if _any(found, n)), default=0)
    names = [token_rank_phrase(number) for number in range(last + 1)]
    bars = [
        {"bin": name, "of": of, "share": shares[number]}
        for of, shares in (("this batch", found["bins"]), ("before", found["bins_before"]))
        for number, name in enumerate(names)
    ]
    axis = {"labelColor": colours.text, "titleColor": colours.text, "gridColor": colours.grid}
    layer = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": {
                "field": "bin", "type": "nominal", "sort": names, 
                "axis": {**axis, "labelAngle": -35, "labelOverlap": False},
                "title": "how common the token was before (rank)",
            },
            "xOffset": {"field": "of", "sort": ["this batch", "before"]},
            "y": {"field": "share", "type": "quantitative", "title": "share of tokens",
                  "axis": {**axis, "format": "%"}},
            "color": {"field": "of", "title": None, "scale": {
                "domain": ["this batch", "before"], "range": [colours.onset, colours.abandoned]}},
            "tooltip": [{"field": "bin"}, {"field": "of"}, {"field": "share", "format": ".2%"}],
        },
    }  # fmt: skip
    return _framed([layer], bars, BARS_PX, colours.text)


def _ratio(ratio: float) -> Spec:
    finite = math.isfinite(ratio)
    doublings = math.log2(ratio) if finite and ratio > 0 else MOST_DOUBLINGS * (not finite)
    said = f"{ratio:.3g} times" if finite else "not finite"
    return {"doublings": max(0.0, doublings), "finite": finite, "shown": said}


def _any(found: TokenHistogram, number: int) -> bool:
    return any(shares[number] > 0.0 for shares in (found["bins"], found["bins_before"]))


def _steps(steps: list[int], colour: str) -> Spec:
    every = max(1, len(steps) // 8)
    return {"values": steps[::every], "labelAngle": 0, "labelColor": colour, "titleColor": colour,
            "ticks": False, "domain": False}  # fmt: skip


def _js(text: str) -> str:
    """As a string of Vega's expressions, in which nothing of it acts."""
    return "'" + "".join(f"\\u{ord(c):04x}" for c in text if ord(c) < 0x10000) + "'"


def _framed(layers: list[Spec], values: list[Spec], height: int, text: str) -> Spec:
    return {
        "data": {"values": values},
        "layer": layers,
        "height": height,
        "background": "transparent",
        "config": {
            "view": {"stroke": None},
            "legend": {"labelColor": text, "titleColor": text},
        },
    }
