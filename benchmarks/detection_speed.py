"""How fast the domain takes calm samples of loss and gradient norm on one core.

`python -m benchmarks.detection_speed [--quick] [--json]`. Ours in batches of 1,000, of 10 and one
by one; beside it the rule of OLMo-core (6 standard deviations of the last 128) in plain Python, as
in `detection_rules`. Turn by turn in one process, CPU time; ratios are taken within a turn.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.detection_rules import olmo_core
from benchmarks.machine import machine
from benchmarks.spread import Spread
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.domain.monitor.monitor import Monitor

RATE = "samples a second"
FEWEST_ROWS = 2000  # a turn: the first 150 or so are looked at one by one however they come


def samples(rows: int) -> list[Sample]:
    rng = np.random.default_rng(0)
    losses = (3.0 - 0.1 * np.log(np.arange(rows) + 1.0) + 0.02 * rng.standard_normal(rows)).tolist()
    norms = np.exp(0.2 * rng.standard_normal(rows)).tolist()
    return [
        Sample(step, {"loss": loss, "grad_norm": norm})
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True))
    ]


def ours(batch: int) -> Callable[[Sequence[Sample]], object]:
    def take(rows: Sequence[Sample]) -> object:
        monitor = Monitor()
        return [monitor.observe(rows[at : at + batch]) for at in range(0, len(rows), batch)]

    return take


CONTENDERS: dict[str, tuple[Callable[[Sequence[Sample]], object], float]] = {
    "spikeguard, batches of 1,000": (ours(1000), 1.0),
    "spikeguard, batches of 10": (ours(10), 0.02),
    "spikeguard, one by one": (ours(1), 0.02),
    "OLMo-core's rule": (olmo_core, 0.02),
}


def measure(options: Namespace) -> dict[str, Any]:
    rows = samples(20_000 if options.quick else 200_000)
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(3 if options.quick else 7):
        for name, (take, share) in CONTENDERS.items():
            part = rows[: max(FEWEST_ROWS, round(len(rows) * share))]
            start = time.process_time()
            take(part)
            rates[name].append(len(part) / (time.process_time() - start))
    *_, last = CONTENDERS
    ratios = {
        name: [own / other for own, other in zip(turns, rates[last], strict=True)]
        for name, turns in rates.items()
    }
    return {
        name: {RATE: _plain(rates[name]), "times OLMo-core's rule": _plain(ratios[name])}
        for name in CONTENDERS
    } | {"machine": machine()}


def _plain(values: Sequence[float]) -> dict[str, float]:
    spread = Spread.of(values)
    assert spread is not None
    return asdict(spread)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.detection_speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, three turns")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    found = measure(options := parser.parse_args(arguments))
    if options.json:
        print(json.dumps(found))
        return 0
    for name in CONTENDERS:
        rate, ratio = found[name][RATE], found[name]["times OLMo-core's rule"]
        print(
            f"{name:30} {rate['median']:10,.0f} samples/s ({rate['least']:,.0f} to "
            f"{rate['most']:,.0f}), {ratio['median']:.2f} times ({ratio['least']:.2f} to "
            f"{ratio['most']:.2f}) OLMo-core's rule"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
