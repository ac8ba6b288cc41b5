"""Hugging Face's Trainer over sharded parameters: what is told is the norm before clipping.

Accelerate starts FSDP on GPUs alone; all that is done here instead of it is to say that it did.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from spikeguard import Forward

from ..ranks import named, play

SHARDED = {"version": 2, "auto_wrap_policy": "NO_WRAP", "cpu_ram_efficient_loading": False}
STEPS, LIMIT = 2, 0.05


def shard_on_cpus() -> None:
    """As Accelerate does on GPUs."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    plain: Any = AcceleratorState.__init__

    def begin(state: Any, *given: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        plain(state, *given, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None:
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = begin


def trained(folder: Path, _rank: int, _: int) -> dict[str, Any]:
    """The example's model and data, sharded; each step's norm of the whole gradient beside it."""
    os.environ |= {"ACCELERATE_USE_CPU": "1"}
    sys.path.insert(0, str(Path(__file__).parents[3] / "examples/hugging_face"))
    import hugging_face_trainer as example
    from transformers import Trainer, TrainingArguments

    from spikeguard.integrations import hugging_face

    shard_on_cpus()
    made = example.make_trainer(folder, STEPS)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        max_grad_norm=LIMIT,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        fsdp=True,
        fsdp_config=SHARDED,
    )
    trainer = Trainer(made.model, arguments, train_dataset=made.train_dataset)
    plain, norms, seen = trainer.training_step, list[float](), list[list[float]]()

    def step(*given: Any, **named: Any) -> torch.Tensor:
        loss: torch.Tensor = plain(*given, **named)
        whole = [p.grad.full_tensor() for p in trainer.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([grad.norm() for grad in whole]).norm()))
        return loss

    trainer.training_step = step
    names = ("train/grad_norm_raw", "train/grad_norm_clipped")
    forward = Forward(lambda values, _: seen.append([values[name] for name in names]))
    watched = hugging_face.watch(trainer, run="test", forward=forward)
    trainer.train()
    assert watched.guard is not None
    sharded = all(isinstance(p, DTensor) for p in trainer.model.parameters())
    told = {"sharded": sharded, "norms": norms, "seen": seen}
    return {**told, "faults": watched.guard.faults}


def test_the_norm_before_clipping_is_seen_under_fsdp2(tmp_path: Path) -> None:
    """That of all shards, which are clipped to the limit."""
    ranks = [rank["trained"] for rank in play(tmp_path, 2, named(trained))]
    for told in ranks:
        assert told["sharded"]
        assert told["faults"] == {}
        assert min(told["norms"]) > 10 * LIMIT
    raw, clipped = zip(*ranks[0]["seen"], strict=True)
    assert list(raw) == pytest.approx(ranks[0]["norms"], rel=1e-4)
    assert list(clipped) == pytest.approx([LIMIT] * STEPS)
