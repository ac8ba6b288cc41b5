"""How fast a long run's curves and a long list of runs are read, over HTTP.

A run of a million steps (its samples written as chunks and rolled up by the server's own code; no
agent could send them in minutes) and a thousand runs beside it. Windows of random place and width,
from the whole run to a few thousand steps, 1 to 3 signals, at most 2,000 points each; then pages of
1,000 runs. Every answer is checked: no more points than asked, both ends, and the extremes of the
window, which are known from the numbers that were written.

    python -m benchmarks.history [--quick] [--json]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import urllib.request
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import sqlalchemy as sql

from benchmarks.ingest_servers import HOST, new_database, prepare, spikeguard
from benchmarks.machine import machine
from benchmarks.spread import quantile
from spikeguard_protocol import Role, RunId, SegmentReason, SegmentStarted
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.cli.embedded_postgres import embedded
from spikeguard_server.ingest.receive import UNKNOWN_START
from spikeguard_server.settings import Settings
from spikeguard_server.store.chunks import SegmentKey, insert_chunk, row_of
from spikeguard_server.store.curves import Column, Curves
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.roll_ups import roll_up
from spikeguard_server.store.runs import extend_segment, make_attempt, make_run, open_segment

STEPS, RUNS, POINTS = 1_000_000, 1000, 2000
CHUNK = 200  # steps of a message
SIGNALS = ("loss", "grad_norm", "param_norm", "lr", "step_time")
ATTEMPT = "00000000000000a1"


def curves(steps: int) -> Curves:
    """A calm run with a few spikes and one step that is not finite."""
    noise, at = np.random.default_rng(1), np.arange(1, steps + 1)
    values = {
        "loss": 2.0 + np.exp(-at / 5e4) + noise.normal(0, 0.01, steps),
        "grad_norm": 0.4 + noise.normal(0, 0.01, steps),
        "param_norm": 70 + at * 1e-6 + noise.normal(0, 0.001, steps),
        "lr": np.full(steps, 3e-4),
        "step_time": 0.5 + noise.normal(0, 0.01, steps),
    }
    values["loss"][noise.integers(0, steps, 20)] += 3.0
    values["grad_norm"][noise.integers(0, steps, 20)] *= 50.0
    every = np.ones(steps, bool)
    signals = {name: Column(column, every) for name, column in values.items()}
    return Curves(at, signals, Column(at - 1, every), Column(at, every))


def write_run(connection: sql.Connection, name: str, whole: Curves | None) -> None:
    """A run with its samples in chunks, as messages leave them."""
    now = connection.execute(sql.select(sql.func.now())).scalar_one()
    run = make_run(connection, RunId("default", name), now)
    make_attempt(connection, run, ATTEMPT, UNKNOWN_START, now=now, started_at=now)
    open_segment(connection, run.run_id, 1, SegmentStarted(0, SegmentReason.START, None, 0), now)
    if whole is None:
        return
    key = SegmentKey(run.run_id, 1, 0)
    extend_segment(connection, run.run_id, 1, 0, 1, len(whole))
    for part in whole.cut(CHUNK):
        insert_chunk(connection, key, row_of(part))
    while not roll_up(connection, key):
        pass


def get(port: int, token: str, path: str) -> tuple[float, bytes]:
    """Seconds until the whole answer was there, and its body."""
    request = urllib.request.Request(
        f"http://{HOST}:{port}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
    return time.perf_counter() - began, body


def windows(steps: int, count: int) -> list[tuple[int, int, tuple[str, ...]]]:
    """The whole run, and windows whose width is spread evenly over orders of magnitude."""
    random, found = Random(2), [(1, steps, SIGNALS[:n]) for n in (1, 2, 3)]
    for _ in range(count - len(found)):
        width = round(steps ** random.uniform(0.5, 1.0))
        first = random.randint(1, steps - width + 1)
        found.append(
            (first, first + width - 1, tuple(random.sample(SIGNALS, random.randint(1, 3))))
        )
    return found


def read_window(
    port: int, token: str, whole: Curves, wanted: tuple[int, int, tuple[str, ...]]
) -> float:
    """Seconds; raises where the answer leaves out an extreme or holds too much."""
    first, last, names = wanted
    query = f"signals={','.join(names)}&first={first}&last={last}&points={POINTS}"
    seconds, body = get(port, token, f"/v1/runs/default/long/series?{query}")
    (segment,) = json.loads(body)["segments"]
    inside = whole.between(first, last)
    for name in names:
        shown, true = segment["values"][name], inside.signals[name].values
        if (min(shown), max(shown)) != (true.min(), true.max()):
            raise RuntimeError(f"steps {first} to {last}: an extreme of {name} is missing")
    ends = segment["steps"][0], segment["steps"][-1]
    if len(segment["steps"]) > POINTS or ends != (first, last):
        raise RuntimeError(f"steps {first} to {last}: {len(segment['steps'])} points, {ends}")
    return seconds


def measure(steps: int, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Write, then read."""
    directory = Path(tempfile.mkdtemp(prefix="spikeguard-history-", dir="/tmp"))
    directory.chmod(0o755)  # the account that Postgres runs as must be able to pass
    try:
        with embedded(directory / "postgres") as url:
            database = new_database(url, "history")
            prepare(database)
            whole = curves(steps)
            engine = open_engine(Settings(database_url=database))
            with engine.begin() as connection:
                token = issue_token(connection, Grant(Role.VIEWER), "benchmark")[0]
                write_run(connection, "long", whole)
            say(f"{steps} steps are written")
            with engine.begin() as connection:
                for number in range(RUNS):
                    write_run(connection, f"run-{number:04}", None)
            with engine.connect() as connection:
                sizes = _sizes(connection)
            engine.dispose()
            with spikeguard(database, 1, directory / "log") as ports:
                wanted = windows(steps, count)
                read_window(ports[0], token, whole, wanted[0])  # connections, imports, caches
                series = [read_window(ports[0], token, whole, one) for one in wanted]
                full = [read_window(ports[0], token, whole, wanted[0]) for _ in range(10)]
                path = f"/v1/runs?limit={RUNS}"
                get(ports[0], token, path)
                pages = [_page(ports[0], token, path) for _ in range(20)]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "steps": steps, "windows": _shown(series), "whole_run": _shown(full),
        "page_of_1000_runs": _shown(pages), **sizes,
    }  # fmt: skip


