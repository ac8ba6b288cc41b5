"""The training job: what it is made of, then the loop. The loop is the example to copy.

Only the lines that say `guard` (and the checkpoint directory) are spikeguard's; only those that
say `faults` are the chaos lab's and have no place in a job of yours.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

import spikeguard
from spikeguard_trainer.data import (
    BatchLoader,
    Bytes,
    read_corpus,
    text_of,
    validation_batches,
)
from spikeguard_trainer.inject import FaultInjector
from spikeguard_trainer.model import Transformer
from spikeguard_trainer.options import Options
from spikeguard_trainer.ranks import Ranks, reduce_gradients
from spikeguard_trainer.schedule import make_optimizer, make_scheduler
from spikeguard_trainer.steplog import StepLog

HELD_STEP_S = 0.2  # a run that only waits for somebody's decision leaves the machine alone
VALIDATION_ROWS = 16


@dataclass(frozen=True, slots=True)
class Summary:
    """How an attempt ended."""

    run: str
    steps: int  # optimizer steps that stand behind the final weights
    position: int  # next in the data order; above `steps` by what was skipped
    validation_loss: float  # nats a byte
    trained_steps: int  # in this attempt, those that were rolled back included
    seconds: float  # in this attempt, of training
    rollbacks: int  # in this attempt
    world_size: int
    finished: bool  # False: stopped by a command

    def write(self, file: Path) -> None:
        """As one JSON object; a loss that is not finite is written as a word."""
        plain = asdict(self)
        if not math.isfinite(self.validation_loss):
            plain["validation_loss"] = str(self.validation_loss)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(plain, indent=1) + "\n")


def train(options: Options, ranks: Ranks) -> Summary:
    """Train to `options.steps`, from the newest checkpoint in `options.out` if there is one."""
    torch.manual_seed(options.seed)
    shape, device, n = options.preset.shape, ranks.device, options.micro_batches

    corpus = read_corpus(options.data)
    model = Transformer(shape).to(device)  # the master weights, fp32
    network = ranks.replicate(model)  # under torchrun averages the gradients of all ranks
    optimizer = make_optimizer(model, lr=options.lr, beta2=options.beta2)
    scheduler = make_scheduler(optimizer, warmup=options.warmup, total=options.steps)
    bf16 = device.type == "cuda" if options.bf16 is None else options.bf16
    precision = torch.autocast(device.type, torch.bfloat16, enabled=bf16)
    faults = FaultInjector(
        options.faults,
        model,
        optimizer,
        memory=options.out / "faults.json",
        seed=options.seed,
        writes=ranks.leads,
    )
    loader = BatchLoader(
        corpus.training,
        rows=options.batch,
        context=shape.context,
        seed=options.seed,
        rank=ranks.rank,
        world_size=ranks.world_size,
        micro_batches=n,
        device=device,
        corrupt=faults.corrupt,
    )
    log = StepLog(
        options.log if ranks.leads else None,
        options.steps,
        options.tokens_per_step,
        shown=ranks.leads and not options.quiet,
    )

    checkpoints = spikeguard.CheckpointDirectory(
        options.out / "checkpoints",
        every=options.checkpoint_every,
        keep=options.keep,
        background=False,  # steps of milliseconds: one on its way would still be so ten steps on
    )
    swap, back = partial(faults.swap_data, True), partial(faults.swap_data, False)
    swapping = spikeguard.Mitigation("swap-data", swap, back, options.swap_cost or "")
    guard = spikeguard.attach(
        model,
        optimizer,
        run=options.name,
        scheduler=scheduler,
        checkpoints=checkpoints,
        tokens_per_step=options.tokens_per_step,
        micro_batches=n,
        clip=options.clip_rule,
        ranks=spikeguard.Ranks(replicated=True),  # the ranks average their gradients in `network`
        name_batch=lambda batch: batch.names,  # which documents an incident's batch held
        decode=text_of,  # and its worst sequence as text
        mitigations=[swapping] if options.swap_cost is not None else [],  # what may be ordered
    )  # server, project and token come from SPIKEGUARD_*; without a server it trains alone
    unfinished = guard.resume() < options.steps
    began = paced = time.monotonic()
    step_loss = torch.zeros((), device=device)

    for batch in guard.batches(loader) if unfinished else ():  # honours skip and rollback
        guard.tokens(batch.tokens)  # bad data shows in what a step's tokens are
        with reduce_gradients(network, when=batch.completes_step):
            with precision:
                loss = guard.loss(network(batch.tokens, batch.targets))  # stays on the device
            (loss / n).backward()
        step_loss = step_loss + loss.detach() / n
        if not batch.completes_step:
            continue

        step, lr = guard.steps + 1, float(scheduler.get_last_lr()[0])
        with faults.strike(step, batch.position):
            grad_norm = guard.clip_grad_norm_(options.clip)  # taken once, for clip and report
            optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        guard.step()  # guard.steps is the loop's counter; a rollback takes it back

        log.add(step, batch.position, ranks.mean(step_loss), grad_norm, lr)
        step_loss = torch.zeros_like(step_loss)
        time.sleep(max(0.0, paced + options.step_time - time.monotonic()))  # for who watches it
        paced = time.monotonic()
        if guard.steps >= options.steps:
            if not options.held:
                break
            time.sleep(HELD_STEP_S)

    guard.finish()
    log.close()
    return Summary(
        run=options.name,
        steps=guard.steps,
        position=guard.position,
        validation_loss=validation_loss(
            model,
            corpus.validation,
            batches=options.preset.validation_batches,
            precision=precision,
        ),
        trained_steps=log.rows,
        seconds=time.monotonic() - began,
        rollbacks=log.returns,
        world_size=ranks.world_size,
        finished=guard.steps >= options.steps,
    )


@torch.no_grad()
def validation_loss(
    model: Transformer, text: Bytes, *, batches: int, precision: torch.autocast
) -> float:
    """The mean loss over held-out batches, nats a byte; the same ones always, so that two runs
    differ by their weights alone. The host waits here."""
    device = next(model.parameters()).device
    losses = []
    for tokens, targets in validation_batches(
        text, count=batches, rows=VALIDATION_ROWS, context=model.shape.context
    ):
        with precision:
            losses.append(model(tokens.to(device), targets.to(device)))
    return float(torch.stack(losses).mean())
