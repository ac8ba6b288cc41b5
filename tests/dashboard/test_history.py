"""Which stretches stand after rollbacks and restarts."""

from __future__ import annotations

import math
from typing import cast

from spikeguard_client.shapes import Segment
from spikeguard_dashboard.history import kept_steps

ATTEMPT = "9f2c51d07ab34e86"


def branch(number: int, *, current: bool, parent: tuple[int, int] | None = None) -> Segment:
    point = None
    if parent is not None:
        point = {"attempt": ATTEMPT, "segment": parent[0], "step": parent[1]}
    found = {"attempt": ATTEMPT, "number": number, "current": current, "parent": point}
    return cast(Segment, found)


def key(number: int) -> tuple[str, int]:
    return ATTEMPT, number


def test_a_segment_stands_up_to_where_it_was_taken_back() -> None:
    kept = kept_steps([branch(0, current=True), branch(1, current=True, parent=(0, 40))])
    assert kept == {key(0): 40, key(1): math.inf}


def test_a_segment_rolled_back_across_is_undone_whole() -> None:
    tree = [
        branch(0, current=True),
        branch(1, current=False, parent=(0, 60)),
        branch(2, current=True, parent=(0, 40)),
    ]
    assert kept_steps(tree) == {key(0): 40, key(2): math.inf}
