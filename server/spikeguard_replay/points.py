"""Single measurements, as event files and metric stores hold them, put together to rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.table import Table


class LogPoint(NamedTuple):
    """One value of one signal."""

    step: int
    name: str
    value: float


def point_table(points: Iterable[LogPoint]) -> Table:
    """A row for every step of every stretch, in the order of the points.

    A signal that goes back to an earlier step begins a new stretch, as in a run that went on from a
    checkpoint; within a stretch the newest value of a step stands.
    """
    table = Table()
    stretch: dict[int, dict[str, object]] = {}
    newest: dict[str, int] = {}
    for step, name, value in points:
        if step < newest.get(name, step):
            _close(table, stretch)
            stretch, newest = {}, {}
        newest[name] = step
        stretch.setdefault(step, {"step": step})[name] = value
    _close(table, stretch)
    return table


def _close(table: Table, stretch: dict[int, dict[str, object]]) -> None:
    for step, fields in sorted(stretch.items()):
        table.add(step, fields)


def number_in(place: str, written: str) -> float:
    """The number that a store wrote; raises `CommandFailed`."""
    try:
        return float(written)
    except ValueError:
        raise CommandFailed(f"{place}: {written[:60]!r} is no number: mend or remove it") from None


def step_in(place: str, written: str) -> int:
    """The step that a store wrote; raises `CommandFailed`."""
    step = number_in(place, written)
    if not 0 <= step < 2**53 or step != int(step):
        raise CommandFailed(f"{place}: {written[:60]!r} is not a whole step number")
    return int(step)
