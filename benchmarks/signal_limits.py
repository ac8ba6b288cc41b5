"""How far each signal is from the memory's bandwidth: what it takes beside bytes over bandwidth.

The reference loop stands still with gradients, parameters and Adam's moments in memory; every round
asks each signal's own code once and, turn about, for the fastest plain passes over one flat tensor
as large as the parameters: a read, a copy. The better of the two in that round is its bandwidth;
a signal's limit is its bytes over it. CPU time of one thread; on CUDA the device's, by events.
Law: bytes are those that must move, counted from the tensors, not those that an operator moves.

    python -m benchmarks.signal_limits [--quick] [--json]
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.agent_overhead_loops import LARGE, REFERENCE, SMALL, Loop, Size
from benchmarks.machine import machine
from benchmarks.spread import Spread
from spikeguard.measure.norms import (
    combine,
    each_norm,
    global_norm,
    own_norm,
    sampled_rows,
    second_moments,
)
from spikeguard.measure.update_norms import Moved, all_parameters, samples_of, unchanged
from spikeguard.settings import Settings
from spikeguard.state.training_state import TrainingState, host_copy, tree_bytes
from spikeguard.topology.job import Job
from spikeguard.topology.layout import Topology
from spikeguard.topology.replicas import bits_of

READ, COPY = "one read of a flat tensor", "one copy of a flat tensor"
SNAPSHOT, PINNED = "snapshot", "one copy of a flat tensor to the host"
PASSES_OF_AN_UPDATE = 6  # copy before (2), difference after (3), its norm (1)
PASSES_OF_A_SAMPLE = PASSES_OF_AN_UPDATE + 1  # and what it left unchanged
ROUNDS, FIRST = 20, 2  # rounds kept, and left out for first uses


@dataclass(frozen=True, slots=True)
class Pass:
    """Some work on memory and the bytes that it cannot do without."""

    name: str
    bytes: int
    work: Callable[[], object]
    over_the_link: bool = False  # between device and host


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """All of them once."""
    return sum(t.numel() * t.element_size() for t in tensors)


def plain_passes(size: int, device: str) -> list[Pass]:
    """The fastest ways through `size` bytes that torch offers."""
    flat = torch.ones(size // 4, device=device)
    into, host = torch.empty_like(flat), torch.empty(size // 4, pin_memory=device == "cuda")
    return [
        Pass(READ, size, lambda: flat.view(torch.int64).sum() if size % 8 == 0 else flat.sum()),
        Pass(COPY, 2 * size, lambda: into.copy_(flat)),
        Pass(PINNED, _linked(size, device), lambda: host.copy_(flat, non_blocking=True), True),
    ]


def _linked(size: int, device: str) -> int:
    """Over the host's link once; within host memory read and written."""
    return size if device == "cuda" else 2 * size


def signals(loop: Loop, device: str) -> list[Pass]:
    """What the agent measures, by its own code, on the state that `loop` holds."""
    trained = [p.detach() for p in loop.parameters]
    held = [p.grad for p in loop.parameters if p.grad is not None]
    moments = [*second_moments([loop.optimizer]).values()]
    share = Settings().update_sample_share
    every, samples = (
        all_parameters(loop.optimizer),
        samples_of([loop.model], [loop.optimizer], share),
    )
    rates = [group["lr"] for group in loop.optimizer.param_groups]
    job = Job((loop.model,), (loop.optimizer,), Topology())
    state = TrainingState(job).capture()
    kept = host_copy(state)
    weights = bytes_of(trained)
    return [
        Pass("grad_norm", bytes_of(held), lambda: global_norm(held)),
        Pass("grad_norm by layer", bytes_of(held), lambda: combine(each_norm(held))),
        Pass("param_norm", weights, lambda: own_norm(trained)),
        Pass("adam_v_norm", bytes_of(moments), lambda: own_norm(moments)),
        Pass("update_norm, exact", PASSES_OF_AN_UPDATE * weights, lambda: moved(every, rates)),
        Pass(
            "update_norm_sampled and unchanged parameters",
            PASSES_OF_A_SAMPLE * sampled_bytes(loop, share),
            lambda: (moved(samples[0], rates), unchanged(samples)),
        ),
        Pass("checksum of replicas", weights, lambda: bits_of(trained)),
        Pass(SNAPSHOT, _linked(tree_bytes(state), device), lambda: host_copy(state, kept), True),
    ]


