"""Which layer moved first, from the norms by layer around an onset, and the map of them to look at.

A layer is compared with itself before the onset. Many layers become as many rows as can be read:
first the layers of a block, then blocks that follow one another; a row shows the layer in it that
is furthest above its usual norm. The first to move is found among all layers, not among the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spikeguard_core.detection.noise import NORMAL_MAD, median
from spikeguard_core.diagnosis.cause.measured import LEAD
from spikeguard_core.suspicion import Clue
from spikeguard_protocol import Cause, Signal

FEWEST, NEWEST = 3, 24  # rows before the onset that a layer's usual norm is taken from
DEVIATIONS = 8.0  # robust ones of the logarithm, from which a layer is the first to move
LEAST_RATIO: Mapping[str, float] = {Signal.PARAM_NORM.value: 1.02}  # weights hardly move
USUAL_RATIO = 2.0  # of any other norm: by so much it moved, however much it varies
MOST = 4.0  # weight of what one layer can say
FEW = 0.15  # share of the layers that still counts as one place
ROWS = 24  # of a map that can be read


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Norms by layer at one step."""

    step: int
    signal: str
    norms: Mapping[str, float]  # parameter or layer -> L2 norm


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """The layer that moved first, or most where several did at the same step."""

    signal: str
    layer: str
    step: int
    ratio: float  # to its usual norm; inf where it was not finite
    moved: int  # layers that moved at that step
    known: int  # layers that could have
    ahead: int  # steps before the loss left its trend; negative: after

    @property
    def alone(self) -> bool:
        """Whether it was one place and not the whole model."""
        return self.moved <= max(1, FEW * self.known)

    @property
    def sentence(self) -> str:
        """For a person; without a full stop."""
        when, how = "at the onset", "was not finite"
        if self.ahead:
            steps = f"{abs(self.ahead)} step{'s' * (abs(self.ahead) != 1)}"
            when = f"{steps} {'before the loss' if self.ahead > 0 else 'after the onset'}"
        if math.isfinite(self.ratio):
            times = f"{self.ratio:,.0f}" if self.ratio >= 1000.0 else f"{self.ratio:.3g}"
            how = f"was {times} times its usual size"
        many = {0: "none", self.known - 1: "all"}.get(self.moved - 1, f"{self.moved - 1}")
        others = f"{many} of the other {self.known - 1} layers moved with it"
        what = self.signal.replace("_", " ")
        return f"{what} of {self.layer} {how} at step {self.step}, {when}; {others}"


def first_layer(rows: Sequence[LayerRow], onset_step: int) -> FirstLayer | None:
    """The first to move from shortly before the onset on; None where none did or too little is
    known.

    Where two signals tell of the same step, the one in which fewer layers moved says more.
    """
    found = [
        lead
        for signal in sorted({row.signal for row in rows})
        if (lead := _first_of([row for row in rows if row.signal == signal], onset_step))
    ]
    return min(found, key=lambda lead: (lead.step, lead.moved / lead.known), default=None)


def _first_of(rows: Sequence[LayerRow], onset_step: int) -> FirstLayer | None:
    near = onset_step - LEAD
    usual = _usual([row for row in rows if row.step < near])
    for row in sorted(rows, key=lambda row: row.step):
        if row.step >= near and (moved := _moved(row, usual)):
            apart = [name for name, log in moved.items() if log >= DEVIATIONS * usual[name][1]]
            if apart:
                layer = max(apart, key=lambda name: moved[name])
                drift = row.signal == Signal.PARAM_NORM  # of all weights, by as much in a while
                return FirstLayer(
                    row.signal, layer, row.step, math.exp(moved[layer]),
                    len(apart if drift else moved), len(usual), onset_step - row.step,
                )  # fmt: skip
        if row.step >= onset_step:  # what moves after the first look at it moved with the loss
            return None
    return None


