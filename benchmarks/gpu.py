"""What only a GPU can show: `python -m benchmarks.gpu [--quick] [--only PART ...]`.

Each part is a process of its own, so that one which fails takes no other with it:
- `waits`: steps of a guarded loop under `set_sync_debug_mode("error")`, where any wait raises;
- `cost`: whole steps and updates beside other guards (`benchmarks.agent_overhead`);
- `busy`: whole steps of four times the tokens, in which the host waits for the device;
- `memory`: the most that a loop takes of the device's memory, with the agent and without;
- `stalls`: the slowest steps, from the first on, while host memory is made ready and checkpoints
  are written.
Whole jobs with faults and orders: `python -m benchmarks.real_jobs --gpu`; one with a real server:
`python -m benchmarks.story`, whose trainer takes the GPU.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from benchmarks import agent_overhead
from benchmarks.agent_overhead_loops import (
    LARGE,
    SMALL,
    Loop,
    Size,
    clipped,
    guarded,
    zclip_on_host,
)
from benchmarks.report import command_line, machine, say, show
from spikeguard import CheckpointDirectory, attach

LIMIT_S = 240.0  # of one part


def waits(options: Namespace) -> dict[str, Any]:
    """The agent's failures in steps in which nothing may wait."""
    steps = 100 if options.quick else 200
    with tempfile.TemporaryDirectory() as folder:
        loop = guarded(_size(options), "cuda", Path(folder))
        for _ in range(30):  # first uses: buffers, modules, kernels; a snapshot among them
            loop.step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(steps):
            loop.step()
        torch.cuda.set_sync_debug_mode("default")
        assert loop.guard is not None
        faults = loop.guard.faults  # the agent shields its own errors: a wait is counted here
        loop.end()
    return {"steps": steps, "faults": faults}


def cost(options: Namespace) -> dict[str, Any]:
    """As the benchmark of the agent's cost, fewer rounds."""
    rounds, cycles = (10, 1) if options.quick else (20, 2)
    plan = agent_overhead.Plan(7, rounds, cycles * agent_overhead.CYCLE, 0, 0, 60.0)
    with tempfile.TemporaryDirectory() as folder:
        return agent_overhead.compare(_size(options), "cuda", plan, Path(folder))


def busy(options: Namespace) -> dict[str, Any]:
    """Whole steps of four times as many tokens, in which the device is busy all the time."""
    size, rounds = replace(_size(options), sequences=32), 15 if options.quick else 40
    with tempfile.TemporaryDirectory() as place:
        loops = {
            "clip_grad_norm_": clipped(size, "cuda"),
            "agent": guarded(size, "cuda", Path(place) / "a"),
            "agent, no snapshots": guarded(size, "cuda", Path(place) / "b", snapshot_every=0),
            "ZClip, .item() a step": zclip_on_host(size, "cuda"),
        }
        steps = {name: loop.step for name, loop in loops.items()}
        agent_overhead.interleaved(steps, 5, "cuda")
        spent = agent_overhead.interleaved(steps, rounds, "cuda")
        for loop in loops.values():
            loop.end()
    found: dict[str, Any] = {"tokens_per_step": size.length * size.sequences}
    floor = spent["clip_grad_norm_"]
    return found | {name: agent_overhead.whole(times, floor) for name, times in spent.items()}


def memory(options: Namespace) -> dict[str, Any]:
    """GiB of the device, at most, over steps that hold every cadence."""
    size = _size(options)
    found = {"clip_grad_norm_": _peak(lambda: clipped(size, "cuda"))}
    with tempfile.TemporaryDirectory() as place:
        found["agent"] = _peak(lambda: guarded(size, "cuda", Path(place) / "a"))
        found["agent, exact_update_bytes=0"] = _peak(
            lambda: guarded(size, "cuda", Path(place) / "b", exact_update_bytes=0)
        )
    return found


def _peak(make: Callable[[], Loop]) -> float:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loop = make()
    for _ in range(agent_overhead.CYCLE + 5):
        loop.step()
    torch.cuda.synchronize()
    loop.end()
    peak: float = (torch.cuda.max_memory_allocated() - before) / 2**30
    return peak


def stalls(options: Namespace) -> dict[str, Any]:
    """Each step by the clock from the first on: ms of the median, the mean, and the slowest."""
    size, steps = _size(options), 80 if options.quick else 100
    found = {"clip_grad_norm_": _times(clipped(size, "cuda"), steps)}
    with tempfile.TemporaryDirectory() as place:
        found["agent"] = _times(guarded(size, "cuda", Path(place) / "a"), steps)
        loop = Loop(size, "cuda")
        guard = attach(
            loop.model,
            loop.optimizer,
            run="stalls",
            directory=Path(place) / "b",
            checkpoints=CheckpointDirectory(Path(place) / "kept", every=40, keep=1),
        )
        loop.watch(guard)
        found["agent, a checkpoint every 40 steps"] = _times(loop, steps)
        found["faults"] = guard.faults
    return found


def _times(loop: Loop, steps: int) -> dict[str, Any]:
    times: list[float] = []
    for _ in range(steps):
        began = time.perf_counter()
        loop.step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    loop.end()
    slowest = sorted(range(10, steps), key=lambda n: -times[n])[:6]
    return {
        "first": times[0],
        "median": median(times),
        "mean from the 11th": fmean(times[10:]),
        "slowest from the 11th": {n + 1: round(times[n], 2) for n in slowest},
    }


PARTS: dict[str, Callable[[Namespace], dict[str, Any]]] = {
    "stalls": stalls,
    "busy": busy,
    "memory": memory,
    "waits": waits,
    "cost": cost,
}


def _size(options: Namespace) -> Size:
    return SMALL if options.quick else LARGE


def _apart(part: str, quick: bool) -> dict[str, Any]:
    """One part in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--here", "--only", part]
    began = time.monotonic()
    try:
        ended = subprocess.run(
            [*command, *(["--quick"] if quick else [])],
            capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return {"failed": f"not done in {LIMIT_S} s", "said": str(late.stderr)[-2000:]}
    if ended.returncode:
        return {"failed": ended.returncode, "said": ended.stderr[-3000:]}
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found | {"took_s": round(time.monotonic() - began, 1), "log": ended.stderr[-2000:]}


def main() -> int:
    """Print each part as it is done."""
    asked = command_line("gpu", __doc__, "a small model, fewer steps")
    asked.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    asked.add_argument("--here", action="store_true", help="one part, in this process")
    options = asked.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("there is no GPU\n")
        return 2
    if options.here:
        print(json.dumps(PARTS[options.only[0]](options)))
        return 0
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "machine": machine(),
        "torch": torch.__version__,
    }
    for part in options.only:
        found[part] = _apart(part, options.quick)
        say(f"{part}: {json.dumps(found[part])}")
    show(found, options)
    return int(any("failed" in found[part] for part in options.only))


if __name__ == "__main__":
    sys.exit(main())
