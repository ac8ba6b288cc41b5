"""Training loops as people write them, each with the lines that spikeguard adds marked `# +`.

`python -m benchmarks.real_jobs_loops NAME` runs one under the plan in the environment. The marks
are counted: what a reader has to add is what stands here.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import spikeguard
from benchmarks import real_jobs_gpu as gpu, real_jobs_kinds as kinds
from benchmarks.real_jobs_probe import install
from benchmarks.real_jobs_text import CONTEXT, ROWS, Items, Plan, item_at
from spikeguard_trainer.model import Shape, Transformer
from spikeguard_trainer.schedule import lr_share

LR = kinds.LR
SHAPE = Shape(width=32, layers=2, heads=2, hidden=88, context=CONTEXT)
SPARE = kinds.SPARE
WARMUP = 20  # steps


def rank_and_ranks() -> tuple[int, int]:
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def schedule(optimizer: Any, plan: Plan) -> Any:
    """Warm-up and a cosine, by the step alone."""
    share = torch.optim.lr_scheduler.LambdaLR
    return share(optimizer, lambda step: lr_share(step, warmup=WARMUP, total=plan.steps))


def accelerate_loop(plan: Plan) -> None:
    """Accelerate, two micro-batches a step."""
    from accelerate import Accelerator

    from spikeguard.integrations.accelerate import attach  # +

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = Transformer(SHAPE)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    loader: Any = DataLoader(Items(plan, 2 * (plan.steps + SPARE), micro=2), batch_size=ROWS)
    scheduler = schedule(optimizer, plan)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    checkpoints = spikeguard.CheckpointDirectory(  # +
        Path(plan.out) / "checkpoints", every=plan.checkpoint_every
    )
    guard = attach(  # +
        accelerator, model, optimizer, run="row", scheduler=scheduler, checkpoints=checkpoints
    )
    guard.resume()  # +
    for batch in guard.batches(loader):  # +
        guard.tokens(batch)  # +
        with accelerator.accumulate(model):
            loss = guard.loss(model(batch[:, :-1], batch[:, 1:]))  # +
            accelerator.backward(loss)
            guard.clip_grad_norm_(1.0)  # +
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                scheduler.step()
            guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


def hugging_face_trainer(plan: Plan) -> None:
    """Trainer with a Llama of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from spikeguard.integrations.hugging_face import watch  # +

    torch.manual_seed(0)
    tiny = {"hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2}
    rows = Items(plan, plan.steps + SPARE)
    data: Any = [{"input_ids": rows[n], "labels": rows[n]} for n in range(len(rows))]
    trainer = Trainer(
        LlamaForCausalLM(LlamaConfig(vocab_size=256, num_attention_heads=2, **tiny)),
        TrainingArguments(
            output_dir=plan.out,
            max_steps=plan.steps,
            per_device_train_batch_size=ROWS,
            learning_rate=LR,
            lr_scheduler_type="cosine",
            warmup_steps=WARMUP,
            save_steps=plan.checkpoint_every,
            logging_steps=1_000,
            train_sampling_strategy="sequential",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=data,
    )
    watched = watch(trainer, run="row")  # +
    trainer.train(resume_from_checkpoint=watched.checkpoint())  # +


def lightning_trainer(plan: Plan) -> None:
    """Lightning with automatic optimization, and dropout."""
    from lightning.pytorch import LightningModule, Trainer

    from spikeguard.integrations.lightning import Watched  # +

    class Language(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = gpu.Language(SHAPE)

        def training_step(self, rows: Tensor, _: int) -> Tensor:
            loss: Tensor = self.net(rows)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=LR, fused=True)
            each = {"scheduler": schedule(optimizer, plan), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": each}

    watched = Watched(Path(plan.out) / "checkpoints", every=plan.checkpoint_every, run="row")  # +
    trainer = Trainer(
        callbacks=[watched],  # +
        max_steps=plan.steps,
        gradient_clip_val=None,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(Items(plan, plan.steps + SPARE), batch_size=ROWS)
    trainer.fit(Language(), watched.loader(loader), ckpt_path=watched.checkpoint())  # +


def plain_loop(plan: Plan, layout: str, muon: bool) -> None:
    """A loop of one's own, on one process, or sharded over several."""
    _, ranks = rank_and_ranks()
    torch.manual_seed(0)
    model = Transformer(SHAPE)
    shard(model, layout, ranks)
    optimizers = (
        kinds.two_optimizers(model) if muon else [torch.optim.AdamW(model.parameters(), lr=LR)]
    )
    schedules = [schedule(optimizer, plan) for optimizer in optimizers]
    checkpoints = spikeguard.CheckpointDirectory(  # +
        Path(plan.out) / "checkpoints", every=plan.checkpoint_every
    )
    guard = spikeguard.attach(  # +
        model,
        optimizers if muon else optimizers[0],
        run="row",
        scheduler=schedules[0],
        state=schedules[1:],
        checkpoints=checkpoints,
    )
    guard.resume()  # +
    items = kinds.items_of(plan)  # +
    for batch in guard.batches(items):  # +
        guard.tokens(batch)  # +
        loss = guard.loss(model(batch[:, :-1], batch[:, 1:]))  # +
        loss.backward()
        guard.clip_grad_norm_(1.0)  # +
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for each in schedules:
            each.step()
        guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


def shard(model: Transformer, layout: str, ranks: int) -> None:
    """Nothing, FSDP2 over all ranks, or HSDP: sharded over pairs, copied between them."""
    if layout == "one":
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if layout == "hsdp":
        names = ("dp_replicate", "dp_shard")
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=names)
    else:
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


class Stage(nn.Module):
    """The part of a Transformer that one rank of a pipeline has."""

    def __init__(self, whole: Transformer, rank: int, ranks: int) -> None:
        super().__init__()
        each, last = len(whole.blocks) // ranks, rank == ranks - 1
        self.embedding = nn.Identity() if rank else whole.embedding
        self.rotary = whole.rotary
        self.blocks = whole.blocks[rank * each : (rank + 1) * each]
        self.norm = whole.norm if last else nn.Identity()
        self.head = whole.head if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Bytes or what the stage before made of them, to logits or what the next one takes."""
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, self.rotary)
        out: Tensor = self.head(self.norm(x))
        return out


def pipeline_loop(plan: Plan, muon: bool) -> None:
    """Pipeline stages of one's own, one rank each, by torch's schedule."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = rank_and_ranks()
    torch.manual_seed(0)
    model = Stage(Transformer(SHAPE), rank, ranks)
    first, last = rank == 0, rank == ranks - 1
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"), group=mesh.get_group())
    passes = Schedule1F1B(stage, n_microbatches=2 * ranks, loss_fn=mean_loss)
    optimizers = (
        kinds.two_optimizers(model) if muon else [torch.optim.AdamW(model.parameters(), lr=LR)]
    )
    schedules = [schedule(optimizer, plan) for optimizer in optimizers]
    checkpoints = spikeguard.CheckpointDirectory(  # +
        Path(plan.out) / "checkpoints", every=plan.checkpoint_every
    )
    guard = spikeguard.attach(  # +
        model,
        optimizers if muon else optimizers[0],
        run="row",
        scheduler=schedules[0],
        state=schedules[1:],
        checkpoints=checkpoints,
        ranks=spikeguard.Ranks(pipeline=mesh, has_loss=last),
    )
    guard.resume()  # +
    items = spikeguard.by_position(lambda index: item_at(plan, index))  # +
    for batch in guard.batches(items):  # +
        guard.tokens(batch)  # +
        losses: list[Tensor] = []
        inputs = (batch[:, :-1],) if first else ()
        passes.step(*inputs, target=batch[:, 1:] if last else None, losses=losses)
        if last:
            guard.loss(torch.stack(losses).mean())  # +
        guard.clip_grad_norm_(1.0)  # +
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for each in schedules:
            each.step()
        guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Of one micro-batch, in nats a byte."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


LOOPS: dict[str, Any] = {
    "accelerate": accelerate_loop,
    "hugging_face": hugging_face_trainer,
    "lightning": lightning_trainer,
    "adamw": lambda plan: plain_loop(plan, "one", muon=False),
    "adamw_muon": lambda plan: plain_loop(plan, "one", muon=True),
    "fsdp2": lambda plan: plain_loop(plan, "fsdp2", muon=False),
    "fsdp2_muon": lambda plan: plain_loop(plan, "fsdp2", muon=True),
    "hsdp": lambda plan: plain_loop(plan, "hsdp", muon=False),
    "hsdp_muon": lambda plan: plain_loop(plan, "hsdp", muon=True),
    "pp": lambda plan: pipeline_loop(plan, muon=False),
    "pp_muon": lambda plan: pipeline_loop(plan, muon=True),
    "sam": kinds.sam_loop,
    "local_sgd": kinds.local_sgd_loop,
    "passes": kinds.passes_loop,
    "gan": kinds.gan_loop,
    "batch_norm": kinds.batch_norm_loop,
    "adopted": kinds.adopted_loop,
    "trl_lora": kinds.trl_lora_trainer,
    **gpu.LOOPS,
}


def started(plan: Plan) -> Iterator[None]:
    """Threads, seeds, the process group and the probe, around one loop."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    _, ranks = rank_and_ranks()
    install(plan)
    logging.getLogger("spikeguard").setLevel(logging.INFO)
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
    grouped = ranks > 1 or "WORLD_SIZE" in os.environ
    if grouped:
        both = "cpu:gloo,cuda:nccl"  # of one rank: NCCL takes one device a rank
        backend = both if ranks == 1 and torch.cuda.is_available() else "gloo"
        torch.distributed.init_process_group(backend, timeout=timedelta(seconds=60))
    yield
    if grouped:
        torch.distributed.destroy_process_group()


def main(name: str) -> int:
    """Run the loop of that name."""
    plan = Plan.read()
    for _ in started(plan):
        LOOPS[name](plan)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
