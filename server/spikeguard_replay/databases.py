"""SQLite databases of MLflow and trackio, opened so that nothing can be written.

Formats: mlflow/store/tracking/dbmodels/models.py (a row a value) and trackio/sqlite_storage.py (a
row a step, its metrics as JSON).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.objects import flat
from spikeguard_replay.points import LogPoint, point_table
from spikeguard_replay.table import Table

SQLITE_MAGIC = b"SQLite format 3\0"
LARGEST = 1.7976931348623157e308  # what MLflow's database holds for an infinity
LONGEST = 1_000_000  # bytes of a value of the database


def database_table(path: Path, run: str | None) -> tuple[Table, str]:
    """Every metric of one run, and what wrote the database; raises `CommandFailed`."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as store:
            store.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
            if _has_tables(store, "metrics", "configs"):
                return _trackio(path, store, run)
            if _has_tables(store, "metrics", "runs"):
                return _mlflow(path, store, run)
    except (sqlite3.Error, UnicodeDecodeError, ValueError) as error:
        raise CommandFailed(
            f"{path}: no database of MLflow or trackio ({error}): give a log, or export the metrics"
        ) from error
    raise CommandFailed(
        f"{path}: no database of MLflow or trackio (no plain tables `runs` and `metrics`): "
        "give a log, or export the metrics"
    )


def _has_tables(store: sqlite3.Connection, *names: str) -> bool:
    """Whether these are plain tables: a view, and what is computed, may go on without end."""
    made = store.execute(
        "select m.name, m.type, (select count(*) from pragma_table_xinfo(m.name) x where x.hidden) "
        "from sqlite_master m where m.name in (?, ?)",
        names,
    )
    return sorted(made) == [(name, "table", 0) for name in sorted(names)]


def _mlflow(path: Path, store: sqlite3.Connection, run: str | None) -> tuple[Table, str]:
    runs = dict(
        store.execute(
            "select run_uuid, coalesce(name, run_uuid) from runs "
            "where run_uuid in (select run_uuid from metrics) order by start_time"
        )
    )
    chosen = _chosen(path, runs, run)
    rows = store.execute(
        "select step, key, value, is_nan from metrics where run_uuid = ? order by timestamp, step",
        (chosen,),
    )
    points = [_point(path, *row) for row in rows]
    return point_table(points), f"MLflow metrics of run {runs[chosen]}"


def _point(path: Path, step: object, key: object, value: object, nan: object) -> LogPoint:
    if not isinstance(step, int) or not isinstance(value, int | float):
        raise CommandFailed(
            f"{path}, metric {key}: value {value!r:.60} at step {step!r:.60}: "
            "mend or remove the row"
        )
    if nan:
        return LogPoint(step, str(key), math.nan)
    infinite = abs(value) >= LARGEST
    return LogPoint(step, str(key), math.copysign(math.inf, value) if infinite else value)


def _trackio(path: Path, store: sqlite3.Connection, run: str | None) -> tuple[Table, str]:
    names: Sequence[str] = [name for (name,) in store.execute(_TRACKIO_RUNS)]
    chosen = _chosen(path, {name: name for name in names}, run)
    table = Table()
    rows = store.execute(
        "select id, step, metrics from metrics where run_name = ? order by id", (chosen,)
    )
    for number, step, metrics in rows:
        table.add(number, {**dict(flat(json.loads(metrics))), "step": step})
    return table, f"trackio metrics of run {chosen}"


_TRACKIO_RUNS = "select run_name from metrics group by run_name order by min(id)"


def _chosen(path: Path, runs: Mapping[str, str], run: str | None) -> str:
    found = [key for key, name in runs.items() if run is None or run in (key, name)]
    if len(found) == 1:
        return found[0]
    known = [name if name == key else f"{name} ({key})" for key, name in runs.items()]
    raise CommandFailed(
        f"{path}: {len(found)} runs with metrics{'' if run is None else f' called {run}'}: "
        f"name one with --run NAME (found {', '.join(known[:10]) or 'none'})"
    )
