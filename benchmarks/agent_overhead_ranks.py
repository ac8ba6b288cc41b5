"""What the agent costs a rank of a sharded job (FSDP2), and whether the host ever waits in it.

    torchrun --standalone --nproc-per-node=8 -m benchmarks.agent_overhead_ranks [--quick]

Every rank trains the reference of `agent_overhead` over `fully_shard`ed layers: bf16 and NCCL on
GPUs, fp32 and gloo without. On GPUs first with the agent under `set_sync_debug_mode("error")`: any
wait for the device raises. Then steps of the same loop with torch's own clipping and with the
agent, in turns; rank 0 prints what each call takes of the host, and a whole step of the device.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from benchmarks.agent_overhead import interleaved, unsynced
from benchmarks.agent_overhead_loops import LARGE, REFERENCE, SMALL, Loop, Size
from spikeguard import Settings, attach

CALLS = ("clip", "optimizer", "guard.step")


def sharded(model: nn.Module) -> None:
    """Layer by layer over all ranks."""
    for layer in model.blocks:  # type: ignore[union-attr]
        fully_shard(layer)
    fully_shard(model)


def clipped(size: Size, device: str) -> Loop:
    """By torch's own function."""
    loop = Loop(size, device, wrap=sharded)
    loop.clip = lambda: nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
    return loop


def guarded(size: Size, device: str, folder: Path) -> Loop:
    """By the agent's."""
    loop = Loop(size, device, wrap=sharded)
    settings = Settings(flush_s=0.5)
    guard = attach(loop.model, loop.optimizer, run="ranks", directory=folder, settings=settings)
    loop.watch(guard)
    return loop


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true", help="a small model, fewer steps")
    quick = asked.parse_args().quick
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    size = SMALL if quick else LARGE if device == "cuda" else REFERENCE
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) if dist.get_rank() == 0 else None
        shared: list[Any] = [str(folder)]
        dist.broadcast_object_list(shared)
        loops = {"clip_grad_norm_": clipped(size, device)}
        loops["agent"] = guarded(size, device, Path(shared[0]))
        told = {}
        if device == "cuda":
            told["faults under sync debug mode"] = unsynced(loops["agent"], 100 if quick else 1000)
        interleaved({name: loop.step for name, loop in loops.items()}, 5, device)
        for loop in loops.values():
            loop.calls.clear()
        steps = {name: loop.step for name, loop in loops.items()}
        spent = interleaved(steps, 20 if quick else 300, device)
        assert loops["agent"].guard is not None
        told["faults"] = loops["agent"].guard.faults
        for loop in loops.values():
            loop.end()
        dist.barrier()
    if dist.get_rank() == 0:
        ratios = [
            a.wall / b.wall for a, b in zip(spent["agent"], spent["clip_grad_norm_"], strict=True)
        ]
        lines = [f"{dist.get_world_size()} ranks, {device}, {dist.get_backend()}: {told}"]
        lines += [
            f"{name}: a step {1e3 * median(s.wall for s in spent[name]):.1f} ms; of the host, us: "
            + ", ".join(f"{c} {1e6 * median(loop.calls[c]):.0f}" for c in CALLS if loop.calls[c])
            for name, loop in loops.items()
        ]
        lines.append(f"a step with the agent over one without, paired: {median(ratios):.3f}")
        sys.stdout.write("\n".join(lines) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
