"""What the detector finds in noise, and what it makes of noise alone.

`python -m benchmarks.detection_power [--quick] [--json]`. The loss is a level of 2.0 with noise of
standard deviation 0.02: white, autocorrelated (AR(1)), heavy-tailed (Student's t), or skewed. False
alarms are incidents where nothing happened, outlier batches counted apart. Power is the share of
lifts, of so many standard deviations and rows, for which an incident opens no later than 25 rows
after their end. Short spikes stand in noise of which three rows in ten lie 0.8 to 1.2 higher, as
with batches of mixed images; their height is told in that of its highest rows. Epochs are runs of
which each epoch but the first begins with the same rise. Precursors are counted on four leading
signals of log-normal noise, of which param_norm drifts.
"""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.machine import machine
from spikeguard_protocol import Kind
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.domain.events import Event, Opened, Precursor
from spikeguard_server.domain.monitor.monitor import Monitor

Rows = npt.NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], Rows]
LEVEL, NOISE = 2.0, 0.02
WARM = 600  # rows before a lift
AFTER = 25  # rows after it in which it may still be found
CHUNK = 250_000  # rows of one monitor
BATCH = 1000  # rows a message
HEIGHTS, SPIKE_ROWS = (1.25, 1.5, 2.0, 3.0), (3, 5, 10)
RISES, EPOCH, EPOCHS = (2.0, 3.0, 4.0), 300, 30
SIZES, LENGTHS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0), (10, 20, 40, 100)


def white(rows: int, rng: np.random.Generator) -> Rows:
    return rng.standard_normal(rows)


def autocorrelated(correlation: float) -> Draw:
    """AR(1) noise of standard deviation 1."""

    def draw(rows: int, rng: np.random.Generator) -> Rows:
        shocks = rng.standard_normal(rows) * math.sqrt(1 - correlation**2)
        shocks[0] = rng.standard_normal()
        return np.array(list(accumulate(shocks.tolist(), lambda x, e: correlation * x + e)))

    return draw


def heavy_tailed(rows: int, rng: np.random.Generator) -> Rows:
    """Student's t with 4 degrees of freedom, of standard deviation 1."""
    return rng.standard_t(4, rows) / math.sqrt(2.0)


def skewed(rows: int, rng: np.random.Generator) -> Rows:
    """Exponential noise, of standard deviation 1: nothing below shows how far up it reaches."""
    return rng.exponential(size=rows) - 1.0


def often_high(rows: int, rng: np.random.Generator) -> Rows:
    """Three rows in ten lie some 20 standard deviations of the others' noise higher."""
    high = (rng.random(rows) < 0.3) * rng.uniform(0.8, 1.2, rows)
    return (high + 0.05 * rng.standard_normal(rows)) / NOISE


NOISES: dict[str, Draw] = {
    "white": white,
    "AR(1) 0.25": autocorrelated(0.25),
    "AR(1) 0.5": autocorrelated(0.5),
    "t(4)": heavy_tailed,
}
ALONE = NOISES | {
    "exponential": skewed,
    "often high": often_high,
}  # of which false alarms are counted


def _losses(noise: Rows, first: int = 0) -> list[Sample]:
    losses = (LEVEL + NOISE * noise).tolist()
    return [Sample(step, {"loss": loss}) for step, loss in enumerate(losses, first)]


def _in_batches(samples: Iterator[Sample]) -> Iterator[list[Sample]]:
    while batch := list(islice(samples, BATCH)):
        yield batch


def false_alarms(task: tuple[str, int, int]) -> Counter[str]:
    """Incidents on noise alone, and outlier batches, by seed."""
    noise, seed, rows = task
    samples = iter(_losses(ALONE[noise](rows, np.random.default_rng((1, seed)))))
    monitor, told = Monitor(), Counter({"rows": rows})
    for batch in _in_batches(samples):
        told.update(_counted(monitor.observe(batch)))
    return told


