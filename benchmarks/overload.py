"""What healthy runs feel while somebody floods the server, and what the flood is told.

One server process on an embedded Postgres (durable). Fifty runs send ten samples a second each.
Calm turns and turns with a flood alternate; the flood comes from a process of its own, over many
connections at once: the same run's messages, many runs' large messages back to back, with a token
of its own or with the healthy runs', or one viewer's reads. Load generators, server and database
share the machine.

    python -m benchmarks.overload [--quick] [--proxy] [--json]
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from benchmarks.ingest_load import Line, new_run
from benchmarks.ingest_servers import HOST, TRUSTED, balancer, new_database, prepare, spikeguard
from benchmarks.machine import machine
from benchmarks.spike_to_command import Agent
from benchmarks.spread import Spread, quantile
from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.cli.embedded_postgres import embedded
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine

HEALTHY = 50  # runs
SAMPLES = 10  # a message
INTERVAL_S = 1.0
CONNECTIONS = 32  # of the flood
LARGE = 200  # samples in a message of the flood
SHARED = "many runs, shared token"
FLOODS = ("one run", "many runs", SHARED, "reads")
_SPAWN = get_context("spawn")


@dataclass
class Turn:
    """What healthy runs saw in one turn."""

    latencies_s: list[float] = field(default_factory=list)
    refused: int = 0

    def ms(self, share: float) -> float:
        """Latency that `share` of the messages stayed below, milliseconds."""
        return 1000 * quantile(self.latencies_s, share)


async def _healthy(agent: Agent, delay_s: float, until: float, turn: Turn) -> None:
    due = time.perf_counter() + delay_s
    while due < until:
        request = agent.request(agent.run.message(agent.run.samples(SAMPLES)))
        await asyncio.sleep(due - time.perf_counter())
        began = time.perf_counter()
        await agent.send(request)
        turn.latencies_s.append(time.perf_counter() - began)
        due += INTERVAL_S


async def _turn(agents: list[Agent], seconds: float) -> Turn:
    turn, before = Turn(), sum(agent.refused for agent in agents)
    until = time.perf_counter() + seconds
    steps = enumerate(agents)
    await asyncio.gather(
        *[_healthy(a, INTERVAL_S * n / len(agents), until, turn) for n, a in steps]
    )
    turn.refused = sum(agent.refused for agent in agents) - before
    return turn


def flood(
    kind: str, port: int, tokens: dict[str, str], number: int, seconds: float, told: Queue[Any]
) -> None:
    """The life of the flooding process: as many requests as go, counted by their answers."""
    told.put("begun")
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        jobs = [
            pool.submit(_pour, kind, port, tokens, number * CONNECTIONS + line, until)
            for line in range(CONNECTIONS)
        ]
        told.put(dict(sum((job.result() for job in jobs), Counter[int]())))


def _pour(kind: str, port: int, tokens: dict[str, str], number: int, until: float) -> Counter[int]:
    answers = Counter[int]()
    token = tokens["agent" if kind == SHARED else "flood"]
    line = Line((HOST, port), "/v1/messages", token)
    name = "".join(part if part.isalnum() else "-" for part in f"flood-{kind}")
    run = new_run(name, number if kind.startswith("many runs") else 0)
    request = line.request(run.start())
    if kind == "reads":
        head = f"GET /v1/runs HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer "
        request = f"{head}{tokens['viewer']}\r\n\r\n".encode()
    while time.monotonic() < until:
        status, _ = line.ask(request)
        answers[status] += 1
        if kind != "reads" and status == 200:
            request = line.request(run.message(run.samples(LARGE)))
    line.close()
    return answers


async def _measure(
    port: int, tokens: dict[str, str], turns: int, seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    agents = [Agent(new_run("healthy", n), port, tokens["agent"]) for n in range(HEALTHY)]
    for agent in agents:
        await agent.start()
    found: dict[str, list[Turn]] = {"calm": [], **{kind: [] for kind in FLOODS}}
    answers = {kind: Counter[int]() for kind in FLOODS}
    for number in range(turns):
        for kind in FLOODS:
            found["calm"].append(await _turn(agents, seconds))
            told: Queue[Any] = _SPAWN.Queue()
            process = _SPAWN.Process(
                target=flood, args=(kind, port, tokens, number, seconds + 1.0, told)
            )
            process.start()
            await asyncio.to_thread(told.get)  # it has read its code and begins
            await asyncio.sleep(0.5)
            found[kind].append(await _turn(agents, seconds))
            answers[kind].update(await asyncio.to_thread(told.get))
            process.join()
            say(f"{kind}: {found[kind][-1].ms(0.99):.0f} ms, {dict(answers[kind])}")
    for agent in agents:
        agent.close()
    return {
        name: {
            "p50_ms": Spread.of([turn.ms(0.5) for turn in told_turns]),
            "p99_ms": Spread.of([turn.ms(0.99) for turn in told_turns]),
            "messages": sum(len(turn.latencies_s) for turn in told_turns),
            "healthy_refused": sum(turn.refused for turn in told_turns),
            "flood_answers": dict(answers.get(name, {})),
        }
        for name, told_turns in found.items()
    }


def measure(
    turns: int, seconds: float, say: Callable[[str], None], *, proxy: bool
) -> dict[str, Any]:
    """Calm and flooded turns on one server, behind the stack's `proxy` or not."""
    directory = Path(tempfile.mkdtemp(prefix="spikeguard-flood-", dir="/tmp"))
    directory.chmod(0o755)  # the account that Postgres runs as must be able to pass
    try:
        with embedded(directory / "postgres") as url:
            database = new_database(url, "flooded")
            tokens = {"agent": prepare(database), **_others(database)}
            log, trusted = directory / "log", TRUSTED if proxy else {}
            with ExitStack() as held:
                ports = held.enter_context(spikeguard(database, 1, log, **trusted))
                port = held.enter_context(balancer(ports, log)) if proxy else ports[0]
                return asyncio.run(_measure(port, tokens, turns, seconds, say))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _others(database: str) -> dict[str, str]:
    """A viewer's token, and that of the client that floods."""
    engine = open_engine(Settings(database_url=database))
    roles = {"viewer": Role.VIEWER, "flood": Role.AGENT}
    with engine.begin() as connection:
        tokens = {
            name: issue_token(connection, Grant(role), "benchmark")[0]
            for name, role in roles.items()
        }
    engine.dispose()
    return tokens


def main() -> int:
    """Print the table or one JSON object."""
    parser = ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn of each, 5 s")
    parser.add_argument("--proxy", action="store_true", help="behind the stack's HAProxy")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    turns, seconds = (1, 5.0) if options.quick else (3, 12.0)
    found = measure(
        turns, seconds, lambda line: print(line, file=sys.stderr, flush=True), proxy=options.proxy
    )
    if options.json:
        print(json.dumps({"machine": machine(), "turns": found}, default=vars_of))
        return 0
    print(f"{HEALTHY} runs, {SAMPLES} samples a message, on {machine()}")
    for name, row in found.items():
        words = "  ".join(f"{key} {value}" for key, value in row.items() if value != {})
        print(f"  {name:10} {words}")
    return 0


def vars_of(value: Any) -> dict[str, Any]:
    """The fields of a `Spread`."""
    assert isinstance(value, Spread)
    return {name: getattr(value, name) for name in ("count", "median", "least", "most")}


if __name__ == "__main__":
    sys.exit(main())
