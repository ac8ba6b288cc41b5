"""Norms by layer over steps as a map that can be looked at: each layer against its own usual norm.

Many layers become as many rows as can be read: first the layers of a block, then blocks that follow
one another; a row shows the layer in it that is furthest above its usual norm. The first layer to
move is found among all of them, never among the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spikeguard_core.detection.noise import median
from spikeguard_core.diagnosis.cause.layers import FirstLayer, LayerRow, first_layer
from spikeguard_core.diagnosis.cause.measured import LEAD

ROWS = 24  # that can be read
FEWEST = 3  # steps before the onset that a usual norm is taken from


@dataclass(frozen=True, slots=True)
class LayerMap:
    """Of one signal: rows in the model's order, a column a step."""

    signal: str
    onset_step: int
    steps: tuple[int, ...]
    rows: tuple[str, ...]  # a layer, a block, or `blocks.0 to blocks.3`
    ratios: tuple[tuple[float | None, ...], ...]  # by row and step, to the usual norm
    layers: int  # that were told
    first: FirstLayer | None  # to move
    first_row: int | None  # that it lies in

    @property
    def sentence(self) -> str:
        """What it shows, for a person."""
        if self.first is None:
            return "No layer left its usual norm ahead of the others"
        said = self.first.sentence
        return f"{said[:1].upper()}{said[1:]}"


def layer_map(
    rows: Sequence[LayerRow],
    onset_step: int,
    most: int = ROWS,
    first: FirstLayer | None = None,
) -> LayerMap | None:
    """The map of `rows`, which are of one signal; None without any.

    `first`: the layer that the incident has on record as the first to move, so that map and
    post-mortem say the same; by default the first in `rows`.
    """
    if not rows:
        return None
    ordered = sorted(rows, key=lambda row: row.step)
    names = list(dict.fromkeys(name for row in ordered for name in row.norms))
    usual = _usual(ordered, names, onset_step)
    groups = _groups(names, most)
    if first is None or first.signal != ordered[0].signal:
        first = first_layer(ordered, onset_step)
    places = [n for n, (_, group) in enumerate(groups) if first and first.layer in group]
    return LayerMap(
        signal=ordered[0].signal,
        onset_step=onset_step,
        steps=tuple(row.step for row in ordered),
        rows=tuple(label for label, _ in groups),
        ratios=tuple(tuple(_furthest(row, group, usual) for row in ordered) for _, group in groups),
        layers=len(names),
        first=first,
        first_row=places[0] if places else None,
    )


def _usual(rows: Sequence[LayerRow], names: Sequence[str], onset_step: int) -> dict[str, float]:
    """The median before the onset; over all steps where those before are too few."""
    before = [row for row in rows if row.step < onset_step - LEAD]
    of = before if len(before) >= FEWEST else rows
    found = {}
    for name in names:
        norms = [n for row in of if (n := row.norms.get(name)) is not None and math.isfinite(n)]
        if norms and (middle := median(norms)) > 0.0:
            found[name] = middle
    return found


def _furthest(row: LayerRow, group: Sequence[str], usual: dict[str, float]) -> float | None:
    ratios = [_ratio(row.norms[name], usual.get(name)) for name in group if name in row.norms]
    known = [ratio for ratio in ratios if ratio is not None]
    return max(known, default=None)


def _ratio(norm: float, usual: float | None) -> float | None:
    if not math.isfinite(norm):
        return math.inf
    return None if usual is None else norm / usual


def _groups(names: Sequence[str], most: int) -> list[tuple[str, list[str]]]:
    """Label and layers of each row."""
    if len(names) <= most:
        return [(name, [name]) for name in names]
    blocks: dict[str, list[str]] = {}
    for name in names:
        blocks.setdefault(block_of(name), []).append(name)
    if len(blocks) <= most:
        return list(blocks.items())
    size = math.ceil(len(blocks) / most)
    named = list(blocks.items())
    return [_joined(named[first : first + size]) for first in range(0, len(named), size)]


def _joined(blocks: Sequence[tuple[str, list[str]]]) -> tuple[str, list[str]]:
    first, last = blocks[0][0], blocks[-1][0]
    label = first if first == last else f"{first} to {last}"
    return label, [name for _, names in blocks for name in names]


def block_of(name: str) -> str:
    """A parameter's name up to its first number (`blocks.3`), else without its last part."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ".".join(parts[:-1]) or name
