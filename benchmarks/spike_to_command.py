"""From the anomalous message leaving to the approved command arriving, among many live runs.

One replica of the server or two, behind the stack's HAProxy (Debian's package), on an embedded
Postgres (durable). So many runs each send one step a second, spread over the second. A few of them
a second lose their loss to NaN, once each, and others come in their place: the answer to that
message should bring the rollback, which the policy approves by itself. Timed from when the sample
is due to the answer's last byte, so with what the run still waits for the answer to its message
before; where the answer brings no order the run polls on, once a second, until it does. What the
load generator itself is late by, `generator_p99_ms`, is in it. Load generator, server and database
share the machine; requests are made before the clock starts.

`--flood`: a client with the token of another project sends messages of 200 samples back to back
over 32 connections meanwhile.

    python -m benchmarks.spike_to_command [--quick] [--flood] [--runs N ...] [--replicas N ...]
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context
from multiprocessing.queues import Queue
from typing import Any

from benchmarks.faults_site import automatic_rollbacks
from benchmarks.ingest_load import (
    HOST,
    TRUSTED,
    Line,
    Run,
    balancer,
    new_database,
    new_run,
    post_of,
    postgres,
    prepare,
    spikeguard,
)
from benchmarks.report import command_line, machine, quantile, say, show
from spikeguard_protocol import Medium, Role, Samples, TargetSaved, decode_ack
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine

INTERVAL_S = 1.0  # between two messages of a run
SPIKES_A_SECOND = 3
WARM_STEPS = 200
SETTLE_S = 8.0  # before the first spike
BEFORE = 5  # messages of a run that will spike: the server knows it as one of the fleet
PATIENCE = 5  # messages that a command may take to come
START_AT_ONCE = 8
RETRY_AFTER_S = 1.0  # as the server asks
FLOODING = 32  # connections
FLOOD_EACH = 200  # messages over each
LARGE = 200  # samples in one of them
OTHER = "other"  # whose token floods
_SPAWN = get_context("spawn")


@dataclass
class Agent:
    """One job over one connection."""

    run: Run
    port: int
    token: str
    refused: int = 0  # for overload, and sent again
    _reader: asyncio.StreamReader = field(init=False)
    _writer: asyncio.StreamWriter = field(init=False)

    async def start(self) -> None:
        """Connect, and train calmly with a checkpoint."""
        await self._connect()
        await self.send(self.request(self.run.start()))
        calm = self.run.samples(WARM_STEPS)
        saved = TargetSaved("step-100", 0, 100, 100, Medium.DISK)
        await self.send(self.request(self.run.message(calm, saved)))

    async def renew(self) -> None:
        """Connect anew: the server hangs up on who has been quiet for long."""
        self.close()
        await self._connect()

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(HOST, self.port)

    def request(self, body: bytes) -> bytes:
        """The bytes of a POST of `body`."""
        return post_of(body, self.token)

    def next_step(self) -> bytes:
        """The request that sends one more calm step."""
        return self.request(self.run.message(self.run.samples(1)))

    async def send(self, request: bytes) -> bool:
        """Post it until it is taken; whether the answer brings a rollback."""
        status, answer = await self._post(request)
        while status == 429:
            self.refused += 1
            await asyncio.sleep(RETRY_AFTER_S)
            status, answer = await self._post(request)
        if status != 200:
            raise RuntimeError(f"answered {status}: {answer[:300]!r}")
        return b'"Rollback"' in answer and bool(decode_ack(answer).orders)

    async def _post(self, request: bytes) -> tuple[int, bytes]:
        self._writer.write(request)
        status, length = 0, 0
        while (line := await self._reader.readline()) not in (b"\r\n", b""):
            if not status:
                status = int(line.split(b" ", 2)[1])
            elif line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return status, await self._reader.readexactly(length)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


@dataclass
class Found:
    """What one fleet size showed."""

    runs: int
    replicas: int
    command_s: list[float] = field(default_factory=list)  # NaN due -> rollback arriving
    answer_s: list[float] = field(default_factory=list)  # NaN leaving -> rollback arriving
    generator_s: list[float] = field(default_factory=list)  # NaN due and the line free -> leaving
    messages: list[int] = field(default_factory=list)  # that it took
    calm_s: list[float] = field(default_factory=list)  # latency of the live runs' messages
    refused: int = 0  # messages, for overload
    late: int = 0  # messages that left over an interval late: the machine could not keep up
    flood: Counter[int] = field(default_factory=Counter)  # answers to the other project's messages

    def shown(self) -> dict[str, Any]:
        """Percentiles in milliseconds."""
        return {
            "runs": self.runs,
            "replicas": self.replicas,
            "spikes": len(self.command_s),
            "in_first_answer": sum(count == 1 for count in self.messages),
            "command_p50_ms": _ms(self.command_s, 0.5),
            "command_p99_ms": _ms(self.command_s, 0.99),
            "answer_p50_ms": _ms(self.answer_s, 0.5),
            "answer_p99_ms": _ms(self.answer_s, 0.99),
            "generator_p99_ms": _ms(self.generator_s, 0.99),
            "message_p50_ms": _ms(self.calm_s, 0.5),
            "message_p99_ms": _ms(self.calm_s, 0.99),
            "messages": len(self.calm_s),
            "refused": self.refused,
            "late": self.late,
            "flood_answers": {str(status): count for status, count in self.flood.items()},
        }


def _ms(values: Sequence[float], share: float) -> float:
    return round(1000 * quantile(values, share), 2)


async def _live(agent: Agent, requests: Sequence[bytes], begin: float, found: Found) -> None:
    """Send one step a second."""
    for number, request in enumerate(requests):
        due = begin + number * INTERVAL_S
        await asyncio.sleep(due - time.perf_counter())
        began = time.perf_counter()
        found.late += began - due > INTERVAL_S
        await agent.send(request)
        found.calm_s.append(time.perf_counter() - began)


def _lost_loss(agent: Agent) -> bytes:
    """The request of a step whose loss is NaN."""
    lost = agent.run.samples(1)
    columns = {**lost.signals, "loss": (math.nan,)}
    return agent.request(agent.run.message(Samples(0, lost.steps, columns, lost.positions)))


async def _spike(
    agent: Agent, before: Sequence[bytes], request: bytes, due: float, found: Found
) -> None:
    """Live as the others until `due`, then lose the loss, and wait for the command."""
    await _live(agent, before, due - len(before) * INTERVAL_S, found)
    free = max(due, time.perf_counter())
    await asyncio.sleep(due - time.perf_counter())
    began = time.perf_counter()
    found.late += began - due > INTERVAL_S
    found.generator_s.append(began - free)
    for message in range(1, PATIENCE + 1):
        if await agent.send(request):
            arrived = time.perf_counter()
            found.command_s.append(arrived - due)
            found.answer_s.append(arrived - began)
            found.messages.append(message)
            return
        await asyncio.sleep(INTERVAL_S)
        request = agent.next_step()
    raise RuntimeError(f"no command came to {agent.run.name}")


def _calm_steps(agent: Agent, count: int) -> list[bytes]:
    return [agent.next_step() for _ in range(count)]


async def _fleet(port: int, token: str, found: Found, seconds: float) -> None:
    runs, spikes = found.runs, round(seconds * SPIKES_A_SECOND)
    name = f"f{runs}-{found.replicas}"
    soon = round(BEFORE * INTERVAL_S * SPIKES_A_SECOND)  # of the live runs will have spiked
    before, lasting = (BEFORE, runs - soon) if runs > soon else (0, runs)
    agents = [Agent(new_run(name, n), port, token) for n in range(spikes + lasting)]
    gate = asyncio.Semaphore(START_AT_ONCE)

    async def start(agent: Agent) -> None:
        async with gate:
            await agent.start()

    await asyncio.gather(*map(start, agents))
    steps = round((SETTLE_S + seconds) / INTERVAL_S)
    ready = [_calm_steps(agent, steps) for agent in agents[:lasting]]
    last = [(_calm_steps(agent, before), _lost_loss(agent)) for agent in agents[lasting:]]
    for agent in agents:
        await agent.renew()
    began = time.perf_counter()
    live = [
        _live(agent, requests, began + INTERVAL_S * n / lasting, found)
        for n, (agent, requests) in enumerate(zip(agents, ready, strict=False))
    ]
    lost = [
        _spike(agent, *requests, began + SETTLE_S + n / SPIKES_A_SECOND, found)
        for n, (agent, requests) in enumerate(zip(agents[lasting:], last, strict=True))
    ]
    await asyncio.gather(*live, *lost)
    for agent in agents:
        found.refused += agent.refused
        agent.close()


@contextmanager
def _flooded(port: int, token: str, found: Found) -> Iterator[None]:
    """A process of its own floods while the body runs."""
    told: Queue[Any] = _SPAWN.Queue()
    end = _SPAWN.Event()
    process = _SPAWN.Process(target=_flood, args=(port, token, found.runs, end, told))
    process.start()
    told.get()  # it has read its code and begins
    yield
    end.set()
    found.flood.update(told.get())
    process.join()


def _flood(port: int, token: str, number: int, end: Any, told: Queue[Any]) -> None:
    """Many runs' messages, made before and sent as fast as they go, counted by their answers."""
    lines = [Line((HOST, port), "/v1/messages", token) for _ in range(FLOODING)]

    def made(line: Line, run: Run) -> list[bytes]:
        messages = [run.start(), *(run.message(run.samples(LARGE)) for _ in range(FLOOD_EACH))]
        return [line.request(message) for message in messages]

    def pour(line: Line, requests: Sequence[bytes]) -> Counter[int]:
        answers, waiting = Counter[int](), iter(requests)
        request = next(waiting, b"")
        while request and not end.is_set():
            status, _ = line.ask(request)
            answers[status] += 1
            request = next(waiting, b"") if status == 200 else request
        line.close()
        return answers

    runs = [new_run(f"flood-{number}", n, OTHER) for n in range(FLOODING)]
    requests = [made(line, run) for line, run in zip(lines, runs, strict=True)]
    for line in lines:
        line.renew()
    told.put("begun")
    with ThreadPoolExecutor(FLOODING) as pool:
        told.put(sum(pool.map(pour, lines, requests), Counter[int]()))


