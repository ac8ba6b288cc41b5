"""Curves of several runs on one axis, and which stretches of them stand after rollbacks."""

from __future__ import annotations

import math
from typing import Any, cast

from spikeguard_client.shapes import RunDetail, Segment, SegmentSeries, Series
from spikeguard_dashboard.alignment import BINS, FEW, binned, by_tokens, not_finite, standing
from spikeguard_dashboard.history import kept_steps

A, B = "a" * 16, "b" * 16


def segment(attempt: str, number: int, parent: tuple[str, int, int] | None) -> dict[str, Any]:
    place = (
        None if parent is None else dict(zip(("attempt", "segment", "step"), parent, strict=True))
    )
    return {"attempt": attempt, "number": number, "parent": place, "current": True}


def detail(*segments: dict[str, Any], **tokens: int | None) -> RunDetail:
    sizes = {A: tokens["a"], B: tokens.get("b")}
    attempts = [{"id": name, "tokens_per_step": size} for name, size in sizes.items()]
    return cast(RunDetail, {"attempts": attempts, "segments": list(segments)})


def test_tokens_are_counted_along_the_line_of_history_through_rollbacks_and_other_batch_sizes() -> (
    None
):
    run = detail(
        segment(A, 0, None), segment(A, 1, (A, 0, 100)), segment(B, 0, (A, 1, 150)), a=10, b=20
    )
    axis = by_tokens(run)
    assert axis.place((A, 0), 120) == 1200
    assert axis.place((A, 1), 120) == 1200  # trained again: counted once
    assert axis.place((B, 0), 160) == 1500 + 10 * 20
    assert by_tokens(detail(segment(A, 0, None), a=None)).place((A, 0), 1) is None


def part(number: int, steps: range, losses: list[float | None]) -> SegmentSeries:
    return {
        "attempt": A, "number": number, "current": True, "steps": list(steps),
        "values": {"loss": losses}, "batches": [None] * len(steps),
    }  # fmt: skip


def test_what_was_undone_is_left_out_and_no_extreme_is_lost_in_a_bin() -> None:
    run = detail(segment(A, 0, None), segment(A, 1, (A, 0, 5000)), a=1)
    first: list[float | None] = [2.0] * 6000
    first[1233], first[2000], first[5500] = 9.0, math.inf, 99.0  # the last one was undone
    parts = [part(0, range(1, 6001), first), part(1, range(5001, 8001), [1.0] * 3000)]
    series: Series = {"signals": ["loss"], "segments": parts, "truncated": False, "trend": None}
    points = standing(series, "loss", kept_steps(run["segments"]), by_tokens(run))
    assert len(points) == 8000 > FEW
    bins = binned(points, (1, 8000))
    assert len(bins) == BINS
    assert max(one.high for one in bins) == 9.0
    assert [one.middle for one in bins if one.high == 9.0] == [9.0]  # the line shows a spike
    assert {one.middle for one in bins if one.high != 9.0} == {2.0, 1.0}
    assert not_finite(points) == [2001]


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
