"""How stable a run is: shares of its newest steps, each against a target, and its spike scores.

Pure. Formulas, targets and their sources: docs/stability.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from spikeguard_protocol import OptionalSignal, Signal

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
# By signal, one value a step. NaN: not measured; what was measured as NaN stands as infinite.
Columns = Mapping[str, Floats]

LEAST: Final = 256  # steps; of fewer nothing is said
CORE_ROWS, CORE_Z = 128, 6.0  # OLMo-core, StabilityMonitorCallback
PAPER_ROWS, PAPER_Z = 1_000, 7.0  # OLMo 2, arXiv 2501.00656, section 3.2
LEAST_SPREAD: Final = 1e-10  # OLMo-core: of a series that does not vary nothing is a spike
LOSS: Final = Signal.LOSS.value
NORMS: Final = (Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value)
CLIPPED: Final = "grad_clipped"  # 1.0 where it was; of a rule by parameter the share of tensors
SKIPPED: Final = (Signal.UPDATE_DROPPED.value, OptionalSignal.STEP_SKIPPED.value)
SIGNALS: Final = (LOSS, *NORMS, CLIPPED, *SKIPPED)


@dataclass(frozen=True, slots=True)
class _Target:
    """The share of steps up to which nothing is lost."""

    share: float
    did: str
    advice: str


_TARGETS: Final = {
    "spiking": _Target(
        0.001,
        "have a loss that spikes",
        "where its incidents blame bad batches, mend the data; else lower the peak rate, warm up "
        "longer, set beta2 to 0.95, or clip by a rule that follows the norm (ZClip, AdaGC)",
    ),
    "clipped": _Target(
        0.2,
        "are clipped",
        "the limit lies among usual norms and acts as a lower rate: raise it to what one step in "
        "ten exceeds, or lower the rate",
    ),
    "skipped": _Target(
        0.002,
        "are skipped",
        "look at what these steps have in common: their batches or, with fp16, a loss scale that "
        "grows too soon",
    ),
    "non_finite": _Target(
        0.0,
        "are not finite",
        "find the first layer that is not, and what is computed in fp16 there",
    ),
}


@dataclass(frozen=True, slots=True)
class Stability:
    """Of the newest steps of a run; None: not measured, or too few steps."""

    steps: int
    score: float  # 0 to 1
    spiking: float  # shares of the steps: the loss spikes
    clipped: float | None
    skipped: float | None
    non_finite: float
    spike_score: float  # OLMo-core's: share of the steps whose loss or norm spikes
    loss_spike_percent: float | None  # OLMo 2's spike score of the loss
    norm_spike_percent: float | None  # the same of the gradient's norm
    advice: str  # empty: every share is within its target


def stability_of(seen: Columns, window: int) -> Stability | None:
    """Of the newest `window` steps of `seen`, in the order of their training; those before are
    what these are compared with. None of fewer steps than `LEAST`."""
    loss = seen[LOSS]
    steps = min(window, len(loss))
    if steps < LEAST:
        return None
    norm = _norms(seen, len(loss))
    skips = [seen[name] > 0.0 for name in SKIPPED if name in seen]
    skipped = np.logical_or.reduce(skips) if skips else None
    loss_spikes = _spikes(loss, CORE_ROWS, CORE_Z)
    bad_norm = np.isinf(norm) if skipped is None else np.isinf(norm) & ~skipped  # a scaler's search
    counts = {
        "spiking": float(loss_spikes[-steps:].sum()),
        "clipped": float(np.nansum(seen[CLIPPED][-steps:])) if CLIPPED in seen else None,
        "skipped": None if skipped is None else float(skipped[-steps:].sum()),
        "non_finite": float((np.isinf(loss) | bad_norm)[-steps:].sum()),
    }
    shares = {name: None if count is None else count / steps for name, count in counts.items()}
    score, advice = _judged(counts, steps)
    either = loss_spikes | _spikes(norm, CORE_ROWS, CORE_Z)
    return Stability(
        steps,
        score,
        shares["spiking"] or 0.0,
        shares["clipped"],
        shares["skipped"],
        shares["non_finite"] or 0.0,
        float(either[-steps:].mean()),
        _paper_score(loss, steps),
        _paper_score(norm, steps),
        advice,
    )


def _judged(counts: Mapping[str, float | None], steps: int) -> tuple[float, str]:
    """The smallest part that a share leaves of 1, and what helps against that share. One step of
    each kind is always allowed."""
    parts = {
        name: max(1.0, _TARGETS[name].share * steps) / count
        for name, count in counts.items()
        if count
    }
    worst = min(parts, key=parts.__getitem__, default=None)
    if worst is None or parts[worst] >= 1.0:
        return 1.0, ""
    target, share = _TARGETS[worst], (counts[worst] or 0.0) / steps
    said = f"{share:.2%} of the newest {steps:,} steps {target.did}, the target is"
    return parts[worst], f"{said} {target.share:.2%}: {target.advice}."


def _norms(seen: Columns, count: int) -> Floats:
    """Before clipping where that was measured."""
    found = np.full(count, np.nan)
    for name in NORMS:
        if name in seen:
            found = np.where(np.isnan(found), seen[name], found)
    return found


def _paper_score(values: Floats, steps: int) -> float | None:
    """Per cent of the newest `steps` values that lie far from the mean of the last 1,000."""
    finite = np.isfinite(values)
    judged = (finite & (np.cumsum(finite) > PAPER_ROWS))[-steps:].sum()
    found = _spikes(values, PAPER_ROWS, PAPER_Z, both=True)[-steps:].sum()
    return float(100.0 * found / judged) if judged else None


def _spikes(values: Floats, rows: int, z: float, *, both: bool = False) -> Flags:
    """Which values lie more than `z` standard deviations above (`both`: or below) the mean of the
    `rows` finite ones before them."""
    found = np.zeros(len(values), bool)
    places = np.flatnonzero(np.isfinite(values))
    row = values[places]
    for at in _suspects(row, rows) if len(row) > rows else ():
        before = row[at - rows : at]
        spread, off = float(before.std()), float(row[at] - before.mean())
        above = abs(off) if both else off
        found[places[at]] = spread >= LEAST_SPREAD and above > z * spread
    return found


def _suspects(row: Floats, rows: int) -> list[int]:
    """Places that may lie 6 deviations off, by running sums: of values clipped to a wide range, so
    that one of 1e20 leaves the sums exact. Clipping makes no deviation larger."""
    low, middle, high = np.percentile(row, (5, 50, 95))
    wide = 20.0 * (high - low)
    tame = np.clip(row - middle, -wide, wide)
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (tame, tame * tame))
    mean = (sums[rows:-1] - sums[: -rows - 1]) / rows
    square = (squares[rows:-1] - squares[: -rows - 1]) / rows
    spread = np.sqrt(np.maximum(square - mean * mean, 0.0))
    off = np.abs(tame[rows:] - mean) > 3.0 * spread
    places: list[int] = (np.flatnonzero(off | (np.abs(tame[rows:]) >= wide)) + rows).tolist()
    return places
