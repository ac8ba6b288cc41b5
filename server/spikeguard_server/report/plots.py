"""The curves around an incident, as a picture: loss with its trend above, below it the signal that
the cause speaks of. Every word stands in the legend, where it covers nothing.

Matplotlib's object interface only; its global settings are borrowed under a lock and given back,
since servers render in threads. The same facts give the same picture. Values that are not finite
are marked at the upper edge, never dropped in silence.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
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
from spikeguard_server.report.document import COLOURS, FONTS, THEMES
from spikeguard_server.report.facts import NORMS, IncidentPicture
from spikeguard_server.report.wording import SIGMA, number, word

DECADES = 20.0  # from the least value to the largest: beyond it ticks would lie too close
MOST_MARKS = 40  # of values that are not finite, a branch
LARGEST = 1e100  # beyond it the differences that a scale is made of overflow
LOG_RATIO = 6.0  # values that span more than this are drawn on a logarithmic scale
LIGHT = {name: pair[0] for name, pair in COLOURS.items()}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, and in the page's own font
    "path.simplify_threshold": 1.0,  # of a dot: what no reader sees makes no file larger
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
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
Row = tuple[float, float]  # step, value


@dataclass(frozen=True, slots=True)
class Size:
    """How large the picture is, in inches, and how much it says."""

    width: float
    panel: float  # height for each part of its height
    legend: int  # entries a line
    ticks: int  # of steps, at most
    dpi: int  # as a PNG


SHEET = Size(9.2, 1.05, legend=4, ticks=8, dpi=100)  # flat: a page has more to say
PHONE = Size(3.9, 0.9, legend=2, ticks=4, dpi=200)


def png_of(picture: IncidentPicture, size: Size) -> bytes:
    """The picture on white, for Markdown and mails."""
    return _drawn(picture, size, format="png", dpi=size.dpi, facecolor="white")


def svg_of(picture: IncidentPicture, size: Size = SHEET) -> str:
    """The picture as an SVG element, by itself or in a page: its colours are CSS variables, light
    or dark as its reader's screen is."""
    drawn = _drawn(picture, size, format="svg", facecolor="none", metadata=_NO_METADATA).decode()
    body = drawn[drawn.index("<svg") :]
    for name, colour in LIGHT.items():
        body = body.replace(colour, f"var(--{name})")
    label = html_text(picture.label)
    body = body.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()
    return body.replace(
        ">", f"><style>{THEMES}svg text{{font-family:{FONTS}!important}}</style>", 1
    )


def _drawn(picture: IncidentPicture, size: Size, **form: Any) -> bytes:
    out = io.BytesIO()
    with _SETTINGS_LOCK, rc_context(_SETTINGS):
        _figure(picture, size).savefig(out, **form)
    return out.getvalue()


def _figure(facts: IncidentPicture, size: Size) -> Figure:
    """The figure: loss above; below it the signal that the cause speaks of, where measured."""
    norm = facts.signal_beside
    signals = [Signal.LOSS.value] if norm is None else [Signal.LOSS.value, norm]
    heights = [2.0, 1.0][: len(signals)]
    figure = Figure()
    grid = figure.subplots(len(signals), 1, sharex=True, squeeze=False, height_ratios=heights)
    panels = grid[:, 0]
    for panel, signal in zip(panels, signals, strict=True):
        _draw_signal(panel, facts, signal)
    loss = panels[0]
    _draw_trend(loss, facts)
    step, peak = facts.incident.peak_step, facts.incident.peak_loss
    if peak is not None and rose(facts.incident) and _fits(peak):
        named = f"peak {number(peak)}"
        loss.plot(step, peak, "o", color=LIGHT["alarm"], markersize=4, zorder=6, label=named)
    _draw_rollbacks(loss, facts)
    for panel, signal in zip(panels, signals, strict=True):
        _scale(panel, facts, signal)
        _finish(panel, facts, size)
    if norm is not None:
        panels[1].set_ylabel(word(norm), fontsize=8.0)
    loss.set_ylabel("loss (nats)")
    panels[-1].set_xlabel("step")
    figure.align_ylabels(panels)
    _lay_out(figure, loss, size, size.panel * sum(heights))
    return figure


# --- what is drawn ---


def _stretches(facts: IncidentPicture, signal: str, *, undone: bool) -> Iterator[Sequence[Row]]:
    """Every curve as far as it is kept, or was undone; where a rollback undid what followed, the
    cut point belongs to both."""
    for curve in facts.curves:
        rows = curve.rows(signal)
        last = math.inf if curve.kept_to is None else curve.kept_to
        cut = sum(step <= last for step, _ in rows)
        if not undone and cut:
            yield rows[:cut]
        elif undone and cut < len(rows):
            yield rows[max(0, cut - 1) :]


def _fits(value: float) -> bool:
    """Whether an axis takes it; what is larger is marked like an infinity."""
    return abs(value) <= LARGEST


def _draw_signal(axes: Axes, facts: IncidentPicture, signal: str) -> None:
    """One line for what is kept and one for what was undone, with a gap between stretches: a
    thousand of them take no longer than one."""
    branched = any(curve.kept_to is not None for curve in facts.curves)
    kept = "kept" if branched else "measured"
    for undone, label in ((False, kept), (True, "undone")):
        rows, lone = list[Row](), list[int]()
        for part in _stretches(facts, signal, undone=undone):
            if len(part) < 3:  # too short for a line
                lone += range(len(rows), len(rows) + len(part))
            rows += [*part, (math.nan, math.nan)]
        if not rows:
            continue
        axes.plot(
            [step for step, _ in rows],
            [value if _fits(value) else math.nan for _, value in rows],
            color=LIGHT["undone" if undone else "kept"],
            linewidth=1.1,
            marker="." if lone else "",
            markevery=lone,
            label=label,
            zorder=2 if undone else 3,
        )
        odd = [step for step, value in rows if math.isfinite(step) and not _fits(value)]
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
    values = [v for curve in facts.curves for _, v in curve.rows(signal) if _fits(v)]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    if (signal in NORMS and high > 0) or (low > 0 and high / low > LOG_RATIO):
        least = min((value for value in values if value > 0), default=high)
        axes.set_yscale("log")
        subs = (1.0, 2.0, 5.0) if high / least < DECADES else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(10, subs=subs, numticks=8))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.margins(y=0.15)  # room for the arrows below
        axes.yaxis.set_major_locator(MaxNLocator(6 if signal == Signal.LOSS else 4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 4)))


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
        bbox_to_anchor=(0.1 / size.width, 1.0),
        borderaxespad=0.2,
        ncols=size.legend,
        frameon=False,
        fontsize=8.0,
        handlelength=1.2,
        columnspacing=1.0,
        labelspacing=0.3,
    )
