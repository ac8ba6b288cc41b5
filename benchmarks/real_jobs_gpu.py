"""Training loops as people write them for a GPU, each with the lines that spikeguard adds.

`python -m benchmarks.real_jobs --gpu` runs them. Each trains the same small model with dropout, so
that the device's random numbers count, and with torch's deterministic algorithms, so that two runs
of the same steps have the same bits. What differs is the precision, how the update is made, and who
owns the loop. Without a GPU they run on the CPU: to try them, not to measure.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import spikeguard
from benchmarks.real_jobs_kinds import LR, SPARE, checkpoints_of, items_of, two_optimizers
from benchmarks.real_jobs_text import CONTEXT, ROWS, Items, Plan
from spikeguard_trainer.model import Shape, Transformer

SHAPE = Shape(width=64, layers=2, heads=2, hidden=176, context=CONTEXT)
DROPPED = 0.05
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


class Language(nn.Module):
    """The reference model behind dropout of its embedding."""

    def __init__(self, shape: Shape = SHAPE) -> None:
        super().__init__()
        self.inner = Transformer(shape)
        self.dropout = nn.Dropout(DROPPED)
        self.inner.embedding.register_forward_hook(lambda _, __, out: self.dropout(out))

    def forward(self, rows: Tensor) -> Tensor:
        loss: Tensor = self.inner(rows[:, :-1], rows[:, 1:])
        return loss


@dataclass(frozen=True, slots=True)
class Kind:
    """How one loop trains."""

    title: str
    weights: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    optimizer: Callable[[nn.Module], list[torch.optim.Optimizer]] = lambda model: [
        torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    ]
    compiled: str = ""  # the mode of torch.compile
    graphed: bool = False  # the passes are captured as CUDA graphs
    sharded: bool = False
    offloaded: bool = False  # shards, moments and the update lie on the CPU
    replicated: bool = False
    by_sync: bool = False


def _foreach(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=LR)]


def _capturable(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=LR, fused=True, capturable=True)]


KINDS = {
    "bf16": Kind("bf16 weights, fused AdamW", weights=torch.bfloat16),
    "autocast": Kind("fp32 weights, autocast to bf16, fused AdamW", autocast=torch.bfloat16),
    "compiled": Kind(
        "torch.compile, autocast to bf16", autocast=torch.bfloat16, compiled="default"
    ),
    "graphs": Kind(
        "torch.compile, reduce-overhead", autocast=torch.bfloat16, compiled="reduce-overhead"
    ),
    "captured": Kind(
        "passes captured as CUDA graphs, AdamW capturable",
        torch.float32,
        torch.bfloat16,
        _capturable,
        graphed=True,
    ),
    "foreach": Kind("AdamW as it is made by default", torch.float32, torch.bfloat16, _foreach),
    "by_sync": Kind(
        "AdamW as it is made by default, skip_by_sync=True",
        torch.float32,
        torch.bfloat16,
        _foreach,
        by_sync=True,
    ),
    "fp16": Kind("fp16 and GradScaler, fused AdamW", autocast=torch.float16),
    "muon": Kind("AdamW + Muon", torch.float32, torch.bfloat16, two_optimizers),
    "fsdp2": Kind("FSDP2 in bf16, checkpointed activations, one rank", sharded=True),
    "offloaded": Kind("FSDP2 in bf16 with CPU offload", sharded=True, offloaded=True),
    "ddp": Kind("DDP over gloo, two ranks on the GPU", autocast=torch.bfloat16, replicated=True),
}


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def loop(plan: Plan, kind: Kind) -> None:
    """A loop of one's own."""
    here = device()
    net: Any = Language().to(here, kind.weights)
    if kind.sharded:
        _shard(net, kind.offloaded)
    optimizers = kind.optimizer(net)
    scaler = torch.amp.GradScaler(here.type) if kind.autocast is torch.float16 else None
    precision: Any = nullcontext()
    if kind.autocast is not None:
        precision = torch.autocast(here.type, kind.autocast, cache_enabled=not kind.graphed)
    model = nn.parallel.DistributedDataParallel(net) if kind.replicated else net
    if kind.graphed and here.type == "cuda":
        with precision:
            rows = torch.zeros(ROWS, CONTEXT + 1, dtype=torch.int64, device=here)
            model = torch.cuda.make_graphed_callables(net, (rows,))
    guard = spikeguard.attach(  # +
        model,
        optimizers if len(optimizers) > 1 else optimizers[0],
        run="row",
        state=[scaler] if scaler else [],  # as docs/attach.md asks for
        checkpoints=checkpoints_of(plan),
        settings=spikeguard.Settings(skip_by_sync=kind.by_sync),
    )
    guard.resume()  # +
    model = torch.compile(model, mode=kind.compiled) if kind.compiled else model
    items = items_of(plan)  # +
    for batch in guard.batches(items):  # +
        rows = batch.pin_memory() if here.type == "cuda" else batch
        with precision:
            loss = guard.loss(model(rows.to(here, non_blocking=True)))  # +
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizers[0])
        guard.clip_grad_norm_(1.0)  # +
        for optimizer in optimizers:
            scaler.step(optimizer) if scaler else optimizer.step()
            optimizer.zero_grad()
        if scaler:
            scaler.update()
        guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


