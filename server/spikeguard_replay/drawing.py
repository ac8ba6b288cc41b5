"""What a replay or a backtest found, as a picture. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from spikeguard_cli.command import CommandFailed
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import Kind
from spikeguard_replay.backtest import BacktestedLog, Candidate, label
from spikeguard_replay.judging import Findings, finite
from spikeguard_replay.log import Floats, Log

COLOUR = {
    Kind.RECOVERABLE: "#2a9d8f",
    Kind.OUTLIER_BATCH: "#7b5ea7",
    Kind.LINGERING: "#e9a03b",
    Kind.DIVERGENT: "#d1495b",
}

MOST_LOGS = 30  # of a backtest, in one picture
MOST_NUMBERED = 40  # side by side; more would hide one another
WIDE = 3.0  # highest over lowest loss from which the axis is logarithmic


def draw_log(log: Log, findings: Findings, path: Path) -> None:
    """Draw curve, incidents with their kinds, and the band around the trend before each."""
    norms = log.curve("grad_norm")
    high = [4.5, 1.5] if len(norms[0]) else [4.5]
    figure = Figure(figsize=(12, sum(high)), dpi=120, layout="constrained")
    axes = figure.subplots(len(high), 1, sharex=True, squeeze=False, height_ratios=high)
    _draw_loss(axes[0][0], log, findings)
    axes[0][0].set_title(Path(log.name).name, loc="left", fontsize=10, pad=24, parse_math=False)
    if len(high) > 1:
        axes[1][0].plot(*norms, lw=0.6, color="#577590")
        axes[1][0].set(yscale="log", ylabel="grad norm")
    axes[-1][0].set_xlabel("step")
    _write(figure, path)


def _draw_loss(axes: Axes, log: Log, findings: Findings) -> None:
    steps, losses = log.curve("loss")
    axes.plot(steps, losses, lw=0.7, color="#264653", label="loss")
    apart = np.ptp(steps) / MOST_NUMBERED if len(steps) else 0
    numbered = -math.inf
    seen: list[float] = []
    for number, found in enumerate(findings.incidents, start=1):
        seen += _draw_incident(axes, found, int(log.steps.max()))
        if found.onset_step - numbered >= apart:
            numbered = found.onset_step
            axes.annotate(
                f"#{number}",  # as in the listing
                (numbered, 1),
                xycoords=("data", "axes fraction"),
                xytext=(2, -10),
                textcoords="offset points",
                fontsize=8,
                color=COLOUR[found.kind],
            )
    axes.set(ylabel="loss")  # in the unit of the log, whatever it is
    axes.grid(alpha=0.25)
    axes.margins(x=0.01)
    _limit(axes, losses, seen)
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    axes.legend(
        once.values(),
        once.keys(),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(once),
        frameon=False,
        fontsize=9,
        borderaxespad=0.2,
    )


def _draw_incident(axes: Axes, found: Incident, last: int) -> list[float]:
    """Draw from onset to close, else to the step `last`; returns the losses that must be seen."""
    end = found.closed_step if found.closed_step is not None else last
    colour = COLOUR[found.kind]
    axes.axvspan(found.onset_step, max(end, found.onset_step + 1), alpha=0.18, color=colour)
    kind = str(found.kind).replace("_", " ")
    axes.axvline(found.detected_step, lw=0.9, color=colour, label=kind, zorder=1)
    peak = finite(found.peak_loss)
    seen = [] if peak is None else [peak]
    if (trend := found.trend) is None:
        return seen
    steps = np.linspace(trend.step, max(end, trend.step + 1), 21)
    level = np.array([trend.at(round(step)) for step in steps])
    spread = trend.band * trend.scale
    axes.fill_between(
        steps,
        level - spread,
        level + spread,
        alpha=0.35,
        color="#577590",
        lw=0,
        label=f"trend before the spike, ±{trend.band:g} deviations",
    )
    return [*seen, trend.at(end)]


def _limit(axes: Axes, losses: Floats, seen: Sequence[float]) -> None:
    """From the lowest usual loss to the highest, or as far as what has to be `seen`; the very start
    is cut off.

    A logarithmic axis where that spans more than a factor of three and is positive.
    """
    later = np.sort(losses[len(losses) // 100 :])
    later = later[np.isfinite(later)]
    if not len(later):
        return
    low, high = min([later[len(later) // 1000], *seen]), max([later[-1], *seen])
    if low > 0 and high > WIDE * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.1, high * 1.15)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if high < 1e3 * low else (1,)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif high > low:
        axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))


def draw_backtest(
    logs: Sequence[BacktestedLog], candidates: Sequence[Candidate], path: Path
) -> None:
    """Every log's loss, and below it where each candidate opened an incident."""
    read = [one for one in logs if one.unread is None][:MOST_LOGS]
    across = min(3, max(1, len(read)))
    down = max(1, math.ceil(len(read) / across))
    figure = Figure(figsize=(5.2 * across, 2.6 * down + 0.4), dpi=110, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flat
    high = min(0.07, 1 / len(candidates))
    for axes, log in zip_longest(panels, read):
        if log is None:
            axes.set_visible(False)
            continue
        axes.plot(*log.curve, lw=0.7, color="#264653")
        axes.set_title(log.file[-60:], loc="left", fontsize=8, parse_math=False)
        axes.tick_params(labelsize=7)
        _limit(axes, log.curve[1], [])
        for row, (found, candidate) in enumerate(zip(log.found, candidates, strict=True)):
            axes.vlines(
                [one.detected_step for one in found],
                1 - high * row,
                1 - high * (row + 1),
                transform=axes.get_xaxis_transform(),
                color=f"C{row % 10}",
                lw=2,
                label=label(candidate),
            )
    if len(candidates) > 1:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center",
                      ncols=min(6, len(candidates)), frameon=False)  # fmt: skip
    if len(logs) > len(read):
        figure.supxlabel(f"{len(read)} of {len(logs)} files", fontsize=8)
    _write(figure, path)


def _write(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path}: cannot be written: {error}") from error
