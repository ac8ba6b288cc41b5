"""What one rank refuses at `attach()`, refused on all of them with the same words.

Invariant: pure but for raising.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import ParamSpec

from spikeguard.errors import AttachError

NAMED = 3  # names in a message; the others are counted
Given = ParamSpec("Given")


def refusal_of(check: Callable[Given, object], *given: Given.args, **named: Given.kwargs) -> str:
    """The `AttachError` that `check` raises, as JSON for the other ranks; empty if none."""
    try:
        check(*given, **named)
    except AttachError as error:
        return as_json(error)
    return ""


def as_json(error: AttachError) -> str:
    """For `raise_first`."""
    return json.dumps([error.argument, error.problem, error.remedy])


def raise_first(refusals: Sequence[str]) -> None:
    """Raise what the lowest rank refuses, on every rank."""
    for rank, refusal in enumerate(refusals):
        if refusal:
            argument, problem, remedy = json.loads(refusal)
            raise AttachError(argument, f"rank {rank}: {problem}" if rank else problem, remedy)


def listed(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(repr(name) for name in names[:NAMED]) + more


def verb(names: Sequence[str], one: str, many: str) -> str:
    """`one` for a single name, else `many`."""
    return one if len(names) == 1 else many
