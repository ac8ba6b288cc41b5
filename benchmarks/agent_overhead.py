"""What the agent costs a training step: `python -m benchmarks.agent_overhead [--quick] [--json]`.

The same loop bare, with `clip_grad_norm_`, with the agent, with everything at every step and with
three other guards, interleaved step by step in turning order; ratios are paired within a round.
Whole steps first, then the update alone on gradients that are kept: only there does a guard work,
and what it adds is not lost in the noise of forward and backward; that difference is also given
as a percentage of the whole step. Device: CUDA in bf16 where there is one, after 1,000 steps under
`set_sync_debug_mode("error")`; else the CPU in fp32, where a whole step of the reference takes
some 13 s: few of them, of four loops, and 60 updates of all. Law: nothing measured is left out;
the updates hold every cadence (snapshot each 20 steps, slow signals each 10).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch

from benchmarks.agent_overhead_loops import (
    LARGE,
    REFERENCE,
    SMALL,
    Control,
    Loop,
    Size,
    bare,
    clipped,
    guarded,
    ratio_of_losses,
    sigma_in_optimizer,
    zclip_on_host,
)
from benchmarks.agent_overhead_servers import healthy, misbehaving
from benchmarks.machine import machine
from benchmarks.spread import Spread
from spikeguard.training_state import tree_bytes

ASKED: dict[str, Any] = {"slow_signals_every": 1, "layer_norms_every": 1}
CLIP = "clip_grad_norm_"
TINY = Size(256, 32, 1, 2, 32, 1)  # for the servers: what counts there is the host's time
SERVERS = ("offline", "healthy", "absent", "hung", "500", "429", "garbage", "full disk")


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50, p99 and maximum in microseconds."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50_us": cuts[49] * 1e6, "p99_us": cuts[98] * 1e6, "max_us": max(seconds) * 1e6}


def timed(step: Callable[[], None], device: str) -> float:
    """Seconds of one step, the device's work included."""
    started = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def interleaved(
    steps: dict[str, Callable[[], None]], rounds: int, warm_up: int, device: str
) -> dict[str, list[float]]:
    """Seconds by loop and round, `warm_up` rounds left out; each starts with another loop."""
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            spent = timed(steps[name], device)
            if number >= warm_up:
                seconds[name].append(spent)
    return seconds


def all_loops(size: Size, device: str, folder: Path) -> dict[str, Loop]:
    return {
        "bare": bare(size, device),
        CLIP: clipped(size, device),
        "agent": guarded(size, device, folder / "default"),
        "agent, everything every step": guarded(size, device, folder / "all", **ASKED),
        "ZClip, .item() a step": zclip_on_host(size, device),
        "ratio of losses (Lightning's rule)": ratio_of_losses(size, device),
        "6 sigma in the optimizer (OLMo's rule)": sigma_in_optimizer(size, device),
    }


def compare(
    size: Size, device: str, rounds: int, updates: int, whole: int, folder: Path
) -> dict[str, Any]:
    """Whole steps of the first `whole` loops, then updates of all."""
    loops = all_loops(size, device, folder)
    warm_up = 30 if device == "cuda" else 1
    seconds = interleaved({n: loops[n].step for n in list(loops)[:whole]}, rounds, warm_up, device)
    for loop in loops.values():
        loop.hold_gradients()
        loop.calls.clear()
    held = {name: loop.step_on_held for name, loop in loops.items()}
    alone = interleaved(held, updates, 2, device)
    step_s = median(seconds[CLIP])
    guard = loops["agent"].guard
    assert guard is not None
    found = {
        "parameters": sum(p.numel() for p in loops["bare"].parameters),
        "tokens_per_step": size.length * size.sequences,
        "snapshot_bytes_per_rank": tree_bytes(guard._p.recovery.live()),
        "faults": {n: x.guard.faults for n, x in loops.items() if x.guard and x.guard.faults},
        "whole_steps": {n: _whole(s, seconds[CLIP]) for n, s in seconds.items()},
        "updates": {n: _update(s, alone[CLIP], step_s) for n, s in alone.items()},
        "calls": {n: {c: percentiles(v) for c, v in x.calls.items()} for n, x in loops.items()},
    }
    for loop in loops.values():
        loop.end()
    return found


def _whole(spent: list[float], floor: list[float]) -> dict[str, Any]:
    paired = [100.0 * (a / b - 1.0) for a, b in zip(spent, floor, strict=True)]
    return {
        "ms": str(Spread.of([1e3 * s for s in spent])),
        "percent_over_clip": str(Spread.of(paired)),
        "mean_percent_over_clip": 100.0 * (sum(spent) / sum(floor) - 1.0),
        "worst_ms": 1e3 * max(spent),
    }


def _update(spent: list[float], floor: list[float], step_s: float) -> dict[str, Any]:
    """What is added to an update; the mean holds the steps with slow signals and snapshots."""
    added = [a - b for a, b in zip(spent, floor, strict=True)]
    return {
        "ms": str(Spread.of([1e3 * s for s in spent])),
        "added_ms": str(Spread.of([1e3 * s for s in added])),
        "median_percent_of_step": 100.0 * median(added) / step_s,
        "mean_percent_of_step": 100.0 * fmean(added) / step_s,
        "worst_added_percent_of_step": 100.0 * max(added) / step_s,
    }


