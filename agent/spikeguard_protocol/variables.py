"""Variables of the environment that are named almost as one of ours is.

What is set under such a name counts for nothing, and nobody would be told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

PREFIX = "SPIKEGUARD_"
NEAR = 0.85  # difflib's ratio: a letter of four; DASHBOARD_PORT is not taken for DASHBOARD_URL


def misspelt(environment: Iterable[str], known: Collection[str]) -> tuple[str, str] | None:
    """A variable that is none of `known`, and the one that is meant; None where there is none."""
    names = [name.removeprefix(PREFIX) for name in known]
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known:
            continue
        if near := get_close_matches(name.removeprefix(PREFIX), names, 1, NEAR):
            return name, PREFIX + near[0]
    return None
