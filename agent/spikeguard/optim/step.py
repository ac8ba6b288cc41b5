"""The watched optimizer's `step`, wrapped on the instance so that a bad update is not entered.

Used where an optimizer takes no `found_inf` and the host reads the decision: on a CPU, and on a GPU
where `Settings.skip_by_sync` asks for it.
Invariants: of an update that is left out nothing of the optimizer runs, neither its step nor
anybody's step hooks, and its gradients stay where they are. A scheduler counts the step all the
same. A step that takes a closure is ended behind the closure, before the optimizer has moved
anything; one that has moved weights by then is let through, and told as such. SAM has moved its
weights before its step, which puts them back and calls the optimizer inside: there the step runs
and that of the one inside does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any, Final

import torch

from spikeguard.ranks.shards import local

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def after_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], judge: Callable[[Any], None]
) -> Arguments | None:
    """The step's arguments with `judge(loss)` behind its closure; None if it has none.

    `args` as a step pre-hook gets them: without the optimizer itself, or with it in front.
    """
    places = [i for i, value in enumerate(args) if _is_closure(value)]
    if places:
        judged = _judged(args[places[0]], judge)
        return tuple(judged if i == places[0] else v for i, v in enumerate(args)), kwargs
    if _is_closure(kwargs.get("closure")):
        return args, {**kwargs, "closure": _judged(kwargs["closure"], judge)}
    return None


def _is_closure(value: Any) -> bool:
    return callable(value) and not hasattr(value, "param_groups")


def _judged(closure: Callable[[], Any], judge: Callable[[Any], None]) -> Callable[[], Any]:
    pending = [judge]

    def run() -> Any:
        result = closure()
        if pending:
            pending.pop()(result)
        return result

    return run


_ABSENT: Final = object()


class UpdateSkipped(Exception):
    """Ends a step from within its closure; never leaves this module."""

    def __init__(self, loss: Any) -> None:
        super().__init__("the update is left out")
        self.loss = loss


class OptimizerStep:
    """In the place of `optimizer.step`; `remove` puts back what was there."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        judge: Callable[[bool], bool],
        finish: Callable[[], None],
    ) -> None:
        """`judge(can_skip)`: whether to leave the update out. `finish`: called where it was."""
        watched: Any = optimizer
        self._optimizer, self._judge, self._finish = watched, judge, finish
        self._before = vars(optimizer).get("step", _ABSENT)
        self._inner: Callable[..., Any] = optimizer.step
        self._within = _inside(optimizer)
        self._stood = self._versions() if self._within else []  # when a step had ended
        self.entered = False  # whether the update that the optimizer's hooks see was judged here
        self._removed = False
        self._own = MethodType(self._wrapper(), optimizer)
        self._optimizer.step = self._own

    def remove(self) -> None:
        """Step as before; somebody else's wrapper that lies around this one stays."""
        self._removed = True
        if vars(self._optimizer).get("step") is not self._own:
            return
        if self._before is _ABSENT:
            del self._optimizer.step
        else:
            self._optimizer.step = self._before

    def _wrapper(self) -> Callable[..., Any]:
        """A function of the optimizer, as schedulers ask for that wrap a step in their turn."""

        # not traced, since the host reads a value: a compiled step begins behind it
        leaves_out = torch.compiler.disable(self._leaves_out)
        with_arguments = torch.compiler.disable(self._with_arguments)

        @wraps(self._inner)
        def step(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs:
                return with_arguments(args, kwargs)
            if leaves_out():
                return None
            return self._inner()

        return step

    def _leaves_out(self) -> bool:
        """Whether the update under way is left out."""
        if self._removed:
            return False
        if self._judge(True):
            if self._within and self._versions() != self._stood:
                self._step_around()
            else:
                self._skipped()
            return True
        self.entered = True
        return False

    def _step_around(self) -> None:
        """Step without the optimizers inside: the weights go back to where they were."""
        self.entered = True
        before = [vars(each).get("step", _ABSENT) for each in self._within]
        for each in self._within:
            each.step = lambda *_, **__: None
        try:
            self._inner()
        finally:
            for each, was in zip(self._within, before, strict=True):
                if was is _ABSENT:
                    del each.step
                else:
                    each.step = was

    def stepped(self) -> None:
        """A step has ended, left out or not."""
        if self._within:
            self._stood = self._versions()

    def _with_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def judge(loss: Any) -> None:
            if self._judge(self._versions() == before):
                raise UpdateSkipped(loss)

        behind = None if self._removed else after_closure(args, kwargs, judge)
        if behind is None:
            return None if self._leaves_out() else self._inner(*args, **kwargs)
        before = self._versions()
        self.entered = True
        try:
            return self._inner(*behind[0], **behind[1])
        except UpdateSkipped as skipped:
            self._skipped()
            return skipped.loss

    def _skipped(self) -> None:
        self.entered = False
        self._optimizer._opt_called = True  # what a scheduler asks for before its own first step
        self._finish()

    def _versions(self) -> list[int]:
        """They grow with each change in place."""
        groups = self._optimizer.param_groups
        return [local(p)._version for group in groups for p in group["params"]]


def _inside(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Optimizers among its attributes, which its own step calls."""
    return [each for each in vars(optimizer).values() if isinstance(each, torch.optim.Optimizer)]