def unsynced(size: Size, folder: Path, steps: int = 1000) -> dict[str, Any]:
    """The loop with the agent under sync debug mode `error`; any wait for the device raises."""
    loop = guarded(size, "cuda", folder)
    for _ in range(30):  # first uses: buffers, modules, kernels; a snapshot among them
        loop.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(steps):
            loop.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    guard = loop.guard
    assert guard is not None
    faults = guard.faults  # the agent shields its own errors: a sync would be counted here
    loop.end()
    return {"steps": steps, "faults": faults, "passed": not faults}


def against_servers(steps: int, folder: Path) -> dict[str, Any]:
    """Host time of `guard.step` for each kind of server, interleaved, on a model of no weight."""
    with ExitStack() as stack:
        loops: dict[str, Loop] = {"(no agent: 4,000 additions)": Control(TINY, "cpu")}
        for kind in SERVERS:
            loops[kind] = _tiny(folder / kind.replace(" ", "_"), _address(kind, stack))
            if kind == "full disk":
                _fill(loops[kind])
        calls = {name: loop.step for name, loop in loops.items()}
        interleaved(calls, 50, 0, "cpu")
        for loop in loops.values():
            loop.calls.clear()
        interleaved(calls, steps, 0, "cpu")
        found = {kind: percentiles(loop.calls["guard.step"]) for kind, loop in loops.items()}
        for loop in loops.values():
            loop.end()
    return found


def _address(kind: str, stack: ExitStack) -> str | None:
    if kind in ("offline", "full disk"):
        return None
    return stack.enter_context(healthy() if kind == "healthy" else misbehaving(kind))


def _tiny(home: Path, address: str | None) -> Loop:
    return guarded(TINY, "cpu", home, address, snapshot_every=0, timeout_s=2.0)


def _fill(loop: Loop) -> None:
    """Have the outbox write to a device that is always full: ENOSPC by the kernel."""
    outbox = loop.guard._p.outbox if loop.guard is not None else None
    assert outbox is not None
    outbox._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - the outbox closes it


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true", help="a small model, fewer steps")
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--rounds", type=int, help="whole steps of each loop")
    chosen = asked.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = SMALL if chosen.quick else LARGE if device == "cuda" else REFERENCE
    rounds = chosen.rounds or (20 if chosen.quick else 300 if device == "cuda" else 5)
    if chosen.quick:
        torch.set_num_threads(1)  # so small a model only waits for a second core that is busy
    whole = 7 if chosen.quick or device == "cuda" else 4
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        found: dict[str, Any] = {"machine": machine(), "device": name, "torch": torch.__version__}
        found["threads"] = torch.get_num_threads()
        if device == "cuda":
            found["sync_debug"] = unsynced(size, folder / "sync")
        found |= compare(size, device, rounds, 60, whole, folder)
        torch.set_num_threads(1)
        found["guard_step_by_server"] = against_servers(300 if chosen.quick else 1000, folder)
    sys.stdout.write(json.dumps(found, indent=1) + "\n" if chosen.json else table(found))


def table(found: dict[str, Any]) -> str:
    """The same in Markdown."""
    lines = [
        f"{found['device']}, {found['machine']}, torch {found['torch']}, {found['threads']} threads"
    ]
    if "sync_debug" in found:
        lines.append(f"under set_sync_debug_mode('error'): {found['sync_debug']}")
    lines += [
        f"{found['parameters']:,} parameters, {found['tokens_per_step']:,} tokens a step, "
        f"snapshot {found['snapshot_bytes_per_rank']:,} bytes a rank, faults {found['faults']}",
        "",
        "| whole step | ms | % over clip_grad_norm_, paired | mean % | worst ms |",
        "|---|---|---|---|---|",
    ]
    for name, row in found["whole_steps"].items():
        lines.append(
            f"| {name} | {row['ms']} | {row['percent_over_clip']} | "
            f"{row['mean_percent_over_clip']:.2f} | {row['worst_ms']:.1f} |"
        )
    lines += [
        "",
        "| update alone | ms | added to clip_grad_norm_, ms, paired | median % of a whole step "
        "| mean % | worst % |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in found["updates"].items():
        lines.append(
            f"| {name} | {row['ms']} | {row['added_ms']} | {row['median_percent_of_step']:.2f} | "
            f"{row['mean_percent_of_step']:.2f} | {row['worst_added_percent_of_step']:.2f} |"
        )
    lines += ["", "| loop | call | p50 us | p99 us | max us |", "|---|---|---|---|---|"]
    for name, calls in found["calls"].items():
        lines += [f"| {name} | {call} | {_cells(us)} |" for call, us in calls.items()]
    lines += ["", "| server | guard.step p50 us | p99 us | max us |", "|---|---|---|---|"]
    lines += [f"| {k} | {_cells(us)} |" for k, us in found["guard_step_by_server"].items()]
    return "\n".join(lines) + "\n"


def _cells(us: dict[str, float]) -> str:
    return " | ".join(f"{us[key]:.0f}" for key in ("p50_us", "p99_us", "max_us"))


if __name__ == "__main__":
    main()
