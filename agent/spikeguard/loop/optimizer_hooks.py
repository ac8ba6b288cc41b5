"""What runs before and after the step of each watched optimizer, and what that shows of the loop.

One update of the model may be several optimizers' steps. It is judged once, at the first of them,
over the gradients of all, and what was decided then holds for each. Failures are noted without
`shield`, since a `try` that catches nothing costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from spikeguard.data.feed import DataFeed
from spikeguard.faults import Faults
from spikeguard.measure.collector import Collector
from spikeguard.optim.optimizers import ScaledRates, names_of
from spikeguard.optim.update_skipper import Arguments, OptimizerStep, after_closure
from spikeguard.ranks.model_parts import local
from spikeguard.state.lineage import Progress

STRETCH: Final = 16  # steps
ALIKE: Final = 8  # steps in a row with the same wrong number of items
MOST_HELD: Final = 4_096  # positions that a loop has fetched ahead, whatever fetches them
FEW: Final = 0.75  # of `micro_batches`, on average
SKIPPED: Final = 0.5  # of the calls of `guard.step()` without the optimizer's
REMEMBERED: Final = 6_000  # steps whose learning rate is
HALF: Final = torch.float16


class LoopUsage:
    """Counts of one attempt, looked at once in 16 steps; what was found stands.

    Items that are fetched ahead, the end of a pass and a gradient scaler that skips steps make
    single stretches differ, so only two in a row tell, or the same wrong number of items at each of
    the last steps.
    """

    def __init__(self, micro_batches: int) -> None:
        self._micro = micro_batches
        self.news = False  # since `look` was called last
        self.half = False  # computes in fp16, seen at the first loss
        self.rates: tuple[int, float, float] | None = None  # of a step when trained first, and now
        self._precision_unseen = True
        self._segment = 0  # of the newest rate
        self.rates_by_step: dict[int, float] = {}
        self._steps = self._items = self._updates = 0  # when it was looked at last
        self._odd = self._idle = self._without = 0  # stretches in a row
        self.unseen = False  # the optimizer's hooks do not run
        self.steps_each: float | None = None  # calls of `guard.step()` for one of the optimizer

    def look(self, feed: DataFeed, updates: int) -> bool:
        """Whether there is something new; `updates`: how often the optimizer's hooks ran."""
        steps, items = feed.steps - self._steps, feed.handed - self._items
        done = updates - self._updates
        told, self.news = self.news, False
        if steps < STRETCH:
            return told
        self._steps, self._items, self._updates = feed.steps, feed.handed, updates
        counted = feed.in_use and not feed.restarts
        news = counted and self._look_at_items(feed, steps, items)
        return self._look_at_updates(updates, steps, done) or news or told

    def look_at_loss(self, loss: Tensor | float) -> None:
        """The first one: which precision it was computed in."""
        if self._precision_unseen and isinstance(loss, Tensor):
            kind, self._precision_unseen = loss.device.type, False
            self.half = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is HALF

    def see_rate(self, step: int, segment: int, rates: Sequence[Any]) -> None:
        """The learning rate that the loop has set for `step`."""
        rate = rates[0] if rates else None
        if type(rate) is not float:  # a tensor's value is the device's
            return
        if segment != self._segment:
            self._segment = segment
            before = self.rates_by_step.get(step, rate)
            if self.rates is None and not math.isclose(before, rate, rel_tol=1e-9):
                self.rates, self.news = (step, before, rate), True
        self.rates_by_step[step] = rate
        self.rates_by_step.pop(step - REMEMBERED, None)

    def _look_at_items(self, feed: DataFeed, steps: int, items: int) -> bool:
        if feed.items_per_step is not None:
            return False
        each = items / steps
        more = each >= self._micro + 1 and not feed.threaded
        fewer = each <= FEW * self._micro and not feed.held
        self._odd = self._odd + 1 if more or fewer else 0
        if feed.alike >= ALIKE and (more or (each < self._micro and not feed.held)):
            feed.items_per_step = float(feed.taken)
        elif self._odd >= 2 or feed.held > MOST_HELD:
            feed.items_per_step = each
        return feed.items_per_step is not None

    def _look_at_updates(self, updates: int, steps: int, done: int) -> bool:
        self._idle = self._idle + 1 if done <= SKIPPED * steps else 0
        self._without = 0 if done else self._without + 1
        before = (self.unseen, self.steps_each)
        self.unseen = self._without >= 2 and (updates == 0 or self.steps_each is None)
        if self.steps_each is None and done and self._idle >= 2:
            self.steps_each = steps / done
        return before != (self.unseen, self.steps_each)


# ---- what runs before and after a step --------------------------------------------------------


OTHER_STEP = (
    "the loop calls a step of {name} that was taken or compiled before attach(): updates that are "
    "not finite are reported and not dropped. Compile optimizer.step after attach()"
)
MOVED_BEFORE = (
    "{name} moves its weights before it calls its closure: updates that are not finite are "
    "reported and not dropped"
)
UNSEEN = "the loop does not call the step() of the {name} that attach() was given"
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
        """Why no rate can be scaled: no hook ran in the newest steps, of `made` in this attempt.

        Empty where one did. The table tells of it after two stretches; an order may come before.
        """
        late = self.progress.steps - self.newest >= STRETCH
        return UNSEEN.format(name=self._names) if made and (late or not self.updates) else ""

    def finish_step(self, step: int) -> None:
        """Of several, at a step boundary: whether all have stepped, if any has."""
        stepped = [each.stepped for each in self.watched]
        # then a GradScaler kept the others from stepping
        left_out = self.collector.update_skipper.left_out
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
            lowered, groups = hooks.rates, self._optimizer.param_groups
            if lowered.scale is None and not lowered.lent:
                rates = [group.get("lr") for group in groups]
            else:
                rates = lowered.before_step(step, self._number)
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
                each._grad = each._gradient()
        elif self._grad != self._gradient():
            self._all.tell_once(JUDGED_BEFORE, name=self.name)

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
