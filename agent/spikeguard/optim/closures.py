"""Optimizer steps that are given a closure: their gradients exist only once it has run.

Law: what judges the update runs after the closure and before the weights move. A closure that is
called several times a step (LBFGS) is judged once, after the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
