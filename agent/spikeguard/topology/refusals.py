"""What one rank refuses at `attach()`, refused on all of them with the same words.

Invariant: pure but for raising.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeAlias

from spikeguard.errors import AttachError

NAMED = 3  # names in a message; the others are counted
Given = ParamSpec("Given")
Refusal: TypeAlias = tuple[str, str, str]  # argument, problem and remedy


def refusal_of(
    check: Callable[Given, object], *given: Given.args, **named: Given.kwargs
) -> Refusal | None:
    """The `AttachError` that `check` raises, for the other ranks."""
    try:
        check(*given, **named)
    except AttachError as error:
        return error.argument, error.problem, error.remedy
    return None


def raise_first(refusals: Sequence[Refusal | None]) -> None:
    """Raise what the lowest rank refuses, on every rank."""
    for rank, refusal in enumerate(refusals):
        if refusal is not None:
            argument, problem, remedy = refusal
            raise AttachError(argument, f"rank {rank}: {problem}" if rank else problem, remedy)


def listed(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(repr(name) for name in names[:NAMED]) + more


def verb(names: Sequence[str], one: str, many: str) -> str:
    """`one` for a single name, else `many`."""
    return one if len(names) == 1 else many
