"""`guard.step` beside servers good and bad: one job a process, as in life, taking turns.

Each job trains the small model and notes what `guard.step` took on the host, by the clock and in
time of its own thread. Slow signals and snapshots are off: what is left is what the bar speaks of,
the host's work besides the norms. One job has no agent and adds up 4,000 numbers instead: what the
same machine does to the percentiles of anything.
Law: one job runs at a time; the others wait for their turn, their threads going on as they would.

Servers that misbehave, each on a real socket: what the agent must not feel in the loop.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.http_server import Answer, Request, answering
from spikeguard_protocol import Ack, decode_message, encode

CONTROL = "no agent: 4,000 additions"
KINDS = (CONTROL, "offline", "healthy", "absent", "hung", "500", "429", "garbage", "full disk")
FILES = 500  # of an outbox on a full disk


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50, p99 and maximum in microseconds."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50_us": cuts[49] * 1e6, "p99_us": cuts[98] * 1e6, "max_us": max(seconds) * 1e6}


def against_servers(steps: int, turns: int, budget_s: float, folder: Path) -> dict[str, Any]:
    """Percentiles by kind of server, of `steps` steps each in `turns` turns; fewer over budget."""
    with ExitStack() as stack:
        jobs = {kind: _Job(kind, folder, stack) for kind in KINDS}
        for job in jobs.values():
            job.train(10)  # unmeasured: imports, first buffers, the first words to the server
        taken: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        began = time.monotonic()
        for turn in range(turns):
            if turn and time.monotonic() - began > budget_s:
                break
            for place in range(len(KINDS)):
                kind = KINDS[(turn + place) % len(KINDS)]
                taken[kind].append(jobs[kind].train(steps // turns))
        for job in jobs.values():
            job.end()
    return {kind: _summary(told) for kind, told in taken.items()}


def acknowledge(request: Request) -> Answer:
    """Each message by its number; nothing is stored, and the process of the job is another."""
    return 200, {}, encode(Ack(decode_message(request.body).sequence))


def _summary(told: list[dict[str, Any]]) -> dict[str, Any]:
    wall = [second for turn in told for second in turn["wall"]]
    own = [second for turn in told for second in turn["own"]]
    return {
        "steps": len(wall),
        "step_ms": 1e3 * sum(turn["seconds"] for turn in told) / len(wall),
        "wall": percentiles(wall),
        "own_thread": percentiles(own),
        "faults": told[-1]["faults"],
    }


class _Job:
    """A training process that makes steps when told to."""

    def __init__(self, kind: str, folder: Path, stack: ExitStack) -> None:
        address = ""
        if kind == "healthy" or kind == "full disk":
            address = stack.enter_context(answering(acknowledge))
        elif kind not in (CONTROL, "offline"):
            address = stack.enter_context(misbehaving(kind))
        home = folder / kind.split(":")[0].replace(" ", "_")
        self._process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.agent_overhead_jobs", kind, str(home), address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._process.kill)

    def train(self, steps: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30.0)


def main() -> None:
    import logging

    import torch

    from benchmarks.agent_overhead_loops import SMALL, bare, guarded

    kind, home, address = sys.argv[1], Path(sys.argv[2]), sys.argv[3] or None
    logging.getLogger("spikeguard").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    last: Callable[[], object]
    if kind == CONTROL:
        loop, last = bare(SMALL, "cpu"), partial(sum, range(4_000))
    else:
        far = 1_000_000_000
        loop = guarded(
            SMALL, "cpu", home, address, snapshot_every=0, slow_signals_every=far, timeout_s=2.0
        )
        assert loop.guard is not None
        last = loop.guard.step
        if kind == "full disk":
            _fill(home)
    for line in sys.stdin:
        wall, own = [], []
        began = time.perf_counter()
        for _ in range(int(line)):
            loop.step_but_the_guards()
            started, started_own = time.perf_counter(), time.thread_time()
            last()
            ended_own, ended = time.thread_time(), time.perf_counter()
            wall.append(ended - started)
            own.append(ended_own - started_own)
            loop.next_batch()
        seconds = time.perf_counter() - began
        faults = loop.guard.faults if loop.guard is not None else {}
        told = {"wall": wall, "own": own, "seconds": seconds, "faults": faults}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    loop.end()


def _fill(home: Path) -> None:
    """Where the outbox will write lies a device that is always full: ENOSPC by the kernel."""
    (attempt,) = (home / "outbox").iterdir()
    for number in range(1, FILES):
        path = attempt / f"{number:012d}.jsonl"
        if not path.exists():
            path.symlink_to("/dev/full")


ANSWERS = {
    "500": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "429": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n",
    "garbage": b"\x00\xff\x00 no protocol at all\r\n\r\n\xfe\xfe",
    "hung": None,  # accepts, never answers
}


@contextmanager
def misbehaving(kind: str) -> Iterator[str]:
    """The address of a server that answers every request as `ANSWERS` says; `absent`: nobody."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if kind == "absent":
        listener.close()
        yield address
        return
    held: list[socket.socket] = []
    thread = threading.Thread(target=_serve, args=(listener, ANSWERS[kind], held), daemon=True)
    thread.start()
    try:
        yield address
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in held:
            connection.close()


def _serve(listener: socket.socket, answer: bytes | None, held: list[socket.socket]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if answer is None:
            held.append(connection)
            continue
        try:
            connection.settimeout(0.5)
            connection.recv(65536)
            connection.sendall(answer)
        except OSError:
            pass
        finally:
            connection.close()


if __name__ == "__main__":
    main()
