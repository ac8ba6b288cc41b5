"""What runs before and after the step of each watched optimizer.

One update of the model may be several optimizers' steps. It is judged once, at the first of them,
over the gradients of all, and what was decided then holds for each.
Nothing is raised into anybody's step: failures are noted without `shield`, since a `try` that
catches nothing costs nothing, and these hooks run in every step. An update that is
left out is entered by no optimizer. What cannot be known at `attach()` (optimizers that step in
turns, or within the backward pass) is counted and said once, and ends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from spikeguard.faults import Faults
from spikeguard.loop.usage import STRETCH, LoopUsage
from spikeguard.measure.collector import Collector
from spikeguard.optim.learning_rate import ScaledRates
from spikeguard.optim.optimizers import names_of
from spikeguard.optim.step import Arguments, OptimizerStep, after_closure
from spikeguard.ranks.shards import local
from spikeguard.state.lineage import Progress

OTHER_STEP = (
    "the loop calls a step of {name} that was taken or compiled before attach(): updates that are "
    "not finite are reported and not dropped. Compile optimizer.step after attach()"
)
MOVED_BEFORE = (
    "{name} moves its weights before it calls its closure: updates that are not finite are "
    "reported and not dropped"
)
IN_BACKWARD = (
    "{name} steps within the backward pass, when not all gradients are there: updates are judged "
    "by a part of them. Step the optimizers after the backward pass"
)
IN_TURNS = (
    "{name} did not step in step {step}, others did: optimizers that step in turns make updates of "
    "their own, and are judged by gradients that the others have used already. Step all of them in "
    "each step, or give the others a guard of their own"
)
JUDGED_BEFORE = (
    "the gradients of {name} changed after the update was judged at another optimizer's step: what "
    "is new in them was not judged. Step all optimizers after the last backward pass and after "
    "clipping, or call guard.step() after each"
)
_backward_running: Final = getattr(torch._C, "_current_graph_task_id", lambda: -1)


class OptimizerHooks:
    """Those of all optimizers of one guard."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        collector: Collector,
        rates: ScaledRates,
        progress: Progress,
        usage: LoopUsage,
        faults: Faults,
    ) -> None:
        self.collector, self.rates = collector, rates
        self.progress, self.usage, self.faults = progress, usage, faults
        self.updates = 0  # that were begun
        self.newest = 0  # the step of the newest of them
        self._told: set[str] = set()
        names = names_of(optimizers)
        self._names = " + ".join(names)
        self.watched = [
            _Watched(self, number, each, name)
            for number, (each, name) in enumerate(zip(optimizers, names, strict=True))
        ]
        self.several = len(self.watched) > 1
        self.handles = [handle for each in self.watched for handle in each.handles]  # to remove

    def unseen(self, made: int) -> str:
        """The optimizers whose hooks did not run in the newest steps, of `made` in this attempt.

        The table tells of it after two stretches; an order may come before.
        """
        late = self.progress.steps - self.newest >= STRETCH
        return self._names if made and (late or not self.updates) else ""

    def finish_step(self, step: int) -> None:
        """Of several, at a step boundary: whether all have stepped, if any has."""
        stepped = [each.stepped for each in self.watched]
        left_out = (
            self.collector.update_skipper.left_out
        )  # then a GradScaler kept the others from stepping
        if any(stepped) and not all(stepped) and not left_out:
            first = next(each for each in self.watched if not each.stepped)
            self.tell_once(IN_TURNS, name=first.name, step=step)
        for each in self.watched:
            each.stepped = False

    def tell_once(self, words: str, **values: object) -> None:
        """Count what the loop does otherwise than it is judged by, the first time."""
        if words not in self._told:
            self._told.add(words)
            self.faults.note("optimizers", words.format(**values))


