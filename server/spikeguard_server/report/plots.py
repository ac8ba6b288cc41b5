"""The curves around an incident, as a picture: loss with its trend above, below it the signal that
the cause speaks of. Every word stands in the legend, where it covers nothing.

Matplotlib's object interface only; its global settings are borrowed under a lock and given back,
since servers render in threads. The same facts give the same picture. Values that are not finite
are marked at the upper edge, never dropped in silence.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from spikeguard_core.lifecycle.incident import rose
from spikeguard_protocol import Signal
from spikeguard_protocol.escaping import html_text
from spikeguard_server.report.facts import IncidentPicture, RecordedCurve
from spikeguard_server.report.plot_choice import (
    NORMS,
    kept_indices,
    named,
    picture_label,
    signal_beside,
)
from spikeguard_server.report.style import COLOURS, FONTS, THEMES
from spikeguard_server.report.wording import SIGMA, number

POINTS = 700  # of a segment
DECADES = 20.0  # from the least value to the largest: beyond it ticks would lie too close
MOST_MARKS = 40  # of values that are not finite, a branch
LARGEST = 1e100  # beyond it the differences that a scale is made of overflow
LOG_RATIO = 6.0  # values that span more than this are drawn on a logarithmic scale
LIGHT = {name: pair[0] for name, pair in COLOURS.items()}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, and in the page's own font
    "svg.hashsalt": "spikeguard",  # ids that do not change from one rendering to the next
    "font.size": 9.0,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": LIGHT["rule"],
    "axes.labelcolor": LIGHT["muted"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "text.color": LIGHT["ink"],
}
_SETTINGS_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class Size:
    """How large the picture is, in inches, and how much it says."""

    width: float
    panel: float  # height for each part of its height
    legend: int  # entries a line
    ticks: int  # of steps, at most
    small: bool = False  # shorter words


SHEET = Size(9.2, 1.05, legend=4, ticks=8)  # flat: a page has more to say
PHONE = Size(3.9, 0.9, legend=2, ticks=4, small=True)


def png_of(picture: IncidentPicture, size: Size, dpi: int) -> bytes:
    """The picture on white, for Markdown and mails."""
    out = io.BytesIO()
    with _settings():
        _figure(picture, size).savefig(out, format="png", dpi=dpi, facecolor="white")
    return out.getvalue()


def svg_image(picture: IncidentPicture) -> bytes:
    """The picture as an image of its own, for a page as wide as a phone, light or dark as its
    reader's screen is."""
    image = svg_of(picture, PHONE)
    end = image.index(">", image.index("<svg")) + 1
    return f"{image[:end]}<style>{THEMES}text{{font-family:{FONTS}}}</style>{image[end:]}".encode()


def svg_of(picture: IncidentPicture, size: Size = SHEET) -> str:
    """The picture as an inline SVG element whose colours are the page's CSS variables."""
    out = io.StringIO()
    with _settings():
        figure = _figure(picture, size)
        figure.savefig(out, format="svg", facecolor="none", metadata={"Date": None})
    return _inline(out.getvalue(), picture_label(picture))


def _figure(facts: IncidentPicture, size: Size) -> Figure:
    """The figure: loss above; below it the signal that the cause speaks of, where measured."""
    norm = signal_beside(facts)
    heights = [2.0] if norm is None else [2.0, 1.0]
    figure = Figure()
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    loss = panels[0][0]
    _draw_signal(loss, facts, Signal.LOSS.value)
    _draw_trend(loss, facts)
    _draw_peak(loss, facts)
    _draw_rollbacks(loss, facts)
    _scale(loss, facts, Signal.LOSS.value)
    loss.set_ylabel("loss (nats)" if size.small else "loss (nats per token)")
    if norm is not None:
        below = panels[1][0]
        _draw_signal(below, facts, norm)
        _scale(below, facts, norm)
        below.set_ylabel(named(norm), fontsize=8.0 if size.small else 9.0)
    for row in panels:
        _finish(row[0], facts, size)
    panels[-1][0].set_xlabel("step")
    figure.align_ylabels([row[0] for row in panels])
    _lay_out(figure, loss, size, size.panel * sum(heights))
    return figure


