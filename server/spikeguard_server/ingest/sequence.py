"""Which messages of an attempt are stored, given what it declares as lost.

Law: pure. Numbers count up without holes; a hole is closed by a declared gap or not at all.
"""

from __future__ import annotations

from spikeguard_protocol import Gap, Message


def reached(last: int, message: Message) -> int | None:
    """The highest sequence stored once `message` is, after `last`; None if it leaves a hole."""
    gaps = sorted((r.first, r.last) for r in message.records if isinstance(r, Gap))
    reach = _over(last, gaps)
    if message.sequence > reach + 1:
        return None
    return _over(max(reach, message.sequence), gaps)


def _over(reach: int, gaps: list[tuple[int, int]]) -> int:
    for first, last in gaps:
        if first <= reach + 1:
            reach = max(reach, last)
    return reach