def _counted(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        if isinstance(event, Opened):
            outlier = event.judgement.kind is Kind.OUTLIER_BATCH
            yield "outlier batches" if outlier else "false alarms"
        elif isinstance(event, Precursor):
            yield "precursors"


def precursors(task: tuple[int, int]) -> Counter[str]:
    """Precursors of clean leading signals."""
    seed, rows = task
    rng = np.random.default_rng((2, seed))
    loss = LEVEL + NOISE * rng.standard_normal(rows)
    columns = {
        "loss": loss,
        "grad_norm": np.exp(0.25 * rng.standard_normal(rows)),
        "update_norm": np.exp(0.15 * rng.standard_normal(rows)),
        "adam_v_norm": np.exp(0.1 * autocorrelated(0.9)(rows, rng)),
        "param_norm": 100.0 + 1e-3 * np.arange(rows) + 0.01 * rng.standard_normal(rows),
    }
    table = zip(*(column.tolist() for column in columns.values()), strict=True)
    samples = (Sample(step, dict(zip(columns, row, strict=True))) for step, row in enumerate(table))
    monitor, told = Monitor(), Counter({"rows": rows})
    for batch in _in_batches(samples):
        told.update(_counted(monitor.observe(batch)))
    return told


def power(task: tuple[str, int]) -> Counter[tuple[float, int]]:
    """Which lifts are found after one warm-up of a noise; keys (size, length)."""
    noise, seed = task
    rng = np.random.default_rng((3, seed))
    draw = NOISES[noise](WARM + max(LENGTHS) + AFTER, rng)
    monitor = Monitor()
    monitor.observe(_losses(draw[:WARM]))
    warm, found = monitor.dump(), Counter[tuple[float, int]]()
    for size in SIZES:
        for length in LENGTHS:
            rows = draw[WARM : WARM + length + AFTER].copy()
            rows[:length] += size
            events = Monitor.load(warm).observe(_losses(rows, WARM))
            found[size, length] += "false alarms" in _counted(events)
    return found


def short_spikes(seed: int) -> Counter[tuple[float, int]]:
    """Which short spikes are found in noise that is often high; keys (height, rows)."""
    rng = np.random.default_rng((4, seed))
    draw = often_high(WARM + max(SPIKE_ROWS) + AFTER, rng)
    monitor = Monitor()
    monitor.observe(_losses(draw[:WARM]))
    warm, found = monitor.dump(), Counter[tuple[float, int]]()
    for height in HEIGHTS:
        for length in SPIKE_ROWS:
            rows = draw[WARM : WARM + length + AFTER].copy()
            rows[:length] = height * 1.2 / NOISE
            events = Monitor.load(warm).observe(_losses(rows, WARM))
            found[height, length] += "false alarms" in _counted(events)
    return found


def epochs(task: tuple[float, int]) -> int:
    """Incidents of a run whose loss rises by so many deviations at the start of each epoch."""
    size, seed = task
    noise = white(EPOCH * EPOCHS, np.random.default_rng((5, seed)))
    shape = np.concatenate([np.linspace(0, 1, 15), np.ones(30), np.linspace(1, 0, 30)])
    for begin in range(EPOCH, EPOCH * EPOCHS, EPOCH):
        noise[begin : begin + len(shape)] += size * shape
    monitor, samples = Monitor(), iter(_losses(noise))
    return sum(
        told == "false alarms" for batch in _in_batches(samples)
        for told in _counted(monitor.observe(batch))
    )  # fmt: skip


def measure(options: Namespace) -> dict[str, Any]:
    rows, trials = (100_000, 40) if options.quick else (options.rows, options.trials)
    chunk = min(CHUNK, rows)
    parts = range(math.ceil(rows / chunk))
    alarms, curves = dict[str, Any](), dict[str, Any]()
    start = time.perf_counter()
    with ProcessPoolExecutor(options.workers) as pool:
        for noise in ALONE:
            told = sum(pool.map(false_alarms, [(noise, n, chunk) for n in parts]), Counter())
            alarms[noise] = {
                name: told[name] for name in ("rows", "false alarms", "outlier batches")
            }
        clean = sum(
            pool.map(precursors, [(n, chunk) for n in parts[: max(1, len(parts) // 4)]]), Counter()
        )
        for noise in NOISES:
            tasks = [(noise, n) for n in range(trials)]
            curves[noise] = sum(pool.map(power, tasks, chunksize=8), Counter())
        spikes = sum(pool.map(short_spikes, range(trials), chunksize=8), Counter())
        runs = max(4, trials // 20)
        usual = {
            size: list(pool.map(epochs, [(size, seed) for seed in range(runs)])) for size in RISES
        }
    return {
        "alarms": alarms,
        "precursors": {"rows": clean["rows"], "precursors": clean["precursors"]},
        "power": {
            noise: [
                [size, length, curve[size, length] / trials] for size in SIZES for length in LENGTHS
            ]
            for noise, curve in curves.items()
        },
        "short_spikes": [
            [height, length, spikes[height, length] / trials]
            for height in HEIGHTS
            for length in SPIKE_ROWS
        ],
        "epochs": [[size, EPOCHS - 1, counts] for size, counts in usual.items()],
        "trials": trials,
        "seconds": time.perf_counter() - start,
        "machine": machine(),
    }


def show(found: dict[str, Any]) -> None:
    """Print the tables for a person."""
    print("noise alone     rows        false alarms  /100k   outlier batches  /100k")
    for noise, told in found["alarms"].items():
        rows, false, outliers = told["rows"], told["false alarms"], told["outlier batches"]
        print(
            f"{noise:12} {rows:12,} {false:10} {1e5 * false / rows:10.3f} "
            f"{outliers:12} {1e5 * outliers / rows:12.2f}"
        )
    clean = found["precursors"]
    rate = 1e5 * clean["precursors"] / clean["rows"]
    told = f"{clean['precursors']} in {clean['rows']:,} rows, {rate:.2f}/100k"
    print(f"precursors of four clean signals: {told}")
    for noise, curve in found["power"].items():
        print(f"\npower, {noise}, {found['trials']} trials a cell; rows of the lift:")
        print("deviations" + "".join(f"{length:8}" for length in LENGTHS))
        for size in SIZES:
            cells = [share for s, _, share in curve if s == size]
            print(f"{size:10}" + "".join(f"{share:8.2f}" for share in cells))
    print("\nshort spikes in noise that is often high; rows of the spike:")
    print("heights   " + "".join(f"{length:8}" for length in SPIKE_ROWS))
    for height in HEIGHTS:
        cells = [share for h, _, share in found["short_spikes"] if h == height]
        print(f"{height:10}" + "".join(f"{share:8.2f}" for share in cells))
    for size, rises, counts in found["epochs"]:
        median, least, most = sorted(counts)[len(counts) // 2], min(counts), max(counts)
        print(
            f"{rises} epochs that begin {size} deviations higher: {median} incidents "
            f"({least} to {most}, {len(counts)} runs)"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.detection_power", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows a noise, 40 trials")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rows", type=int, default=3_000_000, help="of each noise")
    parser.add_argument("--trials", type=int, default=400, help="of each cell of the power curve")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    found = measure(options)
    if options.json:
        print(json.dumps(found))
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
