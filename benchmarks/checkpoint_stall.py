"""How long the loop stands still for a checkpoint: beside the loop, waited for, and `torch.save`.

One process, a model of fp32 matrices with AdamW's moments, the same state for all three, in turns;
wall time until the call returns. Beside the loop it is one copy in host memory; then the state is
written by a thread, whose own time until the checkpoint is whole is told too. CPU time stands
beside it, which neighbours on the machine change less: of the loop's thread, and of the process.
    python -m benchmarks.checkpoint_stall [--quick] [--json]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.machine import machine
from benchmarks.spread import Spread
from spikeguard import CheckpointDirectory, Guard, Settings, attach

SIDE = 1024  # of each matrix: 1 M parameters, 12 MB with moments
BESIDE, WAITED, SAVE = "beside the loop", "waited for", "torch.save and fsync"
WHOLE = "beside the loop, until whole"
THREAD_CPU, PROCESS_CPU = "beside the loop, CPU of its thread", "until whole, CPU of the process"
WAYS = (BESIDE, THREAD_CPU, WHOLE, PROCESS_CPU, WAITED, SAVE)


def measure(options: Namespace) -> dict[str, Any]:
    """Seconds of each way, and how large the state is."""
    matrices, turns = (8, 5) if options.quick else (24, 11)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(matrices)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(2, SIDE)).square().mean().backward()
    optimizer.step()
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        kept = CheckpointDirectory(Path(folder) / "kept", every=0, keep=1, healthy_after=0)
        settings = Settings(snapshot_every=0, exact_update_bytes=0)
        guard = attach(
            model, optimizer, run="stall", checkpoints=kept, settings=settings, directory=folder
        )
        for turn in range(turns + 1):  # the first makes the buffers
            found = _turn(guard, model, optimizer, Path(folder) / "plain.pt")
            for name, value in found.items() if turn else ():
                seconds[name].append(value)
        guard.finish()
    size = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
    spreads = {name: _plain(values) for name, values in seconds.items()}
    ratio = [b / w for b, w in zip(seconds[BESIDE], seconds[WAITED], strict=True)]
    return {**spreads, "beside / waited": _plain(ratio), "bytes": size, "machine": machine()}


def _turn(
    guard: Guard, model: nn.Module, optimizer: torch.optim.Optimizer, path: Path
) -> dict[str, float]:
    recovery, progress = guard._p.recovery, guard._p.progress
    progress.steps += 1
    began, of_process, of_thread = time.perf_counter(), time.process_time(), time.thread_time()
    beside = _timed(recovery.begin_checkpoint)
    of_thread = time.thread_time() - of_thread
    while recovery.settle(0.001) is None:
        pass
    whole, of_process = time.perf_counter() - began, time.process_time() - of_process
    progress.steps += 1
    waited = _timed(recovery.checkpoint)
    saved = _timed(lambda: _save([model.state_dict(), optimizer.state_dict()], path))
    found = (beside, of_thread, whole, of_process, waited, saved)
    return dict(zip(WAYS, found, strict=True))


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _save(state: Any, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _plain(values: Sequence[float]) -> dict[str, float]:
    spread = Spread.of(values)
    assert spread is not None
    return asdict(spread)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.checkpoint_stall", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the state, five turns")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    found = measure(options := parser.parse_args(arguments))
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{found['bytes'] / 1e6:.0f} MB of weights and moments")
    for name in WAYS:
        some = found[name]
        low, mid, high = (1e3 * some[k] for k in ("least", "median", "most"))
        print(f"{name:36} {mid:8.1f} ms ({low:.1f} to {high:.1f}, n={some['count']})")
    share = found["beside / waited"]
    low, mid, high = (share[k] for k in ("least", "median", "most"))
    print(f"{'beside / waited':36} {mid:8.3f} ({low:.3f} to {high:.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