@contextmanager
def _settings() -> Iterator[None]:
    with _SETTINGS_LOCK, rc_context(_SETTINGS):
        yield


def _inline(svg: str, label: str) -> str:
    """The picture as an element of a page, in the page's colours and font; `label` is any text."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    for name, colour in LIGHT.items():
        body = body.replace(colour, f"var(--{name})")
    body = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    return body.replace("<svg ", f'<svg role="img" aria-label="{html_text(label)}" ', 1).strip()


# --- what is drawn ---


def _stretches(
    facts: IncidentPicture, signal: str, *, undone: bool
) -> Iterator[tuple[Sequence[int], Sequence[float]]]:
    """Steps and values of every curve as far as they are kept, or were undone; where a rollback
    undid what followed, the cut point belongs to both."""
    for curve in facts.curves:
        steps, values = _thinned(curve, signal)
        last = math.inf if curve.kept_to is None else curve.kept_to
        cut = sum(step <= last for step in steps)
        if not undone and cut:
            yield steps[:cut], values[:cut]
        elif undone and cut < len(steps):
            yield steps[max(0, cut - 1) :], values[max(0, cut - 1) :]


def _thinned(curve: RecordedCurve, signal: str) -> tuple[list[int], list[float]]:
    measured = curve.rows(signal)
    kept = kept_indices([value for _, value in measured], POINTS)
    return [measured[i][0] for i in kept], [_drawable(measured[i][1]) for i in kept]


def _drawable(value: float) -> float:
    """What is larger than any axis takes is marked like an infinity."""
    return value if abs(value) <= LARGEST or math.isnan(value) else math.copysign(math.inf, value)


def _draw_signal(axes: Axes, facts: IncidentPicture, signal: str) -> None:
    """One line for what is kept and one for what was undone, with a gap between stretches: a
    thousand of them take no longer than one."""
    branched = any(curve.kept_to is not None for curve in facts.curves)
    kept = "kept" if branched else "measured"
    for undone, label in ((False, kept), (True, "undone")):
        steps, values, lone = list[float](), list[float](), list[int]()
        for at, measured in _stretches(facts, signal, undone=undone):
            if len(at) < 3:  # too short for a line
                lone += range(len(steps), len(steps) + len(at))
            steps += [*at, math.nan]
            values += [*measured, math.nan]
        if not steps:
            continue
        axes.plot(
            steps,
            [value if math.isfinite(value) else math.nan for value in values],
            color=LIGHT["undone" if undone else "kept"],
            linewidth=1.1,
            marker="." if lone else "",
            markevery=lone,
            label=label,
            zorder=2 if undone else 3,
        )
        pairs = zip(steps, values, strict=True)
        odd = [s for s, v in pairs if math.isfinite(s) and not math.isfinite(v)]
        if odd:
            shown = odd[:: max(1, len(odd) // MOST_MARKS)]
            axes.plot(
                shown,
                [0.96] * len(shown),
                "x",
                color=LIGHT["alarm"],
                markersize=4.5,
                transform=axes.get_xaxis_transform(),
                label="not finite",
                clip_on=False,
                zorder=5,
            )


def _draw_trend(axes: Axes, facts: IncidentPicture) -> None:
    trend = facts.incident.trend
    steps = [step for curve in facts.curves for step in (*curve.steps[:1], *curve.steps[-1:])]
    if trend is None or not steps or min(steps) == max(steps):
        return
    # Backwards it is only right near the end of what shaped it.
    last = max(steps)
    first = max(min(steps), trend.step - (last - min(steps)) // 8)
    grid = [first + (last - first) * i / 120 for i in range(121)]
    middle = [trend.at(round(step)) for step in grid]
    reach = trend.band * trend.scale
    low, high = [m - reach for m in middle], [m + reach for m in middle]
    axes.fill_between(grid, low, high, color=LIGHT["trend"], alpha=0.16, linewidth=0, zorder=1)
    axes.plot(
        grid,
        middle,
        color=LIGHT["trend"],
        linewidth=1.1,
        linestyle=(0, (4, 3)),
        label=f"earlier trend ± {trend.band:g} {SIGMA}",
        zorder=4,
    )


def _draw_peak(axes: Axes, facts: IncidentPicture) -> None:
    step, peak = facts.incident.peak_step, facts.incident.peak_loss
    if peak is not None and rose(facts.incident) and math.isfinite(_drawable(peak)):
        label = f"peak {number(peak)}"
        axes.plot(step, peak, "o", color=LIGHT["alarm"], markersize=4, zorder=6, label=label)


def _draw_rollbacks(axes: Axes, facts: IncidentPicture) -> None:
    """An arrow back for each, one above the other."""
    for i, (start, end) in enumerate(facts.rollbacks):
        axes.plot(
            [start, end],
            [0.07 + 0.11 * i] * 2,
            color=LIGHT["undone"],
            linewidth=1.2,
            marker="<",
            markersize=5,
            markevery=[1],
            transform=axes.get_xaxis_transform(),
            label=f"rollback to step {end:,}",
            zorder=7,
        )


# --- how the axes look ---


def _scale(axes: Axes, facts: IncidentPicture, signal: str) -> None:
    """Norms on a logarithmic scale, and what spans much."""
    values = [
        value
        for undone in (False, True)
        for _, measured in _stretches(facts, signal, undone=undone)
        for value in measured
        if math.isfinite(value)
    ]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    if (signal in NORMS and high > 0) or (low > 0 and high / low > LOG_RATIO):
        least = min((value for value in values if value > 0), default=high)
        _logarithmic(axes, high / least)
    else:
        axes.margins(y=0.15)  # room for the arrows below
        axes.yaxis.set_major_locator(MaxNLocator(6 if signal == Signal.LOSS else 4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 4)))


def _logarithmic(axes: Axes, ratio: float) -> None:
    """`ratio`: of the largest value to the least; over many decades only these are named."""
    axes.set_yscale("log")
    subs = (1.0, 2.0, 5.0) if ratio < DECADES else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(10, subs=subs, numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _finish(axes: Axes, facts: IncidentPicture, size: Size) -> None:
    onset = facts.incident.onset_step
    axes.axvline(
        onset, color=LIGHT["alarm"], linewidth=0.9, alpha=0.75, zorder=1.5, label=f"onset {onset:,}"
    )
    axes.grid(color=LIGHT["rule"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_alpha(0.0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(size.ticks, integer=True))
    axes.tick_params(which="both", length=0)
    axes.margins(x=0.01)


def _lay_out(figure: Figure, axes: Axes, size: Size, panels: float) -> None:
    """The panels, so many inches high together, and above them the legend, one entry a label."""
    named = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    above, below = 0.1 + 0.17 * math.ceil(len(named) / size.legend), 0.45
    inches = panels + above + below
    figure.set_size_inches(size.width, inches)
    figure.subplots_adjust(
        left=0.69 / size.width,
        right=1 - 0.23 / size.width,
        top=1 - above / inches,
        bottom=below / inches,
        hspace=0.06,
    )
    figure.legend(
        list(named.values()),
        list(named),
        loc="upper left",
        bbox_to_anchor=((0.1 if size.small else 0.6) / size.width, 1.0),
        borderaxespad=0.2,
        ncols=size.legend,
        frameon=False,
        fontsize=8.0 if size.small else 8.5,
        handlelength=1.2 if size.small else 1.8,
        columnspacing=1.0 if size.small else 1.6,
        labelspacing=0.3,
    )
