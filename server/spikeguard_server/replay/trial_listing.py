"""What a trial of detectors found, as a table and as a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spikeguard_cli.wording import table as aligned
from spikeguard_protocol.escaping import printable
from spikeguard_server.replay.trial import DetectorTally, InjectedSpike, Tried

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAD = ("alarms", "per 100,000 rows", "injected found", "delay")
LABELLED = ("labelled found", "false", "F1")


def trial_listing(
    head: Sequence[str],
    named: Sequence[Sequence[str]],
    tallies: Sequence[DetectorTally],
    tried: Sequence[Tried],
    spike: InjectedSpike,
) -> str:
    """A row a candidate, whose first cells are `named` under `head`; then what was not read."""
    labelled = any(tally.labelled for tally in tallies)
    columns = (*head, *HEAD, *(LABELLED if labelled else ()))
    rows = [
        [*cells, *_cells(tally), *(_of_labels(tally) if labelled else ())]
        for cells, tally in zip(named, tallies, strict=True)
    ]
    read = [one for one in tried if one.unread is None]
    parts = [
        f"{len(read)} logs, {tallies[0].rows:,} rows; injected: {spike.size:g} deviations of the "
        f"rows before over {spike.length} rows; delay in rows, median",
        aligned(columns, rows, numbers=range(len(head), len(columns))),
    ]
    if not labelled:
        parts.append("without labels: an alarm may be a real spike")
    if unread := [one for one in tried if one.unread is not None]:
        parts.append(f"not read: {len(unread)}")
        parts += [printable(f"  {one.file}: {one.unread}") for one in unread]
    return "\n".join(parts)


def _cells(tally: DetectorTally) -> list[str]:
    found = f"{tally.found} of {tally.injected}"
    share = "" if tally.share is None else f" ({tally.share:.0%})"
    delay = "-" if tally.delay is None else f"{tally.delay:g}"
    rate = "-" if tally.rate is None else f"{tally.rate:.1f}"
    return [f"{tally.alarms:,}", rate, found + share, delay]


def _of_labels(tally: DetectorTally) -> list[str]:
    f1 = "-" if tally.f1 is None else f"{tally.f1:.2f}"
    return [f"{tally.hits} of {tally.labelled}", str(tally.false), f1]


def draw_trial(
    head: Sequence[str],
    named: Sequence[Sequence[str]],
    tallies: Sequence[DetectorTally],
    spike: InjectedSpike,
    path: Path,
) -> None:
    """Alarms against the share of injected spikes found: one point a candidate. Needs matplotlib.

    A point is called by its first cell; those that share the other cells are joined.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    lines = defaultdict[str, list[tuple[float, float, str]]](list)
    for cells, tally in zip(named, tallies, strict=True):
        if tally.rate is not None and tally.share is not None:
            rest = zip(head[1:], cells[1:], strict=True)
            line = ", ".join(f"{name} {cell}" for name, cell in rest)
            lines[line].append((tally.rate, 100 * tally.share, cells[0]))
    for line, points in lines.items():
        rates, shares, _ = zip(*points, strict=True)
        axes.plot(rates, shares, "o-", lw=0.8, ms=5, label=line)
    _call_points(axes, [point for points in lines.values() for point in points])
    most = max((rate for points in lines.values() for rate, _, _ in points), default=1.0)
    axes.set_xlim(0, 1.2 * max(most, 1.0))
    axes.set_xlabel("alarms in 100,000 rows")
    axes.set_ylabel(f"found of spikes of {spike.size:g} deviations over {spike.length} rows, %")
    axes.set_title(f"each point: {head[0]}", loc="left", fontsize=10)
    axes.margins(y=0.1)
    axes.grid(alpha=0.25)
    if len(lines) > 1:
        axes.legend(frameon=False)
    figure.savefig(path)


def _call_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write beside each point what it is called; once, where several lie at one place."""
    names = defaultdict[tuple[float, float], list[str]](list)
    for rate, share, name in points:
        if name not in names[rate, share]:
            names[rate, share].append(name)
    for place, called in names.items():
        axes.annotate(
            ", ".join(called), place, xytext=(6, 3), textcoords="offset points", fontsize=8
        )
