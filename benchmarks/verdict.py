"""Act or wait, 50 steps after a fault's end: how often it is said by then, and how often rightly.

`python -m benchmarks.verdict [--runs DIR] [--quick] [--out FILE] [--json]`. Trains
what is missing in DIR (about 40 minutes of a core), kept between calls. The runs are those of
`verdict_plan.py`, wider than those of `naming`: faults of 1 to 60 steps, three optimizers, other
noise. "Too early" is an answer; it counts as waiting, and as no verdict. `--quick` takes the first
two healthy runs.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.destabilised import SIGNALS, Columns, generate, read
from benchmarks.machine import machine
from benchmarks.naming_options import read_options, tell
from benchmarks.naming_plan import FORK, PERTURBED, Healthy, Run, damage, delta_of, truth
from benchmarks.naming_score import ACTION, SLOW, SLOW_EVERY, share
from benchmarks.verdict_plan import STEPS, healthy_runs, runs_of
from spikeguard_protocol import Kind
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.domain.events import Closed, Event, Judgement, Opened, Revised
from spikeguard_server.domain.monitor.monitor import Monitor
from spikeguard_server.domain.policy.settings import DEFAULT_POLICY

AFTER = 50  # steps after the fault's end
LOSS = SIGNALS.index("loss")


class Verdict(StrEnum):
    """What is said of an incident 50 steps after the fault's end."""

    ACT = "act"
    WAIT = "wait"
    TOO_EARLY = "too early"
    MISSED = "no incident"


@dataclass(frozen=True, slots=True)
class Judged:
    """One run: what it needed and what was said of it."""

    run: Run
    truth: Kind
    damage: float  # mean excess in the window of truth, nats
    verdict: Verdict
    confidence: float  # of the kind said; 0 without an incident

    @property
    def needs_action(self) -> bool:
        return self.truth in ACTION

    @property
    def counts(self) -> bool:
        """Whether there was anything to judge."""
        return self.needs_action or self.verdict is not Verdict.MISSED

    @property
    def given(self) -> bool:
        return self.verdict is not Verdict.TOO_EARLY

    @property
    def right(self) -> bool:
        return (self.verdict is Verdict.ACT) == self.needs_action


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is missing, score, print."""
    options = read_options(
        "verdict", __doc__, "the first two healthy runs", arguments, halves=False
    )
    options.runs = options.runs.with_name(options.runs.name + "_widely")
    chosen = list(healthy_runs())[: 2 if options.quick else None]
    generate(options.runs, chosen, runs_of, STEPS)
    tell(report_on(options, chosen), options, _table)
    return 0


def report_on(options: Namespace, chosen: Sequence[Healthy]) -> dict[str, Any]:
    """Every figure."""
    judged = [
        _judge(options.runs, run, delta)
        for healthy in chosen
        for delta in [_delta(options.runs, healthy)]
        for run in runs_of(healthy)
    ]
    counted = [one for one in judged if one.counts]
    given = [one for one in counted if one.given]
    return {
        "runs": len(judged),
        "without_damage_or_incident": len(judged) - len(counted),
        "given": share([one.given for one in counted]),
        "right_of_given": share([one.right for one in given]),
        "right_of_all": share([one.right for one in counted]),
        "by_truth": {
            kind.value: share([one.right for one in counted if one.truth is kind])
            for kind in Kind
            if any(one.truth is kind for one in counted)
        },
        "machine": machine(),
        "each": [_row(one) for one in judged],
    }


def _delta(folder: Path, healthy: Healthy) -> float:
    """Of this run alone: how far chance carries its loss depends on its noise."""
    twin = read(folder, str(healthy))[FORK:, LOSS]
    pairs = [
        (read(folder, f"{healthy}_twin{number}")[:, LOSS], twin) for number in range(PERTURBED)
    ]
    return delta_of(pairs)


def _judge(folder: Path, run: Run, delta: float) -> Judged:
    healthy = read(folder, str(run.healthy))
    rows = read(folder, str(run))
    twin = healthy[FORK:, LOSS]
    judgement, opened = _said(np.concatenate([healthy[:FORK], rows]), FORK + run.end + 1 + AFTER)
    return Judged(
        run,
        truth(run, rows[:, LOSS], twin, delta),
        float(damage(run, rows[:, LOSS], twin).mean()),
        _verdict(judgement, opened),
        judgement.confidence if judgement else 0.0,
    )


def _said(rows: Columns, until: int) -> tuple[Judgement | None, bool]:
    """The newest judgement after step `until`, and whether an incident was opened at all."""
    monitor, last, opened = Monitor(), None, False
    measured: NDArray[np.bool_] = np.logical_not(np.isnan(rows[:FORK]).all(axis=0))
    for step, values in enumerate(rows[:until], start=1):
        slow = monitor.attentive or step % SLOW_EVERY == 0
        told = monitor.observe([Sample(step, _values(values, measured, slow))])
        if step > FORK:
            opened = opened or any(isinstance(event, Opened) for event in told)
            last = _newest(told, last)
    return last, opened


def _values(row: Columns, measured: NDArray[np.bool_], slow: bool) -> dict[str, float]:
    columns = zip(SIGNALS, row.tolist(), measured.tolist(), strict=True)
    return {
        name: value for name, value, is_there in columns if is_there and (slow or name not in SLOW)
    }


def _newest(events: Sequence[Event], last: Judgement | None) -> Judgement | None:
    for event in events:
        if isinstance(event, Opened | Revised | Closed):
            last = event.judgement
    return last


def _verdict(judgement: Judgement | None, opened: bool) -> Verdict:
    """The default policy acts and waits by the same confidence."""
    if judgement is None or not opened:
        return Verdict.MISSED
    if judgement.confidence < DEFAULT_POLICY.act_confidence:
        return Verdict.TOO_EARLY
    return Verdict.ACT if judgement.kind in ACTION else Verdict.WAIT


def _row(one: Judged) -> list[Any]:
    """run, truth, damage in nats, verdict, confidence"""
    mean = round(one.damage, 4) if np.isfinite(one.damage) else None
    return [str(one.run), one.truth.value, mean, one.verdict.value, round(one.confidence, 2)]


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['runs']} runs, {AFTER} steps after the fault's end"]
    lines += [_line(name, report[name]) for name in ("given", "right_of_given", "right_of_all")]
    lines += [_line(f"  {kind}", entry) for kind, entry in report["by_truth"].items()]
    lines.append(f"left out, nothing to judge: {report['without_damage_or_incident']}")
    return "\n".join(lines + [" ".join(map(str, row)) for row in report["each"]])


def _line(name: str, entry: dict[str, Any]) -> str:
    low, high = entry["interval"]
    return f"{name}: {entry['right']} of {entry['of']} = {entry['share']} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
