"""The curves around an incident, as a picture: loss with its trend above, below it the signal that
the cause speaks of.

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

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from PIL import Image

from spikeguard_core.lifecycle.damage import rose
from spikeguard_protocol import Signal
from spikeguard_protocol.escaping import html_text
from spikeguard_server.report.facts import IncidentPicture, RecordedCurve
from spikeguard_server.report.plot_choice import (
    NORMS,
    drawn,
    kept_indices,
    named,
    picture_label,
    signal_beside,
)
from spikeguard_server.report.style import COLOURS, FONTS, THEMES
from spikeguard_server.report.wording import SIGMA, number

POINTS = 700  # of a segment
COLOURS_OF_PNG = 256
DECADES = 20.0  # from the least value to the largest: beyond it ticks would lie too close
MOST_MARKS = 40  # of values that are not finite, a stretch
BESIDE = 0.45  # of the axis, that words beside an arrow need on a phone
ONSETS_WORDS = 0.25  # the same, of the words at the onset
PEAKS_WORDS = 0.45  # the same, of the words at a peak and those at the onset
LARGEST = 1e100  # beyond it the differences that a scale is made of overflow
LOG_RATIO = 6.0  # a loss that spans more than this is drawn on a logarithmic scale
LIGHT = {name: pair[0] for name, pair in COLOURS.items()}
BEHIND_WORDS = {
    "boxstyle": "square,pad=0.1", "facecolor": LIGHT["paper"], "edgecolor": "none", "alpha": 0.8,
}  # fmt: skip
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
    above: float  # the panels, for the legend
    legend: int  # entries a line
    ticks: int  # of steps, at most
    small: bool = False  # shorter words


SHEET = Size(9.2, 1.15, 0.4, legend=4, ticks=8)  # flat: a page has more to say
PHONE = Size(3.9, 1.0, 0.4, legend=2, ticks=4, small=True)


@dataclass(frozen=True, slots=True)
class PlottedRun:
    """A part of one curve, either kept or undone by a rollback."""

    steps: Sequence[int]
    values: Sequence[float]
    undone: bool


def png_of(picture: IncidentPicture, size: Size, dpi: int) -> bytes:
    """The picture on white, for Markdown and mails, in few colours: less than half of the bytes."""
    with _settings():
        figure = _figure(picture, size)
        figure.set_dpi(dpi)
        figure.set_facecolor("white")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]
    drawn = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    out = io.BytesIO()
    _in_few_colours(Image.fromarray(drawn).convert("RGB")).save(out, "png")
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
        FigureCanvasSVG(figure)
        figure.savefig(out, format="svg", facecolor="none", metadata={"Date": None})
    return _inline(out.getvalue(), picture_label(picture))


def _in_few_colours(whole: Image.Image) -> Image.Image:
    """Its background, which the octree takes together with what is nearly white, stays white."""
    few = whole.quantize(COLOURS_OF_PNG, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    palette, corner = few.getpalette() or [], few.getpixel((0, 0))
    assert isinstance(corner, int)
    palette[3 * corner : 3 * corner + 3] = (255, 255, 255)
    few.putpalette(palette)
    return few


def _figure(facts: IncidentPicture, size: Size) -> Figure:
    """The figure: loss above; below it the signal that the cause speaks of, where measured."""
    norm = signal_beside(facts)
    heights = [2.0] if norm is None else [2.0, 1.0]
    inches = size.panel * sum(heights)
    figure = Figure(figsize=(size.width, inches))
    top, bottom = 1 - size.above / inches, 0.5 / inches
    left, right = 0.69 / size.width, 1 - 0.23 / size.width
    figure.subplots_adjust(left=left, right=right, top=top, bottom=bottom, hspace=0.06)
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    loss = panels[0][0]
    _draw_signal(loss, facts, Signal.LOSS.value)
    _draw_trend(loss, facts)
    _draw_peak(loss, facts)
    _draw_rollbacks(loss, facts)
    _scale_loss(loss, facts)
    loss.set_ylabel("loss (nats)" if size.small else "loss (nats per token)")
    if norm is not None:
        below = panels[1][0]
        _draw_signal(below, facts, norm)
        _scale_norm(below, facts, norm)
        below.set_ylabel(named(norm), fontsize=8.0 if size.small else 9.0)
    for row in panels:
        _finish(row[0], facts, size)
    _label_onset(loss, facts)
    panels[-1][0].set_xlabel("step")
    figure.align_ylabels([row[0] for row in panels])
    _legend(figure, loss, size)
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


def _stretches(facts: IncidentPicture, signal: str) -> Iterator[PlottedRun]:
    """Every curve, cut where a rollback undid what followed; the cut point belongs to both."""
    for curve in drawn(facts.curves):
        steps, values = _thinned(curve, signal)
        last = math.inf if curve.kept_to is None else curve.kept_to
        cut = sum(step <= last for step in steps)
        yield PlottedRun(steps[:cut], values[:cut], undone=False)
        if cut < len(steps):
            first = max(0, cut - 1)
            yield PlottedRun(steps[first:], values[first:], undone=True)


def _thinned(curve: RecordedCurve, signal: str) -> tuple[list[int], list[float]]:
    pairs = zip(curve.steps, curve.values.get(signal, ()), strict=False)
    measured = [(step, value) for step, value in pairs if value is not None]
    kept = kept_indices([value for _, value in measured], POINTS)
    return [measured[i][0] for i in kept], [_drawable(measured[i][1]) for i in kept]


def _drawable(value: float) -> float:
    """What is larger than any axis takes is marked like an infinity."""
    return value if abs(value) <= LARGEST or math.isnan(value) else math.copysign(math.inf, value)


def _draw_signal(axes: Axes, facts: IncidentPicture, signal: str) -> None:
    branched = any(curve.kept_to is not None for curve in facts.curves)
    kept = "kept" if branched else "measured"
    undone = "undone by the rollback" if facts.rollbacks else "left behind at a restart"
    for stretch in _stretches(facts, signal):
        if not stretch.steps:
            continue
        shown = [v if math.isfinite(v) else math.nan for v in stretch.values]
        colour = LIGHT["undone" if stretch.undone else "kept"]
        axes.plot(
            stretch.steps,
            shown,
            color=colour,
            linewidth=1.1,
            marker="." if len(shown) < 3 else "",
            label=undone if stretch.undone else kept,
            zorder=2 if stretch.undone else 3,
        )
        _mark_non_finite(axes, stretch)


def _mark_non_finite(axes: Axes, stretch: PlottedRun) -> None:
    odd = [s for s, v in zip(stretch.steps, stretch.values, strict=True) if not math.isfinite(v)]
    shown = odd[:: max(1, len(odd) // MOST_MARKS)]
    if shown:
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
    trend, steps = facts.incident.trend, _span(facts)
    if trend is None or steps is None:
        return
    # Backwards it is only right near the end of what shaped it.
    first = max(steps[0], trend.step - (steps[1] - steps[0]) // 8)
    grid = [first + (steps[1] - first) * i / 120 for i in range(121)]
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


def _span(facts: IncidentPicture) -> tuple[int, int] | None:
    shown = drawn(facts.curves)
    steps = [step for curve in shown for step in (curve.steps[:1] + curve.steps[-1:])]
    return (min(steps), max(steps)) if steps and min(steps) < max(steps) else None


def _draw_peak(axes: Axes, facts: IncidentPicture) -> None:
    incident = facts.incident
    if incident.peak_loss is None or not rose(incident):
        return
    if not math.isfinite(_drawable(incident.peak_loss)):
        return
    at = (incident.peak_step, incident.peak_loss)
    axes.plot(*at, "o", color=LIGHT["alarm"], markersize=4, zorder=6)
    left = _is_last(facts, incident.peak_step)
    axes.annotate(
        f"peak {number(incident.peak_loss)}",
        at,
        xytext=(-8 if left else 8, 4),
        textcoords="offset points",
        ha="right" if left else "left",
        fontsize=8.5,
        zorder=7,
    )


def _is_last(facts: IncidentPicture, step: int) -> bool:
    """Whether there is no room for words to the right of `step`."""
    return _fraction(facts, step) > 0.85


def _fraction(facts: IncidentPicture, step: int) -> float:
    """Where `step` lies on the axis, from 0 to 1."""
    span = _span(facts)
    return 0.0 if span is None else (step - span[0]) / (span[1] - span[0])


def _draw_rollbacks(axes: Axes, facts: IncidentPicture) -> None:
    for i, (start, end) in enumerate(facts.rollbacks):
        _arrow_back(axes, facts, start, end, 0.07 + 0.11 * i)


def _arrow_back(axes: Axes, facts: IncidentPicture, start: int, end: int, height: float) -> None:
    across = axes.get_xaxis_transform()
    style = {"arrowstyle": "-|>", "color": LIGHT["undone"], "linewidth": 1.2}
    style |= {"shrinkA": 0, "shrinkB": 0}
    axes.annotate(
        "", (end, height), (start, height), xycoords=across, textcoords=across, arrowprops=style
    )
    before, after = _fraction(facts, end) > BESIDE, _fraction(facts, start) < 1 - BESIDE
    place: dict[str, Any] = {"xytext": (5, 2), "ha": "left", "va": "bottom"}  # above the arrow
    if before or after:
        place = {"xytext": (-5 if before else 5, 0), "ha": "right" if before else "left"}
        place["va"] = "center"
    axes.annotate(
        f"rollback to step {end:,}",
        (start if after and not before else end, height),
        xycoords=across,
        textcoords="offset points",
        **place,
        fontsize=8.5,
        zorder=7,
        bbox=BEHIND_WORDS,  # a fall of the loss may lie there
    )


def _peak_in_the_way(facts: IncidentPicture, peak: int, onset: int, left: bool) -> bool:
    """Whether the words beside the peak would stand where the onset's do, `left` of its line."""
    ahead, least = _fraction(facts, onset) - _fraction(facts, peak), 0.0 if left else -PEAKS_WORDS
    return (left and _is_last(facts, peak)) or least < ahead < PEAKS_WORDS


