"""SQLite databases of MLflow and trackio, opened so that nothing can be written.

Formats: mlflow/store/tracking/dbmodels/models.py (a row a value) and trackio/sqlite_storage.py (a
row a step, its metrics as JSON).
"""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.log import run_of
from spikeguard_replay.objects import flat
from spikeguard_replay.points import LogPoint, point_table
from spikeguard_replay.table import Table

SQLITE_MAGIC = b"SQLite format 3\0"
LARGEST = 1.7976931348623157e308  # what MLflow's database holds for an infinity


def database_table(path: Path, run: str | None) -> tuple[Table, str]:
    """Every metric of one run, and what wrote the database; raises `CommandFailed`."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as store:
            made = {name for (name,) in store.execute("select name from sqlite_master")}
            if {"metrics", "configs"} <= made:
                return _trackio(path, store, run)
            if {"metrics", "runs"} <= made:
                return _mlflow(path, store, run)
            raise ValueError("no tables `runs` and `metrics`")
    except (sqlite3.Error, UnicodeDecodeError, ValueError, TypeError) as error:
        raise CommandFailed(
            f"{path}: no database of MLflow or trackio ({error}): give a log, or export the metrics"
        ) from error


def _mlflow(path: Path, store: sqlite3.Connection, run: str | None) -> tuple[Table, str]:
    runs = dict(store.execute(
        "select run_uuid, coalesce(name, run_uuid) from runs "
        "where run_uuid in (select run_uuid from metrics) order by start_time"
    ))  # fmt: skip
    key = run_of(str(path), runs, run)
    rows = store.execute(
        "select step, key, value, is_nan from metrics where run_uuid = ? order by timestamp, step",
        (key,),
    )
    points = (LogPoint(int(step), key, _number(value, nan)) for step, key, value, nan in rows)
    return point_table(points), f"MLflow metrics of run {runs[key]}"


def _number(value: float, nan: object) -> float:
    if nan:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else float(value)


def _trackio(path: Path, store: sqlite3.Connection, run: str | None) -> tuple[Table, str]:
    runs = store.execute("select run_name from metrics group by run_name order by min(id)")
    name = run_of(str(path), {name: name for (name,) in runs}, run)
    table = Table()
    rows = store.execute(
        "select id, step, metrics from metrics where run_name = ? order by id", (name,)
    )
    for number, step, metrics in rows:
        table.add(number, {**dict(flat(json.loads(metrics))), "step": step})
    return table, f"trackio metrics of run {name}"
