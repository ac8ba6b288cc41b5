"""What was ordered before, out of the entries of the journal, and how long ago it counts as.

Invariants
- Pure but for the clocks: entries in, verbs and moments by the monotonic clock of this process out.
"""

from __future__ import annotations

import time
from typing import Any

from spikeguard_protocol import Action, ProtocolError, Verb, from_json, verb_of


def past_orders(entries: list[dict[str, Any]]) -> list[tuple[Verb, float]]:
    """What was ordered and when, by the monotonic clock of this process.

    No entry is later than one behind it, or than now: one that says so was dated by a clock that
    was ahead, and would count for as long as that was.
    """
    wall, steady, found = time.time(), time.monotonic(), list[tuple[Verb, float]]()
    latest = wall
    for entry in reversed(entries):
        if (verb := verb_in(entry)) is not None:
            latest = min(latest, float(entry["at"]))
            found.append((verb, steady - (wall - latest)))
    return found[::-1]


def verb_in(entry: dict[str, Any]) -> Verb | None:
    """What was ordered, where the entry says it and when."""
    action, at = entry.get("action"), entry.get("at")
    if action is None or not isinstance(at, int | float) or not abs(at) < 1e12:
        return None
    try:
        return verb_of(from_json(Action, action))
    except ProtocolError:  # of a newer release
        return None
