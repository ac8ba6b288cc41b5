"""How many samples a second are stored and detected on, beside MLflow's tracking server.

One embedded Postgres (durable, one database each), 8 clients with one connection each, batches of
200 and of 100 samples of 5 metrics, the same numbers for both. Volleys of ours and of MLflow take
turns, so that whatever else the machine does hits both; the ratio is taken turn by turn. MLflow has
the 4 workers that it starts by default; ours has 1 server process, then 2, set as in the
stack, where a proxy bounds heads and httptools reads them. No proxy is measured.

    python -m benchmarks.ingest [--quick] [--without-mlflow] [--environment DIR]
"""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.ingest_load import (
    HOST,
    TRUSTED,
    Curves,
    Line,
    Load,
    Run,
    log_batch,
    mlflow,
    mlflow_line,
    mlflow_runs,
    new_database,
    new_run,
    postgres,
    prepare,
    spikeguard,
    volley,
)
from benchmarks.report import Spread, command_line, machine, say, show

CLIENTS = 8
WARM_MESSAGES = 4  # of 200 samples: baselines are full, statements are prepared
METRICS = 5


@dataclass
class Ours:
    """Eight jobs at `ports`."""

    token: str
    ports: list[int]
    name: str
    runs: list[Run] = field(init=False)
    lines: list[Line] = field(init=False)

    def __post_init__(self) -> None:
        self.runs = [new_run(self.name, number) for number in range(CLIENTS)]
        ports = [self.ports[n % len(self.ports)] for n in range(CLIENTS)]
        self.lines = [Line((HOST, port), "/v1/messages", self.token) for port in ports]
        pairs = zip(self.lines, self.runs, strict=True)
        volley(self.lines, [[line.request(run.start())] for line, run in pairs], 0)
        self.volley(200, WARM_MESSAGES)

    def volley(self, batch: int, messages: int) -> Load:
        """Every job sends `messages` of `batch` samples."""
        requests = [
            [line.request(run.message(run.samples(batch))) for _ in range(messages)]
            for line, run in zip(self.lines, self.runs, strict=True)
        ]
        return volley(self.lines, requests, CLIENTS * messages * batch)

    def close(self) -> None:
        """Hang up."""
        for line in self.lines:
            line.close()


@dataclass
class Theirs:
    """The same eight jobs at MLflow's."""

    port: int
    runs: list[str] = field(init=False)
    lines: list[Line] = field(init=False)
    curves: list[Curves] = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        self.runs = mlflow_runs(self.port, CLIENTS)
        self.lines = [mlflow_line(self.port) for _ in self.runs]
        self.curves = [Curves(Random(number)) for number in range(CLIENTS)]
        self.volley(200, 1)

    def volley(self, batch: int, messages: int) -> Load:
        """Every job logs `messages` batches of `batch` steps."""
        parts = [range(self.step + batch * n + 1, self.step + batch * (n + 1) + 1)
                 for n in range(messages)]  # fmt: skip
        self.step += batch * messages
        requests = [
            [line.request(log_batch(run, steps, curves.rows(steps))) for steps in parts]
            for line, run, curves in zip(self.lines, self.runs, self.curves, strict=True)
        ]
        return volley(self.lines, requests, CLIENTS * messages * batch)


def _shown(loads: list[Load]) -> dict[str, Any]:
    """Rates and latencies of volleys of one kind, with their spread."""
    return {
        "samples_per_second": Spread.of([load.rate for load in loads]),
        "p50_ms": Spread.of([load.quantile_ms(0.5) for load in loads]),
        "p99_ms": Spread.of([load.quantile_ms(0.99) for load in loads]),
    }


def measure(options: Namespace) -> dict[str, Any]:
    """Everything, on one Postgres."""
    turns, size = (3, 0.4) if options.quick else (7, 1.0)
    result: dict[str, Any] = {}
    with ExitStack() as stack:
        url, directory = stack.enter_context(postgres("ingest"))
        ours_url = new_database(url, "ours")
        token = prepare(ours_url)
        theirs = None
        if not options.without_mlflow:
            place = options.environment or directory
            say("starting MLflow")
            port = stack.enter_context(mlflow(new_database(url, "mlflow"), Path(place)))
            theirs = Theirs(port)
        log = directory / "spikeguard.log"
        with spikeguard(ours_url, 1, log, **TRUSTED) as ports:
            ours = Ours(token, ports, "one")
            for batch in (200, 100):
                result[f"batch_{batch}"] = _beside(ours, theirs, batch, turns, size)
            ours.close()
        if not options.quick:
            with spikeguard(ours_url, 2, log, **TRUSTED) as ports:
                ours = Ours(token, ports, "of-2")
                result["batch_200_processes_2"] = _beside(ours, theirs, 200, turns, size)
                ours.close()
    return result


def _beside(
    ours: Ours, theirs: Theirs | None, batch: int, turns: int, size: float
) -> dict[str, Any]:
    mine, other = list[Load](), list[Load]()
    for _ in range(turns):
        mine.append(ours.volley(batch, round(30 * size * 200 / batch)))
        if theirs is not None:
            other.append(theirs.volley(batch, 1))
    shown: dict[str, Any] = {"spikeguard": _shown(mine)}
    if theirs is not None:
        pairs = zip(mine, other, strict=True)
        shown["mlflow"] = _shown(other)
        shown["ratio"] = Spread.of([own.rate / their.rate for own, their in pairs])
    say(f"batch {batch}, {len(ours.ports)} processes: {json.dumps(_plain(shown))}")
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return asdict(value)
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def main() -> None:
    """Print the figures."""
    parser = command_line("ingest", __doc__, "fewer and shorter turns")
    parser.add_argument("--without-mlflow", action="store_true", help="measure ours alone")
    parser.add_argument("--environment", help="where MLflow's environment is made, or lies already")
    options = parser.parse_args()
    result = measure(options)
    where = {"machine": machine(), "clients": CLIENTS, "metrics": METRICS}
    show({**where, **_plain(result)}, options)


if __name__ == "__main__":
    main()
