"""Hugging Face `Trainer`: two lines around `train()`.

    watched = watch(trainer, run="name")
    trainer.train(resume_from_checkpoint=watched.checkpoint())

Losses are noted before `logging_nan_inf_filter` can replace them; data is fast-forwarded here, not
by `Trainer` (`ignore_data_skip`), since only we know what was left out.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import safe_globals

from spikeguard.faults import log
from spikeguard.guard import Guard
from spikeguard.integrations.accelerate import stock
from spikeguard.integrations.framework_loop import (
    HostedCheckpoints,
    HostedLoop,
    LeavingOut,
    read_tensors,
    refuse_found,
    show_tokens,
    step_or_end,
    wrap,
)
from spikeguard.state.checkpoints import NOT_SUMMED, read_manifest, seal_manifest
from spikeguard.state.folders import FileSum, beside_the_loop, sums_of
from spikeguard.state.lineage import Target
from spikeguard_protocol import TargetDeleted

MOST_MORE = 8  # checkpoints beyond `save_total_limit`, in an incident that nobody ends
ODD_PASS = (
    "a pass is %d batches, no whole number of steps of %d: Trainer puts the last batches of this "
    "one into the first step of the next, as it would not have done without the restart. Choose "
    "batch sizes that make it a whole number"
)
CLIPPED_BY_US = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP")  # FSDP1 is refused; DeepSpeed clips itself


def watch(trainer: Trainer, **arguments: Any) -> Watched:
    """Have `trainer` watched; `arguments` as for `spikeguard.attach`. On all ranks."""
    refuse_found(arguments, "scheduler", "checkpoints", "micro_batches", "feed")
    watched = Watched(trainer, arguments)
    trainer.add_callback(watched)
    trainer.args.ignore_data_skip = True
    wrap(trainer, "get_train_dataloader", watched.leaving_out)
    wrap(trainer, "training_step", watched.noting_loss)
    return watched


class Watched(HostedLoop, TrainerCallback):  # type: ignore[misc]  # Any to mypy
    """The callback."""

    _checkpoints: TrainerCheckpoints

    def __init__(self, trainer: Trainer, arguments: dict[str, Any]) -> None:
        output = Path(trainer.args.output_dir)
        super().__init__(TrainerCheckpoints(output, trainer.args), arguments)
        self._trainer = trainer
        self._known: set[str] = set()

    def checkpoint(self) -> str | None:
        """For `resume_from_checkpoint`: the newest one that no rollback has abandoned.

        Raises `ResumeError` where `Trainer` has written newer ones without a guard.
        """
        target = self._resumable()
        return str(self._checkpoints.folder(target.name)) if target is not None else None

    # ---- around Trainer's own methods ------------------------------------------------------

    def leaving_out(self, get_train_dataloader: Callable[[], Any]) -> Any:
        """The loader without what was skipped."""
        return LeavingOut(get_train_dataloader(), self._feed)

    def noting_loss(
        self,
        training_step: Callable[..., torch.Tensor],
        model: torch.nn.Module,
        inputs: Any,
        *args: Any,
        **named: Any,
    ) -> torch.Tensor:
        """One micro-batch; what it returns adds up to the step's mean, so it is scaled back."""
        loss = training_step(model, inputs, *args, **named)
        if self.guard is not None:
            show_tokens(self.guard, inputs)
            self.guard.loss(loss * self._trainer.current_gradient_accumulation_steps)
        return loss

    def _clipping(
        self, clip: Callable[..., Any], parameters: Any, max_norm: float, norm_type: Any = 2
    ) -> Any:
        guard, accelerator = self.guard, self._trainer.accelerator
        if guard is None or norm_type != 2 or guard.stopped:
            return clip(parameters, max_norm, norm_type)
        accelerator.unscale_gradients()
        return guard.clip_grad_norm_(None if max_norm == float("inf") else max_norm)

    # ---- Trainer's events ------------------------------------------------------------------

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **live: Any,
    ) -> None:
        """The objects are known: attach, and count on from where `Trainer` resumed."""
        accelerator = self._trainer.accelerator
        step = state.global_step
        self._begin(
            self._checkpoints.find(f"checkpoint-{step}") if step else None,
            step,
            wrapped=self._trainer.model_wrapped,
            model=accelerator.unwrap_model(live["model"], keep_torch_compile=False),
            optimizer=stock(live["optimizer"]),
            scaler=accelerator.scaler,
            scheduler=live["lr_scheduler"],
            micro_batches=args.gradient_accumulation_steps,
        )
        if accelerator.distributed_type.value in CLIPPED_BY_US:
            wrap(accelerator, "clip_grad_norm_", self._clipping)
        self._known = {target.name for target in self._checkpoints.targets()}
        loader: Any = live.get("train_dataloader")
        micro = args.gradient_accumulation_steps
        batches = len(loader) if hasattr(loader, "__len__") else 0
        within = self.guard is not None and batches and self.guard.position % -(-batches // micro)
        if within and batches % micro:
            log.warning(ODD_PASS, batches, micro)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """A step boundary: the guard may end the attempt here."""
        if self.guard is not None:
            with self.guard._p.faults.shield("checkpoint"):
                self._checkpoints.look_after(self.guard)
            step_or_end(self.guard)
            control.should_training_stop |= self.guard.stopped

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """`Trainer` has written a checkpoint, and may have pruned others."""
        if self.guard is None:
            return
        with self.guard._p.faults.shield("checkpoint"):
            self._checkpoints.adopt(f"checkpoint-{state.global_step}", self.guard)
            present = {target.name for target in self._checkpoints.targets()}
            if self.guard._p.world.leads:
                for name in sorted(self._known - present):  # it has pruned
                    self.guard._report(TargetDeleted(name))
            self._known = present

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """The attempt ended on purpose."""
        if self.guard is not None:
            with self.guard._p.faults.shield("checkpoint"):
                self._checkpoints.settle(self.guard)
            self.guard.finish()


class TrainerCheckpoints(HostedCheckpoints):
    """Checkpoints as `Trainer` writes and prunes them.

    What a rollback may need is not pruned: the newest that `healthy_after` steps have been built
    on, the one that will be it next, and what the server protects. `save_total_limit` is raised
    until all of these are among the newest, by `MOST_MORE` at most.
    A thread reads what was written for its checksums, and a later step boundary writes them into
    the manifest. What `Trainer` wrote is never removed here: a checkpoint that a rollback gave up
    is moved to `PATH/spikeguard/abandoned/`, out of the way of pruning and of the next save.
    """

    def __init__(self, path: Path, args: TrainingArguments, healthy_after: int = 100) -> None:
        super().__init__(path, every=0, healthy_after=healthy_after)
        self._args, self._limit = args, args.save_total_limit
        self._abandoned = path / "spikeguard" / "abandoned"
        self._due: str | None = None  # written at the last step boundary
        self._protected: frozenset[str] = frozenset()
        self._summing: list[tuple[Target, Future[dict[str, FileSum]]]] = []

    def adopt(self, name: str, guard: Guard) -> None:
        """The framework has written `PATH/name` at this step boundary; all ranks."""
        super().adopt(name, guard)
        self._due = name

    def look_after(self, guard: Guard) -> None:
        """At a step boundary, when every rank has written its part and nobody prunes."""
        parts = guard._p
        protected, due = parts.inbox.protected, self._due
        if not parts.world.leads:
            return
        self._seal_summed(parts.world.size)
        if due is None and protected == self._protected:
            return
        self._due, self._protected = None, protected
        if due is not None:
            self._begin_sums(due)
        if self._limit:
            needed = self._needed(protected, parts.progress.steps)
            self._args.save_total_limit = min(max(self._limit, needed), self._limit + MOST_MORE)

    def _needed(self, protected: frozenset[str], step: int) -> int:
        """How many of the newest, with the one to come, hold all that a rollback may need."""
        held = self.targets()
        needed = self.needed(held, held, protected, step)
        oldest = min(map(held.index, needed), default=len(held))
        return len(held) - oldest + 1

    def settle(self, guard: Guard) -> None:
        """At the end of training: give the newest its checksums too."""
        world = guard._p.world
        if self._due is not None and world.size == 1:  # else a rank may still be writing its part
            self._begin_sums(self._due)
        concurrent.futures.wait([done for _, done in self._summing], guard._p.settings.flush_s)
        self._seal_summed(world.size)
        self._args.save_total_limit = self._limit

    def set_aside(self, target: Target) -> None:
        """Move one that a rollback gave up to where `Trainer` neither prunes nor writes."""
        segment = target.segment
        aside = self._abandoned / f"{target.name}-{segment.attempt[:8]}.{segment.number}"
        self._abandoned.mkdir(parents=True, exist_ok=True)
        (self.path / target.name).rename(aside)
        log.warning(
            "%s was given up by a rollback: it lies in %s now. Remove it when nobody needs it",
            target.name,
            aside,
        )

    def _begin_sums(self, name: str) -> None:
        """Read the files beside the loop; one that is pruned meanwhile stays without."""
        target = self.find(name)
        if target is not None:
            folder = self.folder(name)
            summing = beside_the_loop(lambda: sums_of(folder, but=NOT_SUMMED))
            self._summing.append((target, summing))

    def _seal_summed(self, world_size: int) -> None:
        """Write into the manifests what was read since; in the loop, where nobody prunes."""
        ended = [each for each in self._summing if each[1].done()]
        self._summing = [each for each in self._summing if each not in ended]
        for target, done in ended:
            folder = self.folder(target.name)
            if done.exception() is None and read_manifest(folder) == target:
                seal_manifest(folder, target, world_size, done.result())

    def read_back(self, folder: Path, rank: int) -> None:
        """The files that `Trainer` loads, with `weights_only` as it does; tensors stay on disk."""
        own = folder / f"rng_state_{rank}.pth"
        names = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt")
        weights = (*folder.glob("pytorch_model*.bin"), *folder.glob("adapter_model*.bin"))
        (folder / "trainer_state.json").read_bytes()
        with safe_globals():
            for path in (*weights, *(folder / name for name in names)):
                read_tensors(path)
            read_tensors(own if own.exists() else folder / "rng_state.pth")
        for path in folder.glob("*.safetensors"):
            with safe_open(path, "pt") as tensors:
                tensors.keys()

    def not_ours(self, newest: int) -> str:
        """More than one whole folder, or one where there is none of ours.

        One that is newer than ours may be what a killed attempt left just before its manifest.
        """
        found = [
            (int(number), path)
            for path in self.path.glob("checkpoint-*")
            if (number := path.name.rpartition("-")[2]).isdigit()
            and int(number) > newest
            and (path / "trainer_state.json").exists()
            and self.find(path.name) is None
        ]
        return str(max(found)[1]) if len(found) > bool(newest) else ""
