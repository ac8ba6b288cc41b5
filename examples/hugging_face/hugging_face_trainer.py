"""Hugging Face Trainer. Run it until it is done, since a rollback ends it with status 76:

until python hugging_face_trainer.py OUT; do [ $? -eq 76 ] || break; done
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from spikeguard.integrations.hugging_face import Watched, watch

TINY: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


def make_data(rows: int) -> list[dict[str, torch.Tensor]]:
    """Counting modulo 64 from random starts, 16 tokens a row."""
    starts = torch.randint(64, (rows, 1), generator=torch.Generator().manual_seed(1))
    tokens = (starts + torch.arange(16)) % 64
    return [{"input_ids": row, "labels": row} for row in tokens]


def make_trainer(out: Path, steps: int = 30) -> Trainer:
    """A trainer as anybody has one."""
    torch.manual_seed(0)
    return Trainer(
        LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=2, **TINY)),
        TrainingArguments(
            output_dir=str(out),
            max_steps=steps,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            learning_rate=3e-3,
            optim="adamw_torch_fused",  # can drop an update that is not finite
            save_steps=10,
            logging_steps=10,
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=make_data(16 * (steps + 10)),  # some to spare for what is left out
    )


def train(out: Path) -> Watched:
    """Two lines more than without spikeguard."""
    trainer = make_trainer(out)
    watched = watch(trainer, run="example-hugging-face")
    trainer.train(resume_from_checkpoint=watched.checkpoint())
    return watched


if __name__ == "__main__":
    train(Path(sys.argv[1]))
