"""Single measurements, as event files and metric stores hold them, put together to rows.

MLflow's file store: a file a metric, a line `timestamp value step` a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.names import NAMES, STEP, canonical
from spikeguard_replay.source import check_size
from spikeguard_replay.table import NUMBER, Table

RECORD = "meta.yaml"  # of a run or an experiment of MLflow


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
    stretches: list[dict[int, dict[str, object]]] = [{}]
    newest: dict[str, int] = {}
    for step, name, value in points:
        if step < newest.get(name, step):
            stretches.append({})
            newest = {}
        newest[name] = step
        stretches[-1].setdefault(step, {"step": step})[name] = value
    for stretch in stretches:
        for step, fields in sorted(stretch.items()):
            table.add(step, fields)
    return table


def long_table(table: Table) -> Table:
    """Where each row of a table holds the name of a metric and its value, a row a step instead."""
    short = {canonical(name).removeprefix("data_"): table.column(name) for name in table.columns}
    key, value, step = (
        next((short[one] for one in known if one in short), None)
        for known in (("metric", "metric_name", "key", "name", "tag"), ("value",), NAMES[STEP])
    )
    if key is None or value is None or not key.words or value.states.count(NUMBER) < 1:
        return table
    called = {state: name for name, state in key.words.items()}
    steps = range(len(table)) if step is None or NUMBER not in step.states else step.values
    rows = zip(steps, key.states, value.states, value.values, strict=True)
    points = [LogPoint(int(at), called[name], number) for at, name, state, number in rows
              if state == NUMBER and name in called and math.isfinite(at)]  # fmt: skip
    found = point_table(points)
    found.notes = table.notes
    return found


def is_mlflow_run(folder: Path) -> bool:
    """Whether `folder` is one run of MLflow's file store."""
    return (folder / "metrics").is_dir() and (folder / RECORD).is_file()


def mlflow_points(folder: Path) -> list[LogPoint]:
    """Every metric of the run in `folder`, in the order of time; raises `CommandFailed`."""
    metrics = folder / "metrics"
    files = [path for path in sorted(metrics.rglob("*")) if path.is_file()]
    check_size(str(metrics), sum(path.stat().st_size for path in files))
    timed = [one for path in files for one in _lines(path, path.relative_to(metrics).as_posix())]
    return [point for _, point in sorted(timed, key=lambda one: one[0])]


def _lines(path: Path, name: str) -> Iterator[tuple[float, LogPoint]]:
    for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            time, value, step = map(float, line.split()[:3])
            yield time, LogPoint(int(step), name, value)
        except (ValueError, OverflowError) as error:
            raise CommandFailed(
                f"{path}, line {n}: {line[:60]!r} is not `timestamp value step` ({error}): "
                "mend or remove the line"
            ) from None
