"""Metrics out of MLflow's stores: a run's folder of the file store, or the SQLite database.

Law: reads only; the database is opened so that nothing can be written. Formats:
mlflow/store/tracking/file_store.py (a file a metric, a line "timestamp value step" a value) and
mlflow/store/tracking/dbmodels/models.py (SqlMetric: key, value, is_nan, step, timestamp, run_uuid).
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from spikeguard_cli.command import CommandFailed
from spikeguard_server.replay.log_size import check_size
from spikeguard_server.replay.numbers import parse_number, whole_step
from spikeguard_server.replay.points import LogPoint

SQLITE_MAGIC = b"SQLite format 3\0"
RECORD = "meta.yaml"  # of a run or an experiment
LARGEST = 1.7976931348623157e308  # what the database holds for an infinity
LONGEST = 1_000_000  # bytes of a value of the database
TABLES = ("runs", "metrics")
Timed = tuple[float, LogPoint]


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


def _lines(path: Path, name: str) -> Iterator[Timed]:
    text = path.read_text(encoding="utf-8")
    for n, line in enumerate(text.splitlines(), start=1):
        cells, place = line.split(), f"{path}, line {n}"
        if not cells:
            continue
        if len(cells) < 3:
            raise CommandFailed(f"{place}: not `timestamp value step`: mend or remove the line")
        step = whole_step(place, cells[2])
        yield parse_number(place, cells[0]), LogPoint(step, name, parse_number(place, cells[1]))


def database_points(path: Path, run: str | None) -> tuple[list[LogPoint], str]:
    """Every metric of one run of the database, and that run's name; raises `CommandFailed`."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as store:
            store.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
            _check_tables(path, store)
            runs = dict(
                store.execute(
                    "select run_uuid, coalesce(name, run_uuid) from runs "
                    "where run_uuid in (select run_uuid from metrics) order by start_time"
                )
            )
            chosen = _chosen(path, runs, run)
            rows = store.execute(
                "select step, key, value, is_nan from metrics where run_uuid = ? "
                "order by timestamp, step",
                (chosen,),
            )
            return [_point(path, *row) for row in rows], str(runs[chosen])
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"{path}: no MLflow tracking database ({error}): give a log, or export the metrics"
        ) from error


def _check_tables(path: Path, store: sqlite3.Connection) -> None:
    """A view may go on without end, and so may what is computed: a file of MLflow's has neither."""
    made = store.execute(
        "select m.name, m.type, (select count(*) from pragma_table_xinfo(m.name) x where x.hidden) "
        "from sqlite_master m where m.name in (?, ?)",
        TABLES,
    )
    if sorted(made) != [(name, "table", 0) for name in sorted(TABLES)]:
        raise CommandFailed(
            f"{path}: no MLflow tracking database (it has no plain tables "
            f"{' and '.join(TABLES)}): give a log, or export the metrics"
        )


def _point(path: Path, step: object, key: object, value: object, nan: object) -> LogPoint:
    if not isinstance(step, int) or not isinstance(value, int | float):
        raise CommandFailed(
            f"{path}, metric {key}: value {value!r:.60} at step {step!r:.60}: "
            "mend or remove the row"
        )
    return LogPoint(step, str(key), _value(value, bool(nan)))


def _chosen(path: Path, runs: dict[str, str], run: str | None) -> str:
    found = [uuid for uuid, name in runs.items() if run is None or run in (uuid, name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{name} ({uuid})" for uuid, name in list(runs.items())[:10]) or "none"
    raise CommandFailed(
        f"{path}: {len(found)} runs with metrics{'' if run is None else f' called {run}'}: "
        f"name one with --run NAME (found {known})"
    )


def _value(value: float, nan: bool) -> float:
    """The database can't hold non-finite numbers: NaN is flagged, an infinity is the largest."""
    if nan:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else value
