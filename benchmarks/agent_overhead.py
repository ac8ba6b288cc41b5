"""What the agent costs a training step: `python -m benchmarks.agent_overhead [--quick] [--json]`.

The same loop bare, with `clip_grad_norm_`, with the agent, with everything at every step and with
three other guards, interleaved step by step in turning order; ratios are paired within a round.
Default device: CUDA in bf16 where there is one, after 1,000 steps under
`set_sync_debug_mode("error")`; else the CPU in fp32, where a reference
step takes some 13 s on 2 busy cores: 22 rounds, one snapshot and two slow steps among them, are
half an hour; `--rounds 4` is quick and misses both. Law: nothing measured is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch

from benchmarks.agent_overhead_loops import (
    LARGE,
    REFERENCE,
    SMALL,
    Loop,
    Size,
    bare,
    clipped,
    guarded,
    ratio_of_losses,
    sigma_in_optimizer,
    zclip_on_host,
)
from benchmarks.agent_overhead_servers import misbehaving
from benchmarks.machine import machine
from benchmarks.spread import Spread
from spikeguard.training_state import tree_bytes

ASKED: dict[str, Any] = {"slow_signals_every": 1, "layer_norms_every": 1}
TINY = Size(256, 32, 1, 2, 32, 1)  # for the servers: what counts there is the host's time
BAD = ("offline", "absent", "hung", "500", "429", "garbage", "full disk")


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50, p99 and maximum in microseconds."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50_us": cuts[49] * 1e6, "p99_us": cuts[98] * 1e6, "max_us": max(seconds) * 1e6}


def timed_step(loop: Loop, device: str) -> float:
    """Seconds of one step, the device's work included."""
    started = time.perf_counter()
    loop.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def interleaved(loops: dict[str, Loop], rounds: int, warm_up: int, device: str) -> Any:
    """Seconds by loop and round; each round starts with another loop."""
    names = list(loops)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        if number == warm_up:
            for loop in loops.values():
                loop.calls.clear()
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            spent = timed_step(loops[name], device)
            if number >= warm_up:
                seconds[name].append(spent)
    return seconds


def compare(size: Size, device: str, rounds: int, warm_up: int, folder: Path) -> dict[str, Any]:
    loops = {
        "bare": bare(size, device),
        "clip_grad_norm_": clipped(size, device),
        "agent": guarded(size, device, folder / "default"),
        "agent, everything every step": guarded(size, device, folder / "all", **ASKED),
        "ZClip, .item() a step": zclip_on_host(size, device),
        "ratio of losses (Lightning's rule)": ratio_of_losses(size, device),
        "6 sigma in the optimizer (OLMo's rule)": sigma_in_optimizer(size, device),
    }
    seconds = interleaved(loops, rounds, warm_up, device)
    floor = seconds["clip_grad_norm_"]
    rows = {}
    for name, spent in seconds.items():
        paired = [100.0 * (a / b - 1.0) for a, b in zip(spent, floor, strict=True)]
        rows[name] = {
            "ms": str(Spread.of([1e3 * s for s in spent])),
            "percent_over_clip": str(Spread.of(paired)),
            "mean_percent_over_clip": 100.0 * (sum(spent) / sum(floor) - 1.0),
            "worst_ms": 1e3 * max(spent),
            "calls": {n: percentiles(v) for n, v in loops[name].calls.items() if len(v) > 1},
        }
    guard = loops["agent"].guard
    assert guard is not None
    snapshot = tree_bytes(guard._p.recovery.live())
    faults = {n: loop.guard.faults for n, loop in loops.items() if loop.guard and loop.guard.faults}
    parameters = sum(p.numel() for p in loops["bare"].parameters)
    for loop in loops.values():
        loop.end()
    return {
        "parameters": parameters,
        "tokens_per_step": size.length * size.sequences,
        "snapshot_bytes_per_rank": snapshot,
        "faults": faults,
        "loops": rows,
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
        loops = {}
        for kind in BAD:
            local = kind in ("offline", "full disk")
            address = None if local else stack.enter_context(misbehaving(kind))
            loop = _tiny(folder / kind.replace(" ", "_"), address)
            if kind == "full disk":
                _fill(loop)
            loops[kind] = loop
        interleaved(loops, steps, 50, "cpu")
        found = {kind: percentiles(loop.calls["guard.step"]) for kind, loop in loops.items()}
        for loop in loops.values():
            loop.end()
    return found


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
    asked.add_argument("--rounds", type=int, help="steps of each loop")
    chosen = asked.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = SMALL if chosen.quick else LARGE if device == "cuda" else REFERENCE
    rounds = chosen.rounds or (40 if chosen.quick else 300 if device == "cuda" else 20)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        found: dict[str, Any] = {"machine": machine(), "device": name, "torch": torch.__version__}
        if device == "cuda":
            found["sync_debug"] = unsynced(size, folder / "sync")
        found |= compare(size, device, rounds, 2 if device == "cpu" else 30, folder)
        found["guard_step_by_server"] = against_servers(300 if chosen.quick else 2000, folder)
    sys.stdout.write(json.dumps(found, indent=1) + "\n" if chosen.json else table(found))


def table(found: dict[str, Any]) -> str:
    """The same in Markdown."""
    lines = [f"{found['device']}, {found['machine']}, torch {found['torch']}"]
    if "sync_debug" in found:
        lines.append(f"under set_sync_debug_mode('error'): {found['sync_debug']}")
    lines += [
        f"{found['parameters']:,} parameters, {found['tokens_per_step']:,} tokens a step, "
        f"snapshot {found['snapshot_bytes_per_rank']:,} bytes a rank, faults {found['faults']}",
        "",
        "| loop | ms a step | % over clip_grad_norm_, paired | mean % | worst ms |",
        "|---|---|---|---|---|",
    ]
    for name, row in found["loops"].items():
        lines.append(
            f"| {name} | {row['ms']} | {row['percent_over_clip']} | "
            f"{row['mean_percent_over_clip']:.2f} | {row['worst_ms']:.1f} |"
        )
    lines += ["", "| loop | call | p50 us | p99 us | max us |", "|---|---|---|---|---|"]
    for name, row in found["loops"].items():
        lines += [f"| {name} | {call} | {_cells(us)} |" for call, us in row["calls"].items()]
    lines += ["", "| server | guard.step p50 us | p99 us | max us |", "|---|---|---|---|"]
    lines += [f"| {k} | {_cells(us)} |" for k, us in found["guard_step_by_server"].items()]
    return "\n".join(lines) + "\n"


def _cells(us: dict[str, float]) -> str:
    return " | ".join(f"{us[key]:.0f}" for key in ("p50_us", "p99_us", "max_us"))


if __name__ == "__main__":
    main()
