"""torchtitan's Trainer: two lines between `build()` and `train()`.

    trainer = config.build()
    watch(trainer, run="name")
    trainer.train()

Checkpoints to go back to lie in `DUMP_FOLDER/spikeguard`, beside torchtitan's own; a restart goes
on from the newest of them, and from torchtitan's where there is none yet. Its objects are changed
on the instance alone; its clipping function is replaced while this trainer makes a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torchtitan.trainer as titan
from torch import Tensor

import spikeguard
from spikeguard.integrations.framework_loop import wrap

Wrapped = Callable[..., Any]


def watch(trainer: Any, *, every: int = 500, **arguments: Any) -> spikeguard.Guard:
    """Have `trainer` watched, before `train()`; `arguments` as for `spikeguard.attach`.

    `every`: steps between the guard's checkpoints, where `checkpoints` is not given. On all ranks.
    """
    arguments["state"] = [trainer, *arguments.get("state", ())]  # its counters
    home = Path(trainer.config.dump_folder) / "spikeguard"
    micro = trainer.gradient_accumulation_steps * trainer.num_pipeline_parallel_microbatches
    found: dict[str, Any] = {
        "scheduler": trainer.lr_schedulers,
        "micro_batches": micro,
        "checkpoints": spikeguard.CheckpointDirectory(home / "checkpoints", every=every),
        "directory": home,
        **arguments,
    }
    dims = trainer.parallel_dims
    if dims.pp_enabled:
        stages = {"pipeline": dims.get_mesh("pp"), "has_loss": trainer.pp_has_last_stage}
        found["ranks"] = replace(found.get("ranks") or spikeguard.Ranks(), **stages)
    guard = spikeguard.attach(trainer.model_parts, trainer.optimizers, **found)
    _Watched(trainer, guard)
    return guard


class _Watched:
    """Around the methods of one trainer."""

    def __init__(self, trainer: Any, guard: spikeguard.Guard) -> None:
        self._trainer, self._guard = trainer, guard
        dims = trainer.parallel_dims
        ranks = dims.get_mesh("loss").size() if dims.dp_cp_enabled else 1
        # a call's loss is the sum of its tokens over those of all calls and ranks of the step
        self._scale = trainer.gradient_accumulation_steps * ranks
        wrap(trainer, "batch_generator", self.batches)
        wrap(trainer, "post_dataloading_process", self.show_tokens)
        wrap(trainer, "forward_backward_step", self.note_loss)
        wrap(trainer, "train_step", self.train_step)
        wrap(trainer, "should_continue_training", self.goes_on)
        wrap(trainer, "close", self.close)
        wrap(trainer.checkpointer, "load", self.load)

    def load(self, load: Wrapped, *args: Any, **named: Any) -> Any:
        """The guard's newest checkpoint, or torchtitan's where the guard has none."""
        return True if self._guard.resume() else load(*args, **named)

    def batches(self, generate: Wrapped, items: Iterable[Any]) -> Iterator[Any]:
        """The loader without what was skipped."""
        made: Iterator[Any] = generate(self._guard.batches(items))
        return made

    def show_tokens(self, process: Wrapped, inputs: Any, labels: Any) -> Any:
        """One micro-batch's token ids."""
        ids = inputs.get("input")
        if isinstance(ids, Tensor) and not ids.is_floating_point():
            self._guard.tokens(ids)
        return process(inputs, labels)

    def note_loss(self, step: Wrapped, **named: Any) -> Tensor:
        """The loss of one forward and backward pass, scaled back to its mean."""
        loss: Tensor = step(**named)
        self._guard.loss(loss, scale=self._scale)
        return loss

    def train_step(self, step: Wrapped, items: Iterator[Any]) -> None:
        """One optimizer step; a command may act at its end."""
        clipping, titan.dist_utils.clip_grad_norm_ = titan.dist_utils.clip_grad_norm_, self.clip
        try:
            step(items)
        finally:
            titan.dist_utils.clip_grad_norm_ = clipping
        self._guard.step()

    def clip(self, parameters: Any, max_norm: float, *_: Any, **__: Any) -> Tensor:
        """In place of torchtitan's: the norm is taken once, for clipping and report."""
        return self._guard.clip_grad_norm_(max_norm)

    def goes_on(self, goes_on: Wrapped) -> bool:
        return bool(goes_on()) and not self._guard.stopped

    def close(self, close: Wrapped) -> None:
        self._guard.finish()
        close()
