"""Hugging Face's Trainer under FSDP2 on two ranks, watched.

Accelerate starts FSDP on GPUs alone; all that is done here instead of it is to say that it did.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainingArguments

from spikeguard import Forward
from spikeguard.integrations import hugging_face

sys.path.insert(0, str(Path(__file__).parents[3] / "examples/hugging_face"))
import hugging_face_trainer as example

SHARDED = {"version": 2, "auto_wrap_policy": "NO_WRAP", "cpu_ram_efficient_loading": False}


def shard_on_cpus() -> None:
    """As Accelerate does on GPUs."""
    plain: Any = AcceleratorState.__init__

    def begin(state: Any, *given: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        plain(state, *given, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None:
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = begin


class Measured(Trainer):  # type: ignore[misc]
    """Takes the norm of the whole gradient by itself, as each step's last pass leaves it."""

    def training_step(self, *given: Any, **named: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*given, **named)
        whole = [p.grad.full_tensor() for p in self.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([grad.norm() for grad in whole]).norm()))
        return loss


def make_trainer(out: Path, steps: int, limit: float) -> Trainer:
    """The example's model and data, sharded."""
    trainer = example.make_trainer(out, steps)
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=8,
        max_grad_norm=limit,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        fsdp=True,
        fsdp_config=SHARDED,
    )
    return Measured(trainer.model, arguments, train_dataset=trainer.train_dataset)


norms: list[float] = []


def main(plan: dict[str, Any]) -> None:
    """What one rank of a test does."""
    folder, rank = Path(plan["folder"]), str(plan["rank"])
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": plan["port"]}
    torch.set_num_threads(1)
    shard_on_cpus()
    seen: list[list[float]] = []
    trainer = make_trainer(folder, plan["steps"], plan["limit"])
    names = ("train/grad_norm_raw", "train/grad_norm_clipped")
    forward = Forward(lambda values, _: seen.append([values[name] for name in names]))
    watched = hugging_face.watch(trainer, run="test", forward=forward)
    trainer.train()
    assert watched.guard is not None
    told = {
        "sharded": all(isinstance(p, DTensor) for p in trainer.model.parameters()),
        "norms": norms,
        "seen": seen,
        "faults": watched.guard.faults,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "rank":
    main(globals()["PLAN"])
