"""How well causes are named: destabilised runs of the trainer, whose fault is known.

`python -m benchmarks.causes [--runs DIR] [--half tuning]`. Reads the runs that
`benchmarks.naming` trained into DIR, gives them to the real monitor step by step, and asks for the
ranking when the incident closes or the run ends. `--half held_out` scores the runs that no constant
was chosen on. Three ways of measuring: everything at every step, statistics of the tokens too; what
a run sends by default, slow norms every 10 steps; loss and gradient norm alone.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.destabilised import (
    FORK,
    SIGNALS,
    Columns,
    Healthy,
    Run,
    file_of,
    healthy_runs,
    read,
)
from benchmarks.naming import SLOW, confidences, half_of, read_options, share
from benchmarks.report import machine, show
from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.evidence import TOKEN_ENTROPY, UNSEEN_TOKENS
from spikeguard_core.events import Closed, Event, Opened, Recurred, Revised
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.suspicion import Ranking
from spikeguard_protocol import Cause
from spikeguard_trainer.faults import FaultName

SLOW_EVERY = 10  # steps, the agent's default
PHASE = 5  # of them: the fault strikes half way between two measurements
LEARNT = 300  # rows before the fork that the monitor learns the run from
NONE = "no incident"
# Which causes are right for an injected fault, fixed before any run was scored, by what the fault
# does and what is measured of it. The batch of a data fault is bad. With a factor above 1 the `lr`
# that the step used is measured and was raised; uphill at the unchanged rate nothing that is
# measured tells it from ordinary steps. Weights were changed by no update; of one bit, a fault in
# that layer is right too. After moment_reset and gradient_jump the second moment is too small for
# such a gradient.
RIGHT: dict[FaultName, frozenset[Cause]] = {
    FaultName.BAD_BATCH: frozenset({Cause.BAD_BATCH}),
    FaultName.BAD_BATCH_REPEATED: frozenset({Cause.BAD_BATCH}),
    FaultName.BAD_BATCH_SHUFFLED: frozenset({Cause.BAD_BATCH}),
    FaultName.GRADIENT_ASCENT: frozenset({Cause.LR_TOO_HIGH}),
    FaultName.LR_BUMP: frozenset({Cause.LR_TOO_HIGH}),
    FaultName.WEIGHT_SCALE: frozenset({Cause.WEIGHT_CORRUPTION}),
    FaultName.WEIGHT_NOISE: frozenset({Cause.WEIGHT_CORRUPTION}),
    FaultName.MOMENT_RESET: frozenset({Cause.STALE_SECOND_MOMENT}),
    FaultName.GRADIENT_JUMP: frozenset({Cause.STALE_SECOND_MOMENT}),
    FaultName.BIT_FLIP: frozenset({Cause.WEIGHT_CORRUPTION, Cause.LAYER_FAULT}),
    FaultName.NAN_GRAD: frozenset({Cause.NON_FINITE_SOURCE}),
}


def right_causes(run: Run) -> frozenset[Cause]:
    """The causes that count as right for `run`."""
    fault = run.fault
    if fault.name is FaultName.GRADIENT_ASCENT and fault.strength <= 1.0:
        return frozenset({Cause.UNKNOWN})
    return RIGHT[fault.name]


@dataclass(frozen=True, slots=True)
class Way:
    """What is measured, and how often."""

    signals: frozenset[str]
    slow_every: int = 1


ALL, FAST = frozenset(SIGNALS), frozenset({"loss", "grad_norm"})
TOKENS = frozenset({TOKEN_ENTROPY, UNSEEN_TOKENS})
WAYS = {
    "every_step": Way(ALL),
    "as_sent": Way(ALL - TOKENS, SLOW_EVERY),
    "loss_and_grad_norm": Way(FAST),
}


@dataclass(frozen=True, slots=True)
class Named:
    """What one run's incident was put down to."""

    run: Run
    ranking: Ranking  # empty: there was no incident

    @property
    def said(self) -> str:
        return self.ranking[0].cause.value if self.ranking else NONE

    @property
    def right(self) -> bool:
        return self.said in right_causes(self.run)


def main() -> None:
    """Score and print."""
    options = read_options("causes", __doc__, "the first healthy run of each seed")
    show(_report(options), options)


def _report(options: Namespace) -> dict[str, Any]:
    chosen = list(healthy_runs())
    chosen = [chosen[0], chosen[len(chosen) // 2]] if options.quick else chosen
    pairs = [(healthy, run) for healthy in chosen for run in half_of(options, healthy)]
    there = [pair for pair in pairs if _there(options.runs, *pair)]
    return {
        "half": options.half,
        "runs": len(there),
        "not_made_yet": len(pairs) - len(there),
        **{
            name: summarise([name_cause(options.runs, run, way) for _, run in there])
            for name, way in WAYS.items()
        },
        "machine": machine(),
    }


def _there(folder: Path, healthy: Healthy, run: Run) -> bool:
    return all(file_of(folder, str(name)).exists() for name in (healthy, run))


def name_cause(folder: Path, run: Run, way: Way) -> Named:
    """Watch one run to its end and take the last ranking that was told."""
    before = read(folder, str(run.healthy))[FORK - LEARNT : FORK]
    return Named(run, watch(np.concatenate([before, read(folder, str(run))]), way))


def watch(rows: Columns, way: Way) -> Ranking:
    """The newest ranking of the causes of the first incident after the fork; empty without one.

    `rows` (steps from FORK - LEARNT + 1, SIGNALS).
    """
    monitor, events = Monitor(), list[Event]()
    for step, values in enumerate(rows.tolist(), start=FORK - LEARNT + 1):
        slow = monitor.attentive or (step + PHASE) % way.slow_every == 0
        sent = way.signals if slow else way.signals - set(SLOW)
        known = zip(SIGNALS, values, strict=True)
        measured = {name: value for name, value in known if name in sent}
        events += monitor.observe([Sample(step, measured)])
    events += monitor.end()
    later = [event for event in events if event.step > FORK]
    at = next((row for row, event in enumerate(later) if isinstance(event, Opened)), None)
    ranking = Ranking()
    for event in later[at:] if at is not None else ():
        if isinstance(event, Opened | Revised | Recurred | Closed):
            ranking = event.causes
        if isinstance(event, Closed):
            break
    return ranking


def summarise(named: Sequence[Named]) -> dict[str, Any]:
    """Every figure of one way of measuring."""
    seen = [one for one in named if one.ranking]
    told = [one for one in seen if one.said != Cause.UNKNOWN]
    pairs = [(one.ranking[0].confidence, one.right) for one in seen]
    return {
        "right": share([one.right for one in seen]),
        "right_of_named": share([one.right for one in told]),
        "without_incident": len(named) - len(seen),
        **confidences(pairs),
        "each": [_row(one) for one in named],
    }


def _row(one: Named) -> list[Any]:
    """run, right causes, said, confidence"""
    sure = round(one.ranking[0].confidence, 3) if one.ranking else None
    return [str(one.run), sorted(right_causes(one.run)), one.said, sure]


if __name__ == "__main__":
    main()
