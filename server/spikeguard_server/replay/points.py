"""Single measurements, as event files and metric stores hold them, put together to records.

Law: pure. A signal that goes back to an earlier step begins a new stretch, as a log that goes on
from a checkpoint does; within a stretch the newest value of a step stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from spikeguard_server.replay.records import Record

STEP_FIELD = "step"


class LogPoint(NamedTuple):
    """One value of one signal."""

    step: int
    name: str
    value: float


def point_records(place: str, points: Iterable[LogPoint]) -> list[Record]:
    """A record for every step of every stretch, in the order of the points."""
    return [
        Record(f"{place}, step {step}", {STEP_FIELD: step, **fields})
        for stretch in _stretches(points)
        for step, fields in sorted(stretch.items())
    ]


def _stretches(points: Iterable[LogPoint]) -> Iterator[dict[int, dict[str, float]]]:
    stretch: dict[int, dict[str, float]] = {}
    newest: dict[str, int] = {}
    for step, name, value in points:
        if step < newest.get(name, step):
            yield stretch
            stretch, newest = {}, {}
        newest[name] = step
        stretch.setdefault(step, {})[name] = value
    yield stretch
