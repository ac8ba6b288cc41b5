"""What a sample costs beside 10 runs and beside 10,000: CPU time of server and Postgres.

One server process on one embedded Postgres, 8 connections. Runs are added up to each number, each
with 200 samples, so that its detector is at work; then volleys of messages of 20 samples go round
all of them. At the end the first ten send once more, beside all that is stored by then.

    python -m benchmarks.many_runs [--quick] [--json]
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import Any

import psutil

from benchmarks.ingest_load import Line, Run, new_run, volley
from benchmarks.ingest_servers import HOST, new_database, postgres, prepare, spikeguard
from benchmarks.machine import machine
from benchmarks.spread import Spread

CONNECTIONS = 8
BATCH = 20  # samples a message
MESSAGES = 2_000  # of a volley
SILENT_S = "3600"  # or of 10,000 runs in turn each would fall silent before it sends again
KEPT = "10000"  # monitors as they are: of 10,000 runs some 1 GB


@dataclass
class Jobs:
    """Runs, each of which sends over one and the same connection."""

    lines: list[Line]
    runs: list[Run] = field(default_factory=list)
    _turn: Iterator[int] = field(default_factory=lambda: iter(()))

    def grow(self, count: int) -> None:
        """Add runs until there are `count`."""
        fresh = [new_run("many", number) for number in range(len(self.runs), count)]
        self.runs += fresh
        requests: list[list[bytes]] = [[] for _ in self.lines]
        for number, run in enumerate(fresh, count - len(fresh)):
            line = self.lines[number % len(self.lines)]
            bodies = run.start(), run.message(run.samples(200))
            requests[number % len(self.lines)] += [line.request(body) for body in bodies]
        volley(self.lines, requests, 0)
        self._turn = cycle(range(count))

    def round(self, messages: int, of: int | None = None) -> float:
        """So many messages of all runs in turn, or of the first `of`; samples a second."""
        chosen = islice(self._turn if of is None else cycle(range(of)), messages)
        requests: list[list[bytes]] = [[] for _ in self.lines]
        for number in chosen:
            place, run = number % len(self.lines), self.runs[number]
            requests[place].append(self.lines[place].request(run.message(run.samples(BATCH))))
        return volley(self.lines, requests, messages * BATCH).rate


def spent_s(process: psutil.Process) -> float:
    """CPU seconds of a process, and of the children that it has outlived."""
    spent = process.cpu_times()
    parts = spent.user, spent.system, spent.children_user, spent.children_system
    return float(sum(parts))


def family_s(process: psutil.Process) -> float:
    """CPU seconds of a process with its children, dead or alive."""
    total = spent_s(process)
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile, and is in its parent's next
            total += spent_s(child)
    return total


def measured(
    jobs: Jobs,
    server: psutil.Process,
    postgres: psutil.Process,
    turns: int,
    messages: int,
    of: int | None = None,
) -> dict[str, Any]:
    """Microseconds of CPU a sample, and samples a second."""
    rates, ours, theirs = list[float](), list[float](), list[float]()
    for _ in range(turns):
        before = spent_s(server), family_s(postgres)
        rates.append(jobs.round(messages, of))
        each = 1e6 / (messages * BATCH)
        ours.append(each * (spent_s(server) - before[0]))
        theirs.append(each * (family_s(postgres) - before[1]))
    return {
        "server_us": Spread.of(ours),
        "postgres_us": Spread.of(theirs),
        "samples_per_second": Spread.of(rates),
    }


def measure(quick: bool, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each number of runs; the last is that of ten beside all others."""
    counts = (10, 100, 1_000) if quick else (10, 100, 1_000, 10_000)
    turns, messages = (3, 400) if quick else (5, MESSAGES)
    found = []
    with postgres("many") as (url, directory):
        database = new_database(url, "ours")
        token = prepare(database)
        before = set(psutil.Process().children())
        told = {
            "SPIKEGUARD_SILENT_AFTER_S": SILENT_S,
            "SPIKEGUARD_LOST_AFTER_S": SILENT_S,
            "SPIKEGUARD_MONITORS_KEPT": KEPT,
        }
        with spikeguard(database, 1, directory / "log", **told) as [port]:
            [server] = set(psutil.Process().children()) - before
            pid = int(next(directory.rglob("postmaster.pid")).read_text().split()[0])
            postmaster = psutil.Process(pid)
            jobs = Jobs([Line((HOST, port), "/v1/messages", token) for _ in range(CONNECTIONS)])
            for count in counts:
                jobs.grow(count)
                jobs.round(messages)
                row = measured(jobs, server, postmaster, turns, messages)
                found.append({"runs": count, "sending": count, **row})
                say(line_of(found[-1]))
            row = measured(jobs, server, postmaster, turns, messages, of=10)
            found.append({"runs": counts[-1], "sending": 10, **row})
            say(line_of(found[-1]))
    return found


def line_of(row: dict[str, Any]) -> str:
    """For a person."""
    return (
        f"{row['sending']} of {row['runs']} runs send: server {row['server_us']} us a sample, "
        f"Postgres {row['postgres_us']} us, {row['samples_per_second']} samples/s"
    )


def main() -> int:
    """Measure and print."""
    asked = ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true", help="up to 1,000 runs, shorter volleys")
    asked.add_argument("--json", action="store_true")
    chosen = asked.parse_args()
    rows = measure(chosen.quick, lambda line: print(line, file=sys.stderr, flush=True))
    if chosen.json:
        plain = [{k: asdict(v) if isinstance(v, Spread) else v for k, v in r.items()} for r in rows]
        print(json.dumps({"machine": machine(), "rows": plain}, indent=1))
    else:
        print("\n".join(map(line_of, rows)), f"on {machine()}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
