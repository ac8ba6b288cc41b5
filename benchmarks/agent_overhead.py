"""What the agent costs a training step: `python -m benchmarks.agent_overhead [--quick]`.

The same loop bare, with `clip_grad_norm_`, with the agent, with everything at every step and with
three other guards, interleaved step by step in turning order; ratios are paired within a round.
Whole steps first, then the update alone on gradients that are kept: only there does a guard work,
and what it adds is not lost in the noise of forward and backward; that difference is also given as
a percentage of the whole step. Then `guard.step` beside eight kinds of server, one job a process
(`agent_overhead_jobs`). In fp32 on the CPU, where a whole step of the reference takes some ten
seconds: four loops of them, and updates of all; the same on a GPU is a part of `benchmarks.gpu`.
One thread computes and differences are taken in CPU time of the whole process, the agent's threads
included: what neighbours on the machine do to the clock is not in them. Law: nothing measured is
left out; the updates hold every cadence (a snapshot each 20 steps, each slow signal once in 10) and
begin when the ring of snapshots is full, as a long run's are.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch

from benchmarks.agent_overhead_jobs import against_servers
from benchmarks.agent_overhead_loops import (
    REFERENCE,
    SMALL,
    Loop,
    Size,
    bare,
    clipped,
    guarded,
    sigma_in_optimizer,
    spike_detection,
    zclip_on_host,
)
from benchmarks.report import Spread, command_line, machine, show
from spikeguard.state.replicated_parts import tree_bytes

ASKED: dict[str, Any] = {"slow_signals_every": 1}
CLIP = "clip_grad_norm_"
AGENT = "agent"
CYCLE = 20  # steps after which every cadence has come round


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: of whole steps, of updates and beside servers, each so long at most."""

    loops: int  # of which whole steps are made
    rounds: int
    updates: int  # a multiple of CYCLE
    server_steps: int
    server_turns: int
    budget_s: float


class Spent(NamedTuple):
    """Seconds of one step: by the clock, and those that differences are taken of."""

    wall: float
    own: float  # CPU time of all threads; with a GPU the clock's


def timed(step: Callable[[], None], device: str) -> Spent:
    """One step, the device's work included."""
    began, began_own = time.perf_counter(), time.process_time()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    own, wall = time.process_time() - began_own, time.perf_counter() - began
    return Spent(wall, wall if device == "cuda" else own)


def interleaved(
    steps: dict[str, Callable[[], None]],
    rounds: int,
    device: str,
    budget_s: float = math.inf,
    unit: int = 1,
) -> dict[str, list[Spent]]:
    """What was spent by loop and round; each round starts with another loop.

    At most `rounds`, fewer where they would take longer than `budget_s`, but whole units of them.
    """
    names = list(steps)
    seconds: dict[str, list[Spent]] = {name: [] for name in names}
    began = time.monotonic()
    for number in range(rounds):
        if number and number % unit == 0 and time.monotonic() - began > budget_s:
            break
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            seconds[name].append(timed(steps[name], device))
    return seconds


def all_loops(size: Size, device: str, folder: Path) -> dict[str, Loop]:
    """By name."""
    return {
        "bare": bare(size, device),
        CLIP: clipped(size, device),
        AGENT: guarded(size, device, folder / "default"),
        "agent, everything every step": guarded(size, device, folder / "all", **ASKED),
        "ZClip, .item() a step": zclip_on_host(size, device),
        "SpikeDetection (Lightning)": spike_detection(size, device, folder),
        "6 sigma in the optimizer (OLMo's rule)": sigma_in_optimizer(size, device),
    }


def compare(size: Size, device: str, plan: Plan, folder: Path) -> dict[str, Any]:
    """Whole steps of the first `plan.loops` loops, then updates of all."""
    loops = all_loops(size, device, folder)
    guard = loops[AGENT].guard
    assert guard is not None
    steps = {n: loops[n].step for n in list(loops)[: plan.loops]}
    interleaved(steps, 30 if device == "cuda" else 1, device)
    seconds = interleaved(steps, plan.rounds, device, plan.budget_s)
    for loop in loops.values():
        loop.hold_gradients()
    held = {name: loop.step_on_held for name, loop in loops.items()}
    interleaved(held, 2, device)
    watched = {name: step for name, step in held.items() if loops[name].guard is not None}
    until_full = CYCLE * (guard._p.settings.snapshots + 1) - guard.steps
    interleaved(watched, max(0, until_full), device)
    alone = interleaved(held, plan.updates, device, plan.budget_s, unit=CYCLE)
    step_s = median(spent.own for spent in seconds[CLIP])
    found = {
        "parameters": sum(p.numel() for p in loops[CLIP].parameters),
        "tokens_per_step": size.length * size.sequences,
        "snapshot_bytes_per_rank": tree_bytes(guard._p.recovery.live()),
        "faults": {n: x.guard.faults for n, x in loops.items() if x.guard and x.guard.faults},
        "whole_steps": {n: whole(s, seconds[CLIP]) for n, s in seconds.items()},
        "updates": {n: _update(s, alone[CLIP], step_s) for n, s in alone.items()},
    }
    for loop in loops.values():
        loop.end()
    return found


def whole(spent: list[Spent], floor: list[Spent]) -> dict[str, Any]:
    """Whole steps of one loop, paired with those of `floor`."""
    paired = [100.0 * (a.own / b.own - 1.0) for a, b in zip(spent, floor, strict=True)]
    return {
        "ms": str(Spread.of([1e3 * s.own for s in spent])),
        "percent_over_clip": str(Spread.of(paired)),
        "mean_percent_over_clip": fmean(paired),
        "worst_ms_by_the_clock": 1e3 * max(s.wall for s in spent),
    }


def _update(spent: list[Spent], floor: list[Spent], step_s: float) -> dict[str, Any]:
    """What is added to an update; the mean holds the steps with slow signals and snapshots."""
    added = [a.own - b.own for a, b in zip(spent, floor, strict=True)]
    return {
        "ms": str(Spread.of([1e3 * s.own for s in spent])),
        "added_ms": str(Spread.of([1e3 * s for s in added])),
        "mean_added_ms": 1e3 * fmean(added),
        "median_percent_of_step": 100.0 * median(added) / step_s,
        "mean_percent_of_step": 100.0 * fmean(added) / step_s,
        "worst_added_percent_of_step": 100.0 * max(added) / step_s,
    }


def main() -> None:
    options = command_line("agent_overhead", __doc__, "a small model, fewer steps").parse_args()
    size, plan = REFERENCE, Plan(4, 15, 5 * CYCLE, 1_000, 20, 420.0)
    if options.quick:
        size, plan = SMALL, Plan(7, CYCLE, 3 * CYCLE, 40, 2, 35.0)
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        found: dict[str, Any] = {"machine": machine(), "torch": torch.__version__}
        found |= compare(size, "cpu", plan, folder)
        found["guard_step_by_server"] = against_servers(
            plan.server_steps, plan.server_turns, plan.budget_s, folder
        )
    found["took_s"] = time.monotonic() - began
    show(found, options)


if __name__ == "__main__":
    main()
