"""A run's folder of MLflow's file store: a file a metric, a line `timestamp value step` a value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.points import LogPoint, number_in, step_in
from spikeguard_replay.source import check_size

RECORD = "meta.yaml"  # of a run or an experiment


def is_run(folder: Path) -> bool:
    """Whether `folder` is one run of a file store."""
    return (folder / "metrics").is_dir() and (folder / RECORD).is_file()


def run_points(folder: Path) -> list[LogPoint]:
    """Every metric of the run in `folder`, in the order of time; raises `CommandFailed`."""
    metrics = folder / "metrics"
    files = [path for path in sorted(metrics.rglob("*")) if path.is_file()]
    bytes_read = 0
    for path in files:  # of all together: they are read into one list
        bytes_read = check_size(path, bytes_read)
    timed = [one for path in files for one in _lines(path, path.relative_to(metrics).as_posix())]
    return [point for _, point in sorted(timed, key=lambda one: one[0])]


def _lines(path: Path, name: str) -> Iterator[tuple[float, LogPoint]]:
    for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        cells, place = line.split(), f"{path}, line {n}"
        if not cells:
            continue
        if len(cells) < 3:
            raise CommandFailed(f"{place}: not `timestamp value step`: mend or remove the line")
        point = LogPoint(step_in(place, cells[2]), name, number_in(place, cells[1]))
        yield number_in(place, cells[0]), point