def _page(port: int, token: str, path: str) -> float:
    seconds, body = get(port, token, path)
    if len(json.loads(body)["items"]) != RUNS:
        raise RuntimeError(f"a page of {RUNS} runs holds fewer")
    return seconds


def _sizes(connection: sql.Connection) -> dict[str, int]:
    size = "select sum(pg_total_relation_size(inhrelid)) from pg_inherits where inhparent = "
    found = {
        name: connection.execute(sql.text(f"{size} '{name}'::regclass")).scalar_one()
        for name in ("chunks", "rollups")
    }
    return {f"{name}_bytes": int(size) for name, size in found.items()}


def _shown(seconds: list[float]) -> dict[str, Any]:
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "most_ms": 1.0}
    quantiles = {n: round(1000 * quantile(seconds, share), 1) for n, share in shares.items()}
    return {"count": len(seconds), **quantiles}


def main() -> int:
    """Print the table or one JSON object."""
    parser = ArgumentParser(prog="python -m benchmarks.history", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 steps, 30 windows")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    steps, count = (STEPS // 10, 30) if options.quick else (STEPS, 200)
    result = measure(steps, count, lambda line: print(line, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps({"machine": machine(), **result}))
        return 0
    print(f"at most {POINTS} points of 1 to 3 signals, on {machine()}")
    for name, shown in result.items():
        print(f"  {name:20} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
