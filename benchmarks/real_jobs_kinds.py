"""Loops of kinds that once went wrong without a word: each with the lines that spikeguard adds.

SAM with its inner optimizer, local SGD in DistributedDataParallel, a loader with a generator of its
own in three passes, two adversaries, BatchNorm, a run that takes spikeguard up in its middle, and
LoRA under TRL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

import spikeguard
from benchmarks.real_jobs_text import CONTEXT, ROWS, Items, Plan, item_at
from spikeguard_trainer.model import Shape, Transformer

LR, MUON_LR, RHO, AVERAGED_EVERY, PASSES, BARE = 3e-3, 0.02, 0.05, 4, 3, 20
SHAPE = Shape(width=32, layers=2, heads=2, hidden=88, context=CONTEXT)
SPARE = 64  # positions to be had beyond the last step


def checkpoints_of(plan: Plan) -> spikeguard.CheckpointDirectory:
    return spikeguard.CheckpointDirectory(
        Path(plan.out) / "checkpoints", every=plan.checkpoint_every
    )


def items_of(plan: Plan) -> Any:
    """The rank's items by their index."""
    ranks, rank = 1, 0
    if torch.distributed.is_initialized():
        ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    return spikeguard.by_position(lambda index: item_at(plan, index, rank=rank, ranks=ranks))


