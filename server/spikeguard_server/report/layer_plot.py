"""Two smaller pictures: norms by layer over steps as a heat map, and tokens as bars.

Law: a layer is shown against its own norm before the onset. However many layers there are, the map
has at most `MOST_ROWS` rows: neighbours share one, which shows the one that moved most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from spikeguard_protocol import TokenHistogram
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.phrases import token_rank_phrase
from spikeguard_server.domain.diagnosis.cause.layers import FirstLayer, LayerRow
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.style import COLOURS
from spikeguard_server.report.wording import word

MOST_ROWS: Final = 48
REACH: Final = 6.0  # doublings of a norm at which the colour is deepest
LONGEST_NAME: Final = 30
_LIGHT = {name: pair[0] for name, pair in COLOURS.items()}
_WIDTH: Final = 9.2  # inches, as the picture of the curves


def heat_map_of(facts: PostMortem) -> Figure:
    """Layers by steps; red where a norm is above its usual size, blue where below."""
    names, steps, doublings = _grid(facts.layers, facts.incident.onset_step)
    first = facts.incident.first_layer
    rows = _grouped(names, doublings, first)
    shown = [name for name, _ in rows]
    figure = Figure(figsize=(_WIDTH, 1.1 + 0.11 * max(6, len(rows))))
    figure.subplots_adjust(left=0.24, right=0.93, top=0.97, bottom=0.5 / figure.get_figheight())
    axes = figure.subplots()
    image = axes.imshow(
        np.array([values for _, values in rows]), aspect="auto", interpolation="nearest",
        cmap=_colours(), vmin=-REACH, vmax=REACH,
        extent=(-0.5, len(steps) - 0.5, len(rows) - 0.5, -0.5),
    )  # fmt: skip
    _name_rows(axes, shown, first)
    _name_steps(axes, steps, facts.incident.onset_step)
    bar = figure.colorbar(image, ax=axes, pad=0.015, fraction=0.03)
    bar.set_label("doublings")
    bar.outline.set_visible(False)
    return figure


def histogram_of(found: TokenHistogram) -> Figure:
    """Shares of the batch's tokens by how common they were before, beside those before."""
    pairs = list(zip(found.bins, found.bins_before, strict=True))
    shown = max((n for n, pair in enumerate(pairs, 1) if any(pair)), default=1)
    figure = Figure(figsize=(_WIDTH, 2.2))
    figure.subplots_adjust(left=0.075, right=0.975, top=0.95, bottom=0.27)
    axes = figure.subplots()
    places = np.arange(shown)
    axes.bar(places - 0.2, found.bins[:shown], 0.4, color=_LIGHT["alarm"], label="this batch")
    axes.bar(places + 0.2, found.bins_before[:shown], 0.4, color=_LIGHT["muted"], label="before")
    axes.set_xticks(places, [token_rank_phrase(n).replace(" to ", "\u2013") for n in range(shown)])
    axes.set_xlabel("how common the token was before (rank)")
    axes.set_ylabel("share of tokens")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.patch.set_alpha(0.0)  # the page shows through, light or dark
    axes.legend(frameon=False)
    return figure


def layers_label(facts: PostMortem) -> str:
    """What the heat map shows, for those who do not see it."""
    first = facts.incident.first_layer
    moved = "" if first is None else f"; {first.layer} moved first"
    return f"{word(facts.layers[0].signal)} by layer around {facts.id}{moved}"


def _grid(
    rows: Sequence[LayerRow], onset: int
) -> tuple[list[str], list[int], dict[str, list[float]]]:
    """Layers in the model's order, steps, and by layer the doublings of its usual norm."""
    names = list(dict.fromkeys(name for row in rows for name in row.norms))
    found: dict[str, list[float]] = {}
    for name in names:
        values = [row.norms.get(name, math.nan) for row in rows]
        before = [v for row, v in zip(rows, values, strict=True) if row.step < onset and v > 0]
        usual = float(np.median([v for v in before if math.isfinite(v)] or [math.nan]))
        found[name] = [_doublings(value, usual) for value in values]
    return names, [row.step for row in rows], found


def _doublings(value: float, usual: float) -> float:
    if not math.isfinite(usual) or usual <= 0 or (math.isnan(value) and usual > 0):
        return REACH if math.isnan(value) and math.isfinite(usual) else math.nan
    if math.isinf(value):
        return REACH
    return math.nan if value <= 0 else max(-REACH, min(REACH, math.log2(value / usual)))


def _grouped(
    names: Sequence[str], doublings: dict[str, list[float]], first: FirstLayer | None
) -> list[tuple[str, list[float]]]:
    """One row a layer, or one for so many neighbours that all fit."""
    size = max(1, math.ceil(len(names) / MOST_ROWS))
    rows = []
    for start in range(0, len(names), size):
        group = names[start : start + size]
        lead = max(group, key=lambda name: _most(doublings[name]))
        if first is not None and first.layer in group:
            lead = first.layer
        more = f" +{len(group) - 1}" if len(group) > 1 else ""
        rows.append((f"{lead}{more}", doublings[lead]))
    return rows


def _most(values: Sequence[float]) -> float:
    return max((abs(v) for v in values if math.isfinite(v)), default=0.0)


def _name_rows(axes: Axes, names: Sequence[str], first: FirstLayer | None) -> None:
    every = max(1, math.ceil(len(names) / 24))
    led = [i for i, n in enumerate(names) if first is not None and n.split(" +")[0] == first.layer]
    places = sorted({*range(0, len(names), every), *led})
    shown = [_cut(printable(names[i]), LONGEST_NAME) for i in places]
    axes.set_yticks(places, shown, fontsize=6.5)
    for label, place in zip(axes.get_yticklabels(), places, strict=True):
        label.set_parse_math(False)  # a job names its layers, with dollars if it likes
        if place in led:
            label.set_color(_LIGHT["alarm"])
            label.set_fontweight("bold")


def _name_steps(axes: Axes, steps: Sequence[int], onset: int) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ticks = [round(t) for t in axes.get_xticks() if 0 <= round(t) < len(steps)]
    places = sorted(set(ticks))
    axes.set_xticks(places, [f"{steps[i]:,}" for i in places])
    begun = next((i for i, step in enumerate(steps) if step >= onset), None)
    if begun is not None:
        axes.axvline(begun - 0.5, color=_LIGHT["alarm"], linewidth=1.0)
    axes.set_xlabel("step")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _colours() -> Colormap:
    """From blue over the paper to red; grey where nothing is known."""
    low, middle, high = np.array([[31, 95, 159], [247, 247, 245], [179, 38, 30]]) / 255.0
    part = np.linspace(0.0, 1.0, 64)[:, None]
    known = ListedColormap(
        np.vstack([low + (middle - low) * part, middle + (high - middle) * part])
    )
    return known.with_extremes(bad="#d8dbe0")


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else f"...{name[-most + 3 :]}"
