"""Lightning: a callback, and the training loader handed through it.

    watched = Watched(run="name", checkpoints="checkpoints", every=500)
    trainer = Trainer(callbacks=[watched], ...)
    trainer.fit(module, watched.loader(loader), ckpt_path=watched.checkpoint())

Lightning runs its backward inside the optimizer's step; the norm is taken where it says that
gradients are whole, before its own clipping.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor

import spikeguard
from spikeguard.integrations.framework_loop import (
    HostedCheckpoints,
    HostedLoop,
    LeavingOut,
    read_tensors,
    refuse_found,
    show_tokens,
    step_or_end,
)
from spikeguard.state.lineage import NAME, Tree
from spikeguard.state.random_numbers import restore_random_state

STATE = "lightning.ckpt"


class LightningCheckpoints(HostedCheckpoints):
    """Lightning's own checkpoint files, in folders whose manifest is ours."""

    names = NAME  # the agent itself names and removes them
    on_demand = True

    def __init__(self, path: str | PathLike[str], every: int, keep: int) -> None:
        super().__init__(path, every, keep)
        self.trainer: Trainer | None = None
        self.weights_only: bool | None = None

    def read_back(self, folder: Path, rank: int) -> None:
        """As `Trainer.fit` loads it; a folder of a sharded strategy is Lightning's to check."""
        if (folder / STATE).is_file():
            read_tensors(folder / STATE, self.weights_only)

    def not_ours(self, newest: int) -> str:
        """A checkpoint of Lightning's own in this folder, where there is none of ours."""
        found = [] if newest else sorted(self.path.glob("*.ckpt"), key=lambda p: p.stat().st_mtime)
        return str(found[-1]) if found else ""

    def write_state(self, name: str, rank: int, tree: Tree) -> None:
        """On all ranks together, as `Trainer.save_checkpoint` asks."""
        assert self.trainer is not None
        super().write_state(name, rank, tree)
        self.trainer.save_checkpoint(self.path / name / STATE)


class Watched(HostedLoop, Callback):  # type: ignore[misc]  # Any to mypy
    """The callback."""

    _checkpoints: LightningCheckpoints

    def __init__(
        self,
        checkpoints: str | PathLike[str],
        *,
        every: int = 500,
        keep: int = 5,
        weights_only: bool | None = None,
        **arguments: Any,
    ) -> None:
        """A checkpoint into `checkpoints` every `every` steps; the rest as for `attach`.

        `weights_only`: as `Trainer.fit` is given it.
        """
        refuse_found(arguments, "scheduler", "micro_batches", "feed")
        super().__init__(LightningCheckpoints(checkpoints, every, keep), arguments)
        self._checkpoints.weights_only = weights_only
        self._loaders: list[LeavingOut] = []
        self._stepped = 0

    def checkpoint(self) -> Path | None:
        """For `ckpt_path`: the newest one that no rollback has abandoned. On all ranks.

        Raises `ResumeError` where the folder holds checkpoints of Lightning's own alone.
        """
        target = self._resumable()
        return self._checkpoints.path / target.name / STATE if target is not None else None

    def loader(self, loader: Iterable[Any]) -> LeavingOut:
        """The training loader without what was skipped."""
        self._loaders.append(LeavingOut(loader, self._feed))
        return self._loaders[-1]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lightning gives each rank its part of a DataLoader, but takes ours for none."""
        if stage != "fit":
            return
        prepare = trainer._data_connector._prepare_dataloader
        for leaving_out in self._loaders:
            leaving_out.prepared(lambda own: prepare(own, True, RunningStage.TRAINING))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The objects are known: attach, and count on from where Lightning resumed."""
        if len(trainer.optimizers) != 1 or not pl_module.automatic_optimization:
            raise spikeguard.AttachError(
                "optimizer",
                f"the module steps its optimizers ({len(trainer.optimizers)}) by hand",
                "Use automatic optimization, which steps one; several take a loop of your own and "
                "spikeguard.attach(model, [OPTIMIZERS])",
            )
        schedules = trainer.lr_scheduler_configs
        self._checkpoints.trainer = trainer
        resumed = Path(trainer.ckpt_path).parent.name if trainer.ckpt_path else ""
        target = self._checkpoints.find(resumed) if resumed else None
        self._begin(
            target,
            trainer.global_step,
            wrapped=trainer.strategy.model or pl_module,
            model=pl_module,
            optimizer=trainer.optimizers[0],
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            scheduler=schedules[0].scheduler if schedules else None,
            micro_batches=trainer.accumulate_grad_batches,
        )
        self._stepped = trainer.global_step
        if target is not None:
            numbers = self._checkpoints.kept(target.name, trainer.global_rank).get("random")
            if numbers is not None:  # Lightning keeps none; a new rank goes on with its own
                restore_random_state(numbers)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """One micro-batch's tokens, where it names them `input_ids`."""
        if self.guard is not None:
            show_tokens(self.guard, batch)

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """One micro-batch, which Lightning has divided by their number already."""
        if self.guard is not None:
            self.guard.loss(loss.detach() * trainer.accumulate_grad_batches)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Gradients are whole and not yet clipped. A rule clips here, to Lightning's own norm at
        most, so that what is told is what the update is made of."""
        if self.guard is None:
            return
        ruled, plugin = "clip" in self._arguments, trainer.precision_plugin
        scaled = getattr(plugin, "scaler", None) and getattr(
            optimizer, "_step_supports_amp_scaling", False
        )
        if ruled and scaled:  # a fused step unscales: the rule clips there
            return
        by_norm = ruled and trainer.gradient_clip_algorithm != "value"
        self.guard.clip_grad_norm_(trainer.gradient_clip_val if by_norm else None)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """A step boundary, if this micro-batch completed a step: the attempt may end here."""
        if self.guard is None or trainer.global_step == self._stepped:
            return
        self._stepped = trainer.global_step
        step_or_end(self.guard)
        trainer.should_stop |= self.guard.stopped

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The attempt ended on purpose."""
        if self.guard is not None:
            self.guard.finish()
