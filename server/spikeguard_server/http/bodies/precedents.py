"""Bodies about earlier similar incidents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import Field

from spikeguard_protocol import IncidentId, Outcome, Verb
from spikeguard_server.domain.lifecycle.precedents import Precedent, tallied
from spikeguard_server.http.bodies.run_shapes import Shape, example

NEWEST: Final = 5  # that are named
PRECEDENTS_EXAMPLE: dict[str, Any] = {
    "incidents": 6,
    "newest": ["gpt-124m-6#4", "gpt-124m-7#1"],
    "actions": [
        {
            "verb": "rollback",
            "count": 4,
            "outcomes": {"recovered": 3, "level_accepted": 1},
            "lost_steps": 180,
            "words": "rolled back 4 times: 3 recovered, 1 stayed at a new level; 180 steps lost in "
            "the median",
        },
        {
            "verb": None,
            "count": 2,
            "outcomes": {"healed": 1, "run_ended": 1},
            "lost_steps": None,
            "words": "waited 2 times: 1 healed, 1 unsettled when the run ended",
        },
    ],
}


class ActionTally(Shape):
    """What one way of acting came to."""

    verb: Verb | None = Field(description="the last that was carried out; null: nothing was done")
    count: int
    outcomes: dict[Outcome, int] = Field(description="how many ended so, the most frequent first")
    lost_steps: int | None = Field(description="median; null: not known")
    words: str


class Precedents(Shape):
    """Closed incidents of the project, before this one, of its kind and likeliest cause."""

    model_config = example(PRECEDENTS_EXAMPLE)

    incidents: int = Field(description="the newest 200 at most")
    newest: list[str] = Field(description="up to 5 of them")
    actions: list[ActionTally] = Field(description="the most frequent first")


def precedents_body(found: Sequence[tuple[IncidentId, Precedent]]) -> Precedents:
    """What was done about them, and what that came to."""
    return Precedents(
        incidents=len(found),
        newest=[str(id) for id, _ in found[:NEWEST]],
        actions=[ActionTally.model_validate(t) for t in tallied(one for _, one in found)],
    )
