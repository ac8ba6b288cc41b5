"""Stores of metrics: TensorBoard's event files, MLflow's and trackio's, a guard's own directory.

Formats: mlflow/store/tracking/file_store.py (a file a metric, a line `timestamp value step` a
value), mlflow/store/tracking/dbmodels/models.py (a row a value), trackio/sqlite_storage.py (a row a
step, its metrics as JSON), spikeguard.uplink.backlog (sealed lines).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.extras import install_command
from spikeguard_protocol.encoding import SpooledLine, read_spooled, spool_name
from spikeguard_replay.log import Columns, Table, run_of
from spikeguard_replay.names import NAMES, STEP
from spikeguard_replay.objects import flat

RECORD: Final = "meta.yaml"  # of a run or an experiment of MLflow
SQLITE_MAGIC: Final = b"SQLite format 3\0"
LARGEST: Final = 1.7976931348623157e308  # what MLflow's database holds for an infinity
SPOOLED: Final = "[0-9]*.jsonl"  # a message of a guard's outbox
MARK: Final = "tfevents"  # every event file's name holds it
LogPoint = tuple[int, str, float]  # step, signal, value
REMEDY: Final = "the file is damaged or no TensorBoard event file; copy it again, or leave it out"


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


_KEYS: Final = ("metric", "metric_name", "key", "name", "tag")


def metric_table(columns: Columns) -> Table | None:
    """A row a step, where each row of a table holds the name of a metric and its value; else
    None."""
    short = {one.removeprefix("data_"): columns[name] for name, one in columns.short.items()}
    key, value, step = (
        next((short[one] for one in known if one in short), None)
        for known in (_KEYS, ("value", "metric_value"), NAMES[STEP])
    )
    if key is None or value is None or not key.words or not value.measured.any():
        return None
    called = {state: name for name, state in key.words.items()}
    none = step is None or not step.measured.any()
    steps = np.arange(len(columns.lines)) if step is None or none else step.values
    rows = zip(steps, key.states, value.measured, value.values, strict=True)
    return point_table(
        (int(at), called[name], number)
        for at, name, measured, number in rows
        if measured and name in called and math.isfinite(at)
    )


def is_mlflow_run(folder: Path) -> bool:
    """Whether `folder` is one run of MLflow's file store."""
    return (folder / "metrics").is_dir() and (folder / RECORD).is_file()


def mlflow_table(folder: Path) -> Table:
    """Every metric of the run in `folder`, in the order of time; raises `CommandFailed`."""
    metrics = folder / "metrics"
    files = [path for path in sorted(metrics.rglob("*")) if path.is_file()]
    timed = [one for path in files for one in _lines(path, path.relative_to(metrics).as_posix())]
    return point_table(point for _, point in sorted(timed, key=lambda one: one[0]))


def _lines(path: Path, name: str) -> Iterator[tuple[float, LogPoint]]:
    for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            time, value, step = map(float, line.split()[:3])
            yield time, (int(step), name, value)
        except (ValueError, OverflowError) as error:
            raise CommandFailed(
                f"{path}, line {n}: {line[:60]!r} is not `timestamp value step` ({error}): "
                "mend or remove the line"
            ) from None


def database_table(path: Path, run: str | None) -> tuple[str, Table]:
    """What wrote an SQLite database, and every metric of one of its runs; nothing is written there.
    Raises `CommandFailed`."""
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


def _mlflow(path: Path, store: sqlite3.Connection, run: str | None) -> tuple[str, Table]:
    runs = dict(store.execute(
        "select run_uuid, coalesce(name, run_uuid) from runs "
        "where run_uuid in (select run_uuid from metrics) order by start_time"
    ))  # fmt: skip
    key = run_of(str(path), runs, run)
    rows = store.execute(
        "select step, key, case when is_nan then 'nan' when value >= :largest then 'inf' "
        "when value <= -:largest then '-inf' else value end "
        "from metrics where run_uuid = :key order by timestamp, step",
        {"largest": LARGEST, "key": key},
    )
    points = ((int(step), key, float(value)) for step, key, value in rows)
    return f"MLflow metrics of run {runs[key]}", point_table(points)


def _trackio(path: Path, store: sqlite3.Connection, run: str | None) -> tuple[str, Table]:
    runs = store.execute("select run_name from metrics group by run_name order by min(id)")
    name = run_of(str(path), {name: name for (name,) in runs}, run)
    table = Table()
    rows = store.execute(
        "select id, step, metrics from metrics where run_name = ? order by id", (name,)
    )
    for number, step, metrics in rows:
        table.add(number, {**dict(flat(json.loads(metrics))), "step": step})
    return f"trackio metrics of run {name}", table


def event_points(path: Path) -> Iterator[LogPoint]:
    """Every scalar of an event file, in its order, by TensorBoard's own reader.

    A last record that is cut off, as a run that still writes or was killed leaves it, is passed
    over. Raises `CommandFailed`, with the place of a record whose checksum is wrong.
    """
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.tensorflow_stub import errors
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise CommandFailed(
            f"{path}: TensorBoard reads its own files: {install_command('tensorboard')}"
        ) from None
    reader = PyRecordReader_New(str(path))
    for number in count(1):
        try:
            reader.GetNext()
            event = Event.FromString(reader.record())
            points: list[LogPoint] = []
            for one in event.summary.value:
                value: Any = one.simple_value if one.HasField("simple_value") else None
                if one.HasField("tensor") and not one.tensor.tensor_shape.dim:  # newer
                    value = make_ndarray(one.tensor)
                if one.tag and np.asarray(value).dtype.kind == "f":
                    points.append((event.step, one.tag, float(value)))
        except errors.OutOfRangeError:
            return
        except (DecodeError, errors.DataLossError, ValueError, TypeError, KeyError, OverflowError,
                MemoryError) as error:  # fmt: skip
            if "truncated" in str(error):
                return
            raise CommandFailed(f"{path}, record {number}: {error}: {REMEDY}") from None
        yield from points


def segments_in(folder: Path) -> list[Path]:
    """The messages of all attempts, where `folder` is a guard's directory or an outbox."""
    return [path for outbox in ("outbox", ".") for path in folder.glob(f"{outbox}/*/{SPOOLED}")]


def guard_table(segments: list[Path]) -> Table:
    """The samples of all attempts, a row a step, in the order in which they were measured."""
    lines: list[SpooledLine] = []
    damaged = 0
    for path in segments:
        name = spool_name(path.parent.name, int(path.stem) if path.stem.isdecimal() else 0)
        found, lost = read_spooled(path.read_bytes(), name)
        lines += found
        damaged += lost
    table = Table()
    for line in sorted(lines, key=lambda one: (one.at, one.start)):
        if "step" in line.entry:
            table.add(line.start.number, {"step": line.entry["step"], **line.entry["signals"]})
    if damaged:
        table.notes.append(f"{damaged:,} damaged bytes left out")
    return table
