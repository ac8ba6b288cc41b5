"""How well spikes are named: destabilised runs of the trainer, each beside its twin without fault.

`python -m benchmarks.naming [--runs DIR] [--quick] [--half tuning]`. Trains what is
missing in DIR (about 30 minutes of a core), kept between calls, and scores it: the half that no
constant was chosen on, unless the other is named.

Law: causal: the monitor sees one sample at a time, as a server does, slow signals every 10 steps
and every step while it is attentive. What truth is stands in `destabilised.py`. No spike counts as
"heals by itself" only in the decision; a run without damage and without an incident is left out.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.destabilised import (
    FORK,
    PERTURBED,
    SIGNALS,
    Columns,
    Healthy,
    Losses,
    Run,
    damage,
    delta_of,
    generate,
    healthy_runs,
    read,
    runs_of,
    truth,
)
from benchmarks.report import command_line, machine, show
from spikeguard_core.detection.sample import Sample
from spikeguard_core.events import Closed, Event, Judgement, Opened, Revised
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import Kind

LOSS = SIGNALS.index("loss")
RUNS = Path(".spikeguard/destabilised")
SLOW = ("update_norm", "adam_v_norm", "param_norm")
SLOW_EVERY = 10  # steps, the agent's default
DECIDED = 50  # steps after the peak
ASKED = (10, 25, 50, 100, 200, 400)  # steps after detection at which confidences are scored
ROLLBACK = 0.7  # confidence of the default policy
ACTION = (Kind.LINGERING, Kind.DIVERGENT)


def read_options(name: str, description: str | None, quick: str) -> Namespace:
    """The command line of a score of destabilised runs."""
    parser = command_line(name, description, quick)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the runs are kept")
    parser.add_argument("--half", choices=("held_out", "tuning"), default="held_out")
    return parser.parse_args()


def main() -> None:
    """Make what is missing, score, print."""
    options = read_options("naming", __doc__, "the first two healthy runs of each seed")
    chosen = list(healthy_runs())
    chosen = chosen[:2] + chosen[6:8] if options.quick else chosen
    generate(options.runs, chosen, partial(half_of, options))
    show(_report(options, chosen), options)


def _report(options: Namespace, chosen: Sequence[Healthy]) -> dict[str, Any]:
    folder = options.runs
    delta = _delta(folder, chosen)
    half = [run for healthy in chosen for run in half_of(options, healthy)]
    whole = [_rows(folder, run) for run in half]
    seen = [_watched(folder, run, delta) for run in half]
    found = [watch(one, rows) for one, rows in zip(seen, whole, strict=True)]
    return {
        "half": options.half,
        "delta": round(delta, 4),
        **summarise(found),
        "machine": machine(),
        "each": [_row(run) for run in found],
    }


def half_of(options: Namespace, healthy: Healthy) -> list[Run]:
    """Its runs in the half that is asked for."""
    return [run for run in runs_of(healthy) if run.tunes is (options.half == "tuning")]


def _row(run: Watched) -> list[Any]:
    """name, truth, final, decided, peak, detected, damage"""
    kinds = [kind.value if kind else None for kind in (run.truth, run.final, run.decided)]
    mean = round(run.damage, 4) if math.isfinite(run.damage) else None
    return [run.name, *kinds, run.peak, run.detected, mean]


def _delta(folder: Path, chosen: Sequence[Healthy]) -> float:
    pairs = [
        (read(folder, f"{healthy}_twin{number}")[:, LOSS], _twin(folder, healthy))
        for healthy in chosen
        for number in range(PERTURBED)
    ]
    return delta_of(pairs)


def _twin(folder: Path, healthy: Healthy) -> Columns:
    return read(folder, str(healthy))[FORK:, LOSS]


def _rows(folder: Path, run: Run) -> Columns:
    before = read(folder, str(run.healthy))[:FORK]
    return np.concatenate([before, read(folder, str(run))])


def _watched(folder: Path, run: Run, delta: float) -> Watched:
    loss, twin = read(folder, str(run))[:, LOSS], _twin(folder, run.healthy)
    kind = truth(run, loss, twin, delta)
    mean = float(damage(run, loss, twin).mean())
    return Watched(str(run), kind, peak_of(loss, twin), mean)


# --- one run -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Watched:
    """What the monitor said about one run."""

    name: str
    truth: Kind
    peak: int  # steps after the fork
    damage: float  # mean excess in the window of truth, nats
    detected: int | None = None  # steps after the fork, from 1
    final: Kind | None = None  # None: no incident
    decided: Kind | None = None
    early: bool = False  # an incident was open at the fork
    wrong_rollback: bool = False
    asked: list[tuple[float, bool]] = field(default_factory=list)  # confidence, whether right

    @property
    def acts(self) -> bool:
        return self.truth in ACTION

    @property
    def counts(self) -> bool:
        """Whether there was anything to name."""
        return self.acts or self.final is not None

    @property
    def decided_right(self) -> bool:
        return (self.decided in ACTION) == self.acts


def peak_of(loss: Losses, twin: Losses) -> int:
    """Row at which the excess (median of 7) first is 9/10 of its most, or not finite."""
    bad = np.flatnonzero(~np.isfinite(loss))
    if len(bad):
        return int(bad[0])
    padded = np.pad(loss - twin, 3, mode="edge")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 7), axis=1)
    return int(np.flatnonzero(smooth >= 0.9 * smooth.max())[0])


def watch(found: Watched, rows: Columns) -> Watched:
    """Run the monitor over `rows` (steps from 1, SIGNALS) and fill `found` in."""
    monitor, held = Monitor(), list[Judgement | None]()
    last: Judgement | None = None
    for step, values in enumerate(rows, start=1):
        slow = monitor.attentive or step % SLOW_EVERY == 0
        now = monitor.observe([Sample(step, _measured(values, slow))])
        if step == FORK:
            found.early = monitor.open
        if step > FORK:
            last = _newest(found, step - FORK, now, last)
        held.append(last)
    found.final = _kind(last)
    decided = min(FORK + found.peak + DECIDED, len(held) - 1)
    found.decided = _kind(held[decided])
    _ask(found, held)
    return found


def _measured(values: NDArray[np.float64], slow: bool) -> dict[str, float]:
    pairs = zip(SIGNALS, values.tolist(), strict=True)
    return {name: value for name, value in pairs if slow or name not in SLOW}


def _newest(
    found: Watched, after: int, events: Iterable[Event], last: Judgement | None
) -> Judgement | None:
    for event in events:
        if isinstance(event, Opened) and found.detected is None:
            found.detected = after
        if isinstance(event, Opened | Revised | Closed):
            last = event.judgement
            sure = last.kind in ACTION and last.confidence >= ROLLBACK
            found.wrong_rollback |= sure and not found.acts
    return last


def _kind(judgement: Judgement | None) -> Kind | None:
    """An outlier batch heals by itself."""
    if judgement is None:
        return None
    return Kind.RECOVERABLE if judgement.kind is Kind.OUTLIER_BATCH else judgement.kind


def _ask(found: Watched, held: Sequence[Judgement | None]) -> None:
    if found.detected is None:
        return
    for after in ASKED:
        row = FORK + found.detected - 1 + after
        judgement = held[row] if row < len(held) else None
        if judgement is not None:
            found.asked.append((judgement.confidence, _kind(judgement) is found.truth))


# --- over many runs ---------------------------------------------------------------------------


def wilson(right: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    if not count:
        return 0.0, 1.0
    z2 = 1.96**2
    share = right / count
    middle = share + z2 / (2 * count)
    half = 1.96 * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, (middle - half) / (1 + z2 / count)), min(
        1.0, (middle + half) / (1 + z2 / count)
    )


def share(flags: Sequence[bool]) -> dict[str, Any]:
    """How many are true, with the interval."""
    low, high = wilson(sum(flags), len(flags))
    part = round(sum(flags) / len(flags), 3) if flags else None
    return {"right": sum(flags), "of": len(flags), "share": part, "interval": _rounded(low, high)}


def _rounded(*values: float) -> list[float]:
    return [round(value, 3) for value in values]


def summarise(runs: Sequence[Watched]) -> dict[str, Any]:
    """Every figure of one half."""
    named = [run for run in runs if run.counts]
    kinds = [kind for kind in Kind if any(run.truth is kind for run in named)]
    by_kind = {k.value: share([r.final is k for r in named if r.truth is k]) for k in kinds}
    harmless = [run for run in runs if not run.acts]
    return {
        "runs": len(runs),
        "without_damage_or_incident": len(runs) - len(named),
        "incident_open_at_the_fork": sum(run.early for run in runs),
        "final_kind": share([run.final is run.truth for run in named]),
        "by_kind": by_kind,
        "decision": share([run.decided_right for run in named]),
        "wrong_rollbacks": share([run.wrong_rollback for run in harmless]),
        "missed": sum(run.acts and run.detected is None for run in runs),
        "delay": _delay([run.detected for run in named if run.detected is not None]),
        **confidences([pair for run in named for pair in run.asked]),
    }


def _delay(steps: Sequence[int]) -> dict[str, float] | None:
    if not steps:
        return None
    late = sorted(steps)[math.ceil(0.9 * len(steps)) - 1]
    return {"median": median(steps) - 1, "nine_in_ten": late - 1}


def confidences(pairs: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """Brier score and reliability in bins of a tenth from 0.5."""
    if not pairs:
        return {"brier": None, "reliability": []}
    brier = sum((sure - right) ** 2 for sure, right in pairs) / len(pairs)
    table = []
    for low in (5, 6, 7, 8, 9):
        inside = [pair for pair in pairs if min(int(10 * pair[0]), 9) == low]
        if inside:
            said = sum(sure for sure, _ in inside) / len(inside)
            table.append(
                {"from": low / 10, "said": round(said, 3), **share([r for _, r in inside])}
            )
    return {"brier": round(brier, 4), "asked": len(pairs), "reliability": table}


if __name__ == "__main__":
    main()