def _shard(net: Language, offloaded: bool) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if offloaded else OffloadPolicy()
    blocks = net.inner.blocks
    for number, block in enumerate(blocks):
        blocks[number] = checkpoint_wrapper(block)
        fully_shard(blocks[number], mp_policy=precision, offload_policy=offload)
    fully_shard(net, mp_policy=precision, offload_policy=offload)


def fabric(plan: Plan) -> None:
    """Lightning Fabric in 16-mixed, by a scaler that is given to it."""
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    here = device()
    scaler = torch.amp.GradScaler(here.type)
    owner = Fabric(
        accelerator="auto", devices=1, plugins=MixedPrecision("16-mixed", here.type, scaler)
    )
    net = Language()
    model, optimizer = owner.setup(net, torch.optim.AdamW(net.parameters(), lr=LR, fused=True))
    guard = spikeguard.attach(  # +
        model, optimizer, run="row", state=[scaler], checkpoints=checkpoints_of(plan)
    )
    guard.resume()  # +
    items = items_of(plan)  # +
    for batch in guard.batches(items):  # +
        owner.backward(guard.loss(model(owner.to_device(batch))))  # +
        scaler.unscale_(optimizer.optimizer)  # +
        guard.clip_grad_norm_(1.0)  # +
        optimizer.step()
        optimizer.zero_grad()
        guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


def hugging_face(plan: Plan) -> None:
    """Trainer in fp16, with dropout, two micro-batches a step."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from spikeguard.integrations.hugging_face import watch  # +

    rows = Items(plan, 2 * (plan.steps + SPARE), micro=2)
    data: Any = [{"input_ids": rows[n], "labels": rows[n]} for n in range(len(rows))]
    tiny = {"vocab_size": 256, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2}
    trainer = Trainer(
        GPT2LMHeadModel(GPT2Config(**tiny, attn_implementation="eager")),
        TrainingArguments(
            output_dir=plan.out,
            max_steps=plan.steps,
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=2,
            learning_rate=LR,
            save_steps=plan.checkpoint_every,
            logging_steps=1_000,
            train_sampling_strategy="sequential",
            fp16=device().type == "cuda",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=data,
    )
    watched = watch(trainer, run="row")  # +
    trainer.train(resume_from_checkpoint=watched.checkpoint())  # +


def lightning(plan: Plan) -> None:
    """Lightning in 16-mixed."""
    from lightning.pytorch import LightningModule, Trainer

    from spikeguard.integrations.lightning import Watched  # +

    class Lit(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Language()

        def training_step(self, rows: Tensor, _: int) -> Tensor:
            loss: Tensor = self.net(rows)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=LR, fused=True)

    watched = Watched(Path(plan.out) / "checkpoints", every=plan.checkpoint_every, run="row")  # +
    trainer = Trainer(
        callbacks=[watched],  # +
        max_steps=plan.steps,
        accelerator="auto",
        devices=1,
        precision="16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    rows = DataLoader(Items(plan, plan.steps + SPARE), batch_size=ROWS, pin_memory=True)
    trainer.fit(Lit(), watched.loader(rows), ckpt_path=watched.checkpoint())  # +


def accelerate(plan: Plan) -> None:
    """Accelerate in fp16, two micro-batches a step."""
    from accelerate import Accelerator

    from spikeguard.integrations.accelerate import attach  # +

    accelerator = Accelerator(
        mixed_precision="fp16" if device().type == "cuda" else "no", gradient_accumulation_steps=2
    )
    model: Any = Language()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    loader: Any = DataLoader(Items(plan, 2 * (plan.steps + SPARE), micro=2), batch_size=ROWS)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    guard = attach(  # +
        accelerator, model, optimizer, run="row", checkpoints=checkpoints_of(plan)
    )
    guard.resume()  # +
    for batch in guard.batches(loader):  # +
        with accelerator.accumulate(model):
            loss = guard.loss(model(batch))  # +
            accelerator.backward(loss)
            guard.clip_grad_norm_(1.0)  # +
            optimizer.step()
            optimizer.zero_grad()
            guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


def _own(kind: Kind) -> Callable[[Plan], None]:
    return lambda plan: loop(plan, kind)


LOOPS: dict[str, Callable[[Plan], None]] = {
    **{f"gpu_{name}": _own(kind) for name, kind in KINDS.items()},
    "gpu_hugging_face": hugging_face,
    "gpu_lightning": lightning,
    "gpu_fabric": fabric,
    "gpu_accelerate": accelerate,
}