def _label_onset(axes: Axes, facts: IncidentPicture) -> None:
    onset = facts.incident.onset_step
    left = _fraction(facts, onset) > ONSETS_WORDS
    peak = facts.incident.peak_step
    below = peak is not None and _peak_in_the_way(facts, peak, onset, left)
    axes.annotate(
        f"onset {onset:,}",
        (onset, 0.74 if below else 0.9),
        xycoords=axes.get_xaxis_transform(),
        xytext=(-5 if left else 5, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        color=LIGHT["alarm"],
        fontsize=8.5,
        zorder=7,
    )


# --- how the axes look ---


def _finite(facts: IncidentPicture, signal: str) -> list[float]:
    stretches = _stretches(facts, signal)
    return [v for stretch in stretches for v in stretch.values if math.isfinite(v)]


def _scale_loss(axes: Axes, facts: IncidentPicture) -> None:
    values = _finite(facts, Signal.LOSS.value)
    if not values:
        return
    low, high = min(values), max(values)
    if low > 0 and high / low > LOG_RATIO:
        _logarithmic(axes, high / low)
        axes.set_ylim(low / 1.25, high * 1.35)
        return
    room = (high - low) or abs(high) or 1.0
    axes.set_ylim(low - 0.22 * room, high + 0.14 * room)
    axes.yaxis.set_major_locator(MaxNLocator(6))


def _scale_norm(axes: Axes, facts: IncidentPicture, signal: str) -> None:
    values = _finite(facts, signal)
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    if (signal in NORMS and high > 0) or (low > 0 and high / low > LOG_RATIO):
        least = min((value for value in values if value > 0), default=high)
        _logarithmic(axes, high / least)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 4)))


def _logarithmic(axes: Axes, ratio: float) -> None:
    """`ratio`: of the largest value to the least; over many decades only these are named."""
    axes.set_yscale("log")
    subs = (1.0, 2.0, 5.0) if ratio < DECADES else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(10, subs=subs, numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _finish(axes: Axes, facts: IncidentPicture, size: Size) -> None:
    axes.axvline(
        facts.incident.onset_step, color=LIGHT["alarm"], linewidth=0.9, alpha=0.75, zorder=1.5
    )
    axes.grid(color=LIGHT["rule"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.patch.set_alpha(0.0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(size.ticks, integer=True))
    axes.tick_params(which="both", length=0)
    axes.margins(x=0.01)


def _legend(figure: Figure, axes: Axes, size: Size) -> None:
    """One entry a label, above the panels, where it covers nothing."""
    named = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
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
    )