class _Watched:
    """One of them."""

    def __init__(self, hooks: OptimizerHooks, number: int, optimizer: Optimizer, name: str) -> None:
        self._all, self._number, self._optimizer, self.name = hooks, number, optimizer, name
        self._faults, self._collector = hooks.faults, hooks.collector
        self.stepped = False  # or left out, since the last step boundary
        self._within = 0  # steps under way: a class's step may call its base's, hooked as well,
        self._entered_at = 0  # and of which step of the training
        self._grad: tuple[int, int] | None = None  # of one parameter, when the update was judged
        self._entry: OptimizerStep | None = None
        if hooks.collector.update_skipper.by_sync:
            self._entry = OptimizerStep(optimizer, self._judge, self._after)
        # not traced: in a compiled step what they lend the optimizer would be lost
        self.handles: list[Any] = [
            optimizer.register_step_pre_hook(torch.compiler.disable(self._before)),
            optimizer.register_step_post_hook(torch.compiler.disable(self._after)),
            *([self._entry] if self._entry is not None else []),
        ]

    def _before(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        step = self._all.progress.steps
        self._within = self._within + 1 if self._entered_at == step else 1  # one may have raised
        self._entered_at = step
        if self._within > 1:
            return None
        if self._entry is not None:
            if self._entry.entered:  # judged there
                self._entry.entered = False
                return None
            if not self._collector.update_skipper.able():
                self._faults.note("before_step", OTHER_STEP.format(name=self.name))
        try:
            if kwargs or len(args) > 1 or (args and args[0] is not self._optimizer):
                deferred = after_closure(args, kwargs, self._before_update)
                if deferred is not None:
                    return deferred
            self._before_update()
        except Exception as error:
            self._faults.note("before_step", error)
        return None

    def _judge(self, can_skip: bool) -> bool:
        """Whether the update that is about to be made is left out; the host reads one value."""
        update_skipper = self._collector.update_skipper
        update_skipper.can_skip = can_skip
        self._before_update()
        update_skipper.can_skip = False
        with self._faults.shield("before_step"):
            if not can_skip and not update_skipper.able():
                self._faults.note("before_step", MOVED_BEFORE.format(name=self.name))
            if can_skip and update_skipper.leaves_out():
                self._collector.buffers.put_back()
                return True
        return False

    def _before_update(self, _: Any = None) -> None:
        hooks = self._all
        step = hooks.progress.steps + 1
        begins = self._collector.begins_update(self._number)
        hooks.updates += begins
        hooks.newest = step
        self.stepped = True
        try:
            rates = hooks.rates.before_step(step, self._number)
            self._collector.before_step(step, self._number, rates, begins)
            if not self._number and not hooks.rates.lent:  # as the loop has set them
                hooks.usage.see_rate(step, hooks.progress.segment, rates)
        except Exception as error:
            self._faults.note("before_step", error)
        try:
            if hooks.several:
                self._look_at_gradients(begins)
            if _backward_running() != -1:
                hooks.tell_once(IN_BACKWARD, name=self.name)
        except Exception as error:
            self._faults.note("before_step", error)

    def _look_at_gradients(self, begins: bool) -> None:
        """Whether they are still those that were judged, as far as one parameter tells."""
        if begins:
            for each in self._all.watched:
                each.note_gradient()
        elif self._grad != self._gradient():
            self._all.tell_once(JUDGED_BEFORE, name=self.name)

    def note_gradient(self) -> None:
        """The update is judged now."""
        self._grad = self._gradient()

    def _gradient(self) -> tuple[int, int] | None:
        """Which tensor the first gradient is, and how often it was changed."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                grad: Tensor | None = parameter.grad
                if grad is not None:
                    return id(grad), local(grad)._version
        return None

    def _after(self, *_: Any) -> None:
        self._within = max(0, self._within - 1)
        if self._within:
            return
        if self._entry is not None:
            self._entry.stepped()
        try:
            self._collector.after_step(self._number)
        except Exception as error:
            self._faults.note("after_step", error)
        try:
            if self._all.rates.lent:
                self._all.rates.after_step()
        except Exception as error:
            self._faults.note("after_step", error)
