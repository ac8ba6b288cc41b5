"""Keeps a non-finite update out of the weights, without a sync where the optimizer can do it.

One decision an update, made on the device from values that are equal on all ranks. It is carried
out by the optimizers themselves through the `found_inf` input that stock fused Adam, AdamW and SGD
without momentum take: exactly 0 or 1, a scalar, so that weights, moments and counters stay
bit-identical (0 * NaN is NaN, so nothing is multiplied). Where one of them cannot, the host reads
the decision in each step, and an update that must not happen is entered by none (`OptimizerStep`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from spikeguard.errors import AttachError
from spikeguard.optim.optimizers import trained_by
from spikeguard.ranks.layout import Topology
from spikeguard.ranks.model_parts import is_sharded, local, onto

_ABSENT: Final = object()
STILL_SCALED: Final = (
    "gradients that carry the loss scale are clipped to max_norm over that scale: call "
    "scaler.unscale_(optimizer) before guard.clip_grad_norm_()"
)


def can_drop(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` is a stock Adam, AdamW or SGD, fused in every group.

    SGD sharded or with momentum is not: its first step sets that up before it looks at the flag.
    """
    if type(optimizer) is torch.optim.SGD:
        groups = optimizer.param_groups
        apart = any(group["momentum"] or is_sharded(group["params"]) for group in groups)
        return _fused(optimizer) and not apart
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and _fused(optimizer)


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return all(group.get("fused") for group in optimizer.param_groups)


def can_skip_by_sync(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of `optimizer` is one update; L-BFGS makes several, judged at the first."""
    return not isinstance(optimizer, torch.optim.LBFGS)


def takes_flag(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Whether every update can be dropped without the host."""
    return all(map(can_drop, optimizers))


def non_finite(norm: Tensor, loss: Tensor | None) -> Tensor:
    """1.0 where the update must not happen, else 0.0: () fp32 on the norm's device.

    What is not finite is not 0 less itself but NaN: a third of the launches of two `isfinite`.
    """
    rest = norm - norm
    if loss is not None:
        rest = rest + onto(loss - loss, norm.device)
    return torch.nan_to_num(rest.float(), nan=1.0)


class UpdateSkipper:
    """Lends the optimizers a `found_inf` for one update and takes it back.

    One decision holds for all of them. `by_sync`: where one of them takes no `found_inf`, the host
    reads the decision in `leaves_out`.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        enabled: bool,
        by_sync: bool = False,
    ) -> None:
        self._optimizers: tuple[Any, ...] = tuple(optimizers)
        self._enabled = enabled
        self.device = trained_by(optimizers)[0].device  # that the host would wait for
        self.by_sync = enabled and by_sync and all(map(can_skip_by_sync, optimizers))
        self.can_skip = False  # whether the update that is judged can still be left out
        self._flag: Tensor | None = None  # of the update under way, where it can be held back
        self.lends = False  # whether the optimizers take the flag themselves
        self._read: bool | None = None  # the flag, where the host had to read it
        self.lent: list[tuple[Any, Any]] = []  # optimizers, and what was there before

    @property
    def armed(self) -> bool:
        """Whether this rank can leave the next update out; groups may change while training."""
        return self.by_sync or self.able()

    def able(self) -> bool:
        """Whether the optimizers themselves can drop this update."""
        return self._enabled and all(map(can_drop, self._optimizers))

    def judge(
        self,
        norm: Tensor,
        loss: Tensor | None,
        found: Tensor | None = None,
        unable: Tensor | None = None,
    ) -> Tensor:
        """Judge the update of all; returns 1.0 where it is dropped (or, unarmed, 0.0).

        `found`: what `found_by_scaler` says of this step; either may drop it. `unable`: how many
        ranks cannot drop it; then no rank does.
        """
        self._flag = self._read = None
        flag, self.lends = non_finite(norm, loss), self.able()
        if not self.lends and not self.can_skip:
            return torch.zeros_like(flag)
        if found is not None:
            flag = torch.maximum(flag, found.to(flag.device))
        if unable is not None:
            flag = torch.where(unable.to(flag.device) > 0.0, torch.zeros_like(flag), flag)
        self._flag = flag
        return flag

    def hold(self, number: int, found: Tensor | None = None) -> None:
        """In the pre-hook of that optimizer: lend it the flag of this update, if it takes one."""
        flag = self._flag
        if flag is None:
            return
        optimizer = self._optimizers[number]
        if not (self.lends or can_drop(optimizer)):
            return
        if found is not None:
            flag = torch.maximum(flag, found.to(flag.device))
        self.lent.append((optimizer, getattr(optimizer, "found_inf", _ABSENT)))
        optimizer.found_inf = flag

    @property
    def left_out(self) -> bool:
        """Whether the host has read that the newest update is left out."""
        return self._read is True

    def leaves_out(self) -> bool:
        """Whether no optimizer's step must be entered: the sync that was paid for, once."""
        if self._flag is None or self.lends:
            return False
        if self._read is None:
            self._read = False  # where reading fails, it is not tried at the next optimizer again
            self._read = self._flag.item() > 0.0
        return self._read

    def after_step(self) -> None:
        """Leave the attribute as it was found."""
        while self.lent:
            optimizer, found = self.lent.pop()
            if found is _ABSENT:
                del optimizer.found_inf
            else:
                optimizer.found_inf = found


def found_by_scaler(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """0.0 or 1.0, () fp32, within a step that a GradScaler leaves to a fused optimizer; else None.

    Exactly: a scaler adds up its devices, and fused Adam takes its flag out of the count.
    """
    found = getattr(optimizer, "found_inf", None)
    return (found != 0).to(torch.float32).reshape(()) if isinstance(found, Tensor) else None


def loss_scale(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """The scale that the gradients still carry where a GradScaler left unscaling to the step."""
    scale = getattr(optimizer, "grad_scale", None)
    return scale if isinstance(scale, Tensor) else None


def still_scaled(scaler: GradScaler, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """What is wrong where nobody has called `unscale_` since the last step; empty where one has."""
    states = [scaler._per_optimizer_states.get(id(each), {}) for each in optimizers]
    unscaled = all(getattr(each.get("stage"), "name", "") == "UNSCALED" for each in states)
    return "" if unscaled or scaler._scale is None else STILL_SCALED


def scalers_of(given: Sequence[Any]) -> list[Any]:
    """GradScalers among the entries of `state=` that are switched on."""
    return [each for each in given if isinstance(each, GradScaler) and each.is_enabled()]


def refuse_scalers(given: Sequence[Any], topology: Topology) -> None:
    """Raise `AttachError` where ranks see different gradients; the same on all ranks.

    A scaler looks at this rank's gradients alone. Of pipeline stages, and of ranks with experts of
    their own, one would skip its step and halve its scale while the others do neither.
    """
    if (topology.stages > 1 or topology.groups) and scalers_of(given):
        raise AttachError(
            "state",
            "a GradScaler judges the gradients of one rank, and the ranks of a pipeline or of "
            "shard groups have different ones: they would skip different steps",
            "Train in bf16, which needs no scaler",
        )


# ---- where the host reads the decision --------------------------------------------------------


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