def moved(measured: Moved, rates: Sequence[float]) -> Tensor | None:
    """Before and after a step that changes nothing: the same bytes move."""
    measured.before_step()
    return measured.after_step(rates)


def sampled_bytes(loop: Loop, share: float) -> int:
    """Of the rows that the sample takes."""
    named = dict(loop.model.named_parameters())
    rows = sampled_rows(list(named.items()), share)
    return bytes_of([named[name][:count] for name, count in rows])


def clock(device: str) -> Callable[[Callable[[], object]], float]:
    """Seconds of some work."""
    return _on_device if device == "cuda" else _on_host


def _on_host(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _on_device(work: Callable[[], object]) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def measure(size: Size, device: str, rounds: int) -> dict[str, Any]:
    """Seconds of each pass by round, and how many times its limit that is."""
    loop = Loop(size, device)
    loop.hold_gradients()
    loop.step_on_held()  # Adam's moments exist from here on; the gradients are set anew
    loop.hold_gradients()
    passes = [*plain_passes(bytes_of(loop.parameters), device), *signals(loop, device)]
    seconds: Mapping[str, list[float]] = defaultdict(list)
    taken = clock(device)
    for number in range(FIRST + rounds):
        for one in passes[number % len(passes) :] + passes[: number % len(passes)]:
            seconds[one.name].append(taken(one.work))
    return shown(passes, {name: values[FIRST:] for name, values in seconds.items()})


def shown(passes: Sequence[Pass], seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Milliseconds, limits and distances; both limits round by round, so that neighbours cancel."""
    by_name = {one.name: one for one in passes}
    rates = {n: [one.bytes / s for s in seconds[n]] for n, one in by_name.items()}
    inside = [max(pair) for pair in zip(rates[READ], rates[COPY], strict=True)]
    linked = rates[PINNED]
    rows = []
    for one in passes:
        at = linked if one.over_the_link else inside
        times = [bandwidth / own for bandwidth, own in zip(at, rates[one.name], strict=True)]
        limits = [1e3 * one.bytes / bandwidth for bandwidth in at]
        rows.append(
            {
                "what": one.name,
                "bytes": one.bytes,
                "limit_ms": str(Spread.of(limits)),
                "ms": str(Spread.of([1e3 * s for s in seconds[one.name]])),
                "times_the_limit": str(Spread.of(times)),
            }
        )
    return {
        "gigabytes_per_second": str(Spread.of([rate / 1e9 for rate in inside])),
        "link_gigabytes_per_second": str(Spread.of([rate / 1e9 for rate in linked])),
        "rows": rows,
    }


def table(found: Mapping[str, Any]) -> str:
    """The same in Markdown."""
    lines = [
        f"{found['device']}, {found['machine']}, torch {found['torch']}, one thread",
        f"{found['parameters']:,} parameters, {found['rounds']} rounds; "
        f"{found['gigabytes_per_second']} GB/s in memory, "
        f"{found['link_gigabytes_per_second']} GB/s to the host",
        "",
        "| what | MB that must move | limit, ms | taken, ms | times the limit |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['what']} | {row['bytes'] / 1e6:.1f} | {row['limit_ms']} | {row['ms']} "
        f"| {row['times_the_limit']} |"
        for row in found["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true", help="a small model, 5 rounds")
    asked.add_argument("--json", action="store_true")
    chosen = asked.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    whole = LARGE if device == "cuda" else REFERENCE
    size, rounds = (SMALL, 5) if chosen.quick else (whole, ROUNDS)
    found: dict[str, Any] = {"machine": machine(), "device": device, "torch": torch.__version__}
    found["rounds"] = rounds
    found["parameters"] = sum(p.numel() for p in Loop(size, device).parameters)
    found |= measure(size, device, rounds)
    sys.stdout.write(json.dumps(found, indent=1) + "\n" if chosen.json else table(found))


if __name__ == "__main__":
    main()