def _usual(rows: Sequence[LayerRow]) -> dict[str, tuple[float, float]]:
    """layer -> median of the logarithm of its norm, and its robust deviation."""
    kept: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row.step):
        for name, norm in row.norms.items():
            if math.isfinite(norm) and norm > 0:
                kept.setdefault(name, []).append(math.log(norm))
    return {
        name: (middle := median(logs), NORMAL_MAD * median([abs(log - middle) for log in logs]))
        for name, every in kept.items()
        if len(logs := every[-NEWEST:]) >= FEWEST
    }


def _moved(row: LayerRow, usual: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """layer -> logarithm of the ratio to its usual norm, of those that moved."""
    least, found = math.log(LEAST_RATIO.get(row.signal, USUAL_RATIO)), dict[str, float]()
    for name, (middle, _) in usual.items():
        norm = row.norms.get(name)
        if norm is None:
            continue
        if not math.isfinite(norm):
            found[name] = math.inf
        elif norm > 0 and math.log(norm) - middle >= least:
            found[name] = math.log(norm) - middle
    return found


def clues_of_layers(first: FirstLayer) -> Iterator[Clue]:
    """What the first layer says of the cause."""
    if not math.isfinite(first.ratio) and first.signal != Signal.PARAM_NORM:
        if first.alone:
            yield Clue(Cause.NON_FINITE_SOURCE, 0.5, first.sentence)
        return
    if not first.alone or first.ahead < 0:
        yield Clue(Cause.LAYER_FAULT, -2.0, f"not one layer alone: {first.sentence}")
        return
    size = math.log(first.ratio) if math.isfinite(first.ratio) else math.inf
    if first.signal == Signal.PARAM_NORM:  # weights hardly move in a step
        size *= 5.0
        yield Clue(Cause.WEIGHT_CORRUPTION, min(MOST, 2.0 * size), first.sentence)
    yield Clue(Cause.LAYER_FAULT, min(MOST, 2.0 * size - 0.5), first.sentence)
    if first.ahead > 0:  # the batch of the onset was not read yet
        reason = "a layer moved before the batch of the onset was read"
        yield Clue(Cause.BAD_BATCH, -1.5, reason)


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
    before = [row for row in ordered if row.step < onset_step - LEAD]
    of = before if len(before) >= FEWEST else ordered
    usual = {name: math.exp(middle) for name, (middle, _) in _usual(of).items()}
    groups = _groups(names)
    if first is None or first.signal != ordered[0].signal:
        first = first_layer(ordered, onset_step)
    places = (n for n, (_, group) in enumerate(groups) if first and first.layer in group)
    return LayerMap(
        signal=ordered[0].signal,
        onset_step=onset_step,
        steps=tuple(row.step for row in ordered),
        rows=tuple(label for label, _ in groups),
        ratios=tuple(tuple(_furthest(row, group, usual) for row in ordered) for _, group in groups),
        layers=len(names),
        first=first,
        first_row=next(places, None),
    )


def _furthest(row: LayerRow, group: Sequence[str], usual: Mapping[str, float]) -> float | None:
    norms = [(name, row.norms[name]) for name in group if name in row.norms]
    if not all(math.isfinite(norm) for _, norm in norms):
        return math.inf
    return max((norm / usual[name] for name, norm in norms if name in usual), default=None)


def _groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Label and layers of each row."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        blocks.setdefault(name if len(names) <= ROWS else block_of(name), []).append(name)
    size, found = max(1, math.ceil(len(blocks) / ROWS)), []
    for first in range(0, len(blocks), size):
        labels = [*blocks][first : first + size]
        label = labels[0] if size == 1 else f"{labels[0]} to {labels[-1]}"
        found.append((label, [name for one in labels for name in blocks[one]]))
    return found


def block_of(name: str) -> str:
    """A parameter's name up to its first number (`blocks.3`), else without its last part."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ".".join(parts[:-1]) or name