def measure(
    sizes: Sequence[int], replicas: Sequence[int], seconds: float, *, flood: bool
) -> list[Found]:
    """Every fleet size on every number of replicas, one after the other on one database."""
    every = [Found(size, count) for size, count in product(sizes, replicas)]
    with postgres("spikes") as (url, directory):
        database, log = new_database(url, "spikes"), directory / "log"
        token = prepare(database)
        other = _set_up(database)
        for found in every:
            with (
                spikeguard(database, found.replicas, log, **TRUSTED) as ports,
                balancer(ports, log) as port,
                _flooded(port, other, found) if flood else nullcontext(),
            ):
                asyncio.run(_fleet(port, token, found, seconds))
            say(str(found.shown()))
    return every


def _set_up(database: str) -> str:
    """Let the policy approve rollbacks; the token of another project."""
    engine = open_engine(Settings(database_url=database))
    automatic_rollbacks(engine)
    with engine.begin() as connection:
        other = issue_token(connection, Grant(Role.AGENT, OTHER), "benchmark")[0]
    engine.dispose()
    return other


def main() -> None:
    """Print what every fleet showed."""
    parser = command_line("spike_to_command", __doc__, "50 runs, 8 s")
    parser.add_argument("--flood", action="store_true", help="another project floods meanwhile")
    parser.add_argument("--runs", type=int, nargs="+", help="other fleet sizes")
    parser.add_argument("--replicas", type=int, nargs="+", choices=(1, 2), help="of the server")
    options = parser.parse_args()
    sizes = options.runs or ((50,) if options.quick else (300, 500, 1000))
    replicas = options.replicas or ((1,) if options.quick else (1, 2))
    seconds = 8.0 if options.quick else 25.0
    found = measure(sizes, replicas, seconds, flood=options.flood)
    rows = [entry.shown() for entry in found]
    report = {"machine": machine(), "interval_s": INTERVAL_S, "fleets": rows}
    show(report, options)


if __name__ == "__main__":
    main()