def two_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """AdamW for embedding, head and gains, Muon for the matrices of the blocks."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "blocks" in n]
    known = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    return [torch.optim.AdamW(others, lr=LR, fused=True), torch.optim.Muon(matrices, lr=MUON_LR)]


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as davda54/sam and its descendants write it."""

    def __init__(self, params: Any, base: type[torch.optim.Optimizer], **given: Any) -> None:
        super().__init__(params, {"rho": RHO, **given})
        self.base_optimizer = base(self.param_groups, **given)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self) -> None:
        """To the worst point near by."""
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        for p in held:
            self.state[p]["old"] = p.detach().clone()
            p.add_(p.grad * (RHO / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Back, and a step by the gradients of that point."""
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if "old" in self.state[p]:
                    p.copy_(self.state[p].pop("old"))
        self.base_optimizer.step()

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups


def sam_loop(plan: Plan) -> None:
    """Two passes a step; the inner optimizer makes the update."""
    model = Transformer(SHAPE)
    optimizer = Sam(model.parameters(), torch.optim.AdamW, lr=LR)
    guard = spikeguard.attach(  # +
        model,
        optimizer,
        run="row",
        state=[optimizer.base_optimizer],  # as the table of attach() asks for
        checkpoints=checkpoints_of(plan),
    )
    guard.resume()  # +
    for batch in guard.batches(items_of(plan)):  # +
        loss = guard.loss(model(batch[:, :-1], batch[:, 1:]))  # +
        loss.backward()
        optimizer.first_step()
        model(batch[:, :-1], batch[:, 1:]).backward()
        guard.clip_grad_norm_(1.0)  # +
        optimizer.step()
        optimizer.zero_grad()
        guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


def local_sgd_loop(plan: Plan) -> None:
    """DistributedDataParallel as a mere wrapper; weights are averaged every few steps."""
    model = DistributedDataParallel(Transformer(SHAPE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    guard = spikeguard.attach(  # +
        model,
        optimizer,
        run="row",
        ranks=spikeguard.Ranks(replicated=False),
        checkpoints=checkpoints_of(plan),
    )
    guard.resume()  # +
    for batch in guard.batches(items_of(plan)):  # +
        with model.no_sync():
            loss = guard.loss(model(batch[:, :-1], batch[:, 1:]))  # +
            loss.backward()
        guard.clip_grad_norm_(1.0)  # +
        optimizer.step()
        optimizer.zero_grad()
        if (guard.steps + 1) % AVERAGED_EVERY == 0:
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.data)
                parameter.data /= torch.distributed.get_world_size()
        guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


class PassOrder(Sampler[tuple[int, int]]):
    """The positions of the pass that was set, each with a number drawn once for the pass."""

    def __init__(self, plan: Plan, generator: torch.Generator) -> None:
        self.plan, self.generator, self.epoch = plan, generator, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        drawn = int(torch.randint(1_000, (), generator=self.generator))
        first, end = self.plan.omit
        total = self.plan.steps + SPARE
        for q in range(total):
            place = q + (end - first if q >= first else 0)
            if min(place * PASSES // total, PASSES - 1) == self.epoch:
                yield q, drawn


class Drawn(Dataset[Tensor]):
    """Text that is turned by the number that was drawn."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        return item_at(self.plan, key[0]).roll(key[1], 1)


def passes_loop(plan: Plan) -> None:
    """Three passes over a DataLoader whose sampler has a generator of its own."""
    model = Transformer(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    order = PassOrder(plan, torch.Generator().manual_seed(5))
    loader = DataLoader(Drawn(plan), batch_size=None, sampler=order)
    guard = spikeguard.attach(  # +
        model, optimizer, run="row", checkpoints=checkpoints_of(plan)
    )
    guard.resume()  # +
    for _ in guard.epochs(PASSES):  # +
        for batch in guard.batches(loader):  # +
            loss = guard.loss(model(batch[:, :-1], batch[:, 1:]))  # +
            loss.backward()
            guard.clip_grad_norm_(1.0)  # +
            optimizer.step()
            optimizer.zero_grad()
            guard.step()  # +
            if guard.steps >= plan.steps:
                break
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


def gan_loop(plan: Plan) -> None:
    """A model and its critic, an optimizer each, in one guard."""
    model, critic = Transformer(SHAPE), nn.Sequential(nn.Linear(1, 16), nn.GELU(), nn.Linear(16, 1))
    optimizers = [
        torch.optim.AdamW(part.parameters(), lr=LR, fused=True) for part in (model, critic)
    ]
    guard = spikeguard.attach(  # +
        [model, critic], optimizers, run="row", checkpoints=checkpoints_of(plan)
    )
    guard.resume()  # +
    for batch in guard.batches(items_of(plan)):  # +
        loss = model(batch[:, :-1], batch[:, 1:])
        guess = critic(loss.detach().view(1, 1))
        functional.mse_loss(guess, loss.detach().view(1, 1)).backward()
        guard.loss(loss).backward()  # +
        guard.clip_grad_norm_(1.0)  # +
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


class Normed(nn.Module):
    """Logits through a BatchNorm, whose running statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Embedding(256, 32), nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 256)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        hidden = self.norm(self.inner(ids).flatten(0, 1))
        return functional.cross_entropy(self.head(hidden), targets.flatten())


def batch_norm_loop(plan: Plan) -> None:
    """Buffers that every forward pass changes."""
    plain(plan, Normed())


def adopted_loop(plan: Plan) -> None:
    """Some steps are made before spikeguard is there; then the loop says where it stands."""
    plain(plan, Transformer(SHAPE), bare=BARE)


def plain(plan: Plan, model: nn.Module, bare: int = 0) -> None:
    """One optimizer; the first `bare` steps without a guard."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    checkpoints = checkpoints_of(plan)  # +
    known = bool(checkpoints.targets())
    for step in range(0 if known else bare):
        batch = item_at(plan, step)
        model(batch[:, :-1], batch[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    guard = spikeguard.attach(model, optimizer, run="row", checkpoints=checkpoints)  # +
    items = items_of(plan)
    if bare and not known:
        guard.resume(step=bare)  # +
        items.skip_to(bare)
    else:
        guard.resume()  # +
    for batch in guard.batches(items):  # +
        guard.loss(model(batch[:, :-1], batch[:, 1:])).backward()  # +
        guard.clip_grad_norm_(1.0)  # +
        optimizer.step()
        optimizer.zero_grad()
        guard.step()  # +
        if guard.steps >= plan.steps:
            break
    guard.finish()  # +


def trl_lora_trainer(plan: Plan) -> None:
    """TRL's SFTTrainer, which trains LoRA's matrices, with dropout, beside frozen weights."""
    from datasets import Dataset as Table
    from peft import LoraConfig
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from spikeguard.integrations.hugging_face import watch  # +

    torch.manual_seed(0)
    tiny = {"hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2}
    rows = Items(plan, plan.steps + SPARE)
    trainer = SFTTrainer(
        LlamaForCausalLM(LlamaConfig(vocab_size=256, num_attention_heads=2, **tiny)),
        SFTConfig(
            output_dir=plan.out,
            max_steps=plan.steps,
            per_device_train_batch_size=ROWS,
            learning_rate=10 * LR,
            lr_scheduler_type="cosine",
            save_steps=plan.checkpoint_every,
            logging_steps=1_000,
            train_sampling_strategy="sequential",
            dataset_kwargs={"skip_prepare_dataset": True},
            bf16=False,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Table.from_list([{"input_ids": rows[n].tolist()} for n in range(len(rows))]),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({"<0>": 0}, "<0>")),
            pad_token="<0>",
            eos_token="<0>",
        ),
        peft_config=LoraConfig(r=4, lora_dropout=0.1, target_modules="all-linear"),
    )
    watched = watch(trainer, run="row")  # +
    trainer.train(resume_from_checkpoint=watched.checkpoint())  # +
