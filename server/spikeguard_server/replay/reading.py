"""Training logs as samples.

Law: what is blank was not measured; `nan` and `inf` were. A file that cannot be read is refused
with its line, its column and what to do about it, never half used. What was guessed is told.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from spikeguard_cli.command import CommandFailed
from spikeguard_protocol.escaping import printable
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.replay.log_size import check_size, read_bytes
from spikeguard_server.replay.mlflow import SQLITE_MAGIC, database_points, is_run, run_points
from spikeguard_server.replay.points import LogPoint, point_records
from spikeguard_server.replay.records import (
    ITERATION,
    Record,
    jsonl_records,
    list_records,
    megatron_records,
    read_records,
    trainer_records,
)
from spikeguard_server.replay.table import read_table
from spikeguard_server.replay.tensorboard import MARK, event_points
from spikeguard_server.replay.wandb import EXPORT
from spikeguard_server.replay.wanted import LogOptions, ReplayFormat

__all__ = ["Log", "LogOptions", "ReplayFormat", "guess_format", "read_log", "read_log_samples"]


@dataclass(frozen=True)
class Log:
    """A training log, read."""

    samples: list[Sample]
    guessed: str  # what was guessed, for a person; empty where nothing was


def read_log_samples(path: Path) -> list[Sample]:
    """Every sample of a log; raises `CommandFailed`."""
    return read_log(path).samples


def read_log(path: Path, wanted: LogOptions = LogOptions()) -> Log:  # noqa: B008
    """Read a log in any format of `ReplayFormat`; raises `CommandFailed`, on one line."""
    try:
        return _read(path, wanted)
    except CommandFailed as failed:  # it quotes names of files, columns and runs
        raise CommandFailed(printable(str(failed))) from failed


def _read(path: Path, wanted: LogOptions) -> Log:
    try:
        if path.is_dir():
            return _folder(path, wanted)
        if wanted.form is ReplayFormat.TENSORBOARD or (wanted.form is None and MARK in path.name):
            return _pointed(path, _events(path), ReplayFormat.TENSORBOARD, wanted)
        data = read_bytes(path)
        if path.suffix.lower() == ".wandb":
            raise CommandFailed(f"{path}: {EXPORT}")
        if wanted.form in (None, ReplayFormat.MLFLOW) and data.startswith(SQLITE_MAGIC):
            points, run = database_points(path, wanted.run)
            return _pointed(path, points, ReplayFormat.MLFLOW, wanted, f"run {run}")
        return _text(path, data.decode("utf-8-sig"), wanted)
    except FileNotFoundError:
        raise CommandFailed(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        form = wanted.form or _BY_SUFFIX.get(path.suffix.lower(), ReplayFormat.CSV)
        raise CommandFailed(f"{path}: cannot be read as {form} in UTF-8: {error}") from error


def _events(path: Path) -> list[LogPoint]:
    check_size(path)
    return list(event_points(path))


def _text(path: Path, text: str, wanted: LogOptions) -> Log:
    form = wanted.form or guess_format(path, text)
    if form is ReplayFormat.MLFLOW:
        raise CommandFailed(f"{path}: no SQLite database: give a run's folder or the database")
    return (
        _table(path, text, wanted) if form is ReplayFormat.CSV else _named(path, text, form, wanted)
    )


def _folder(path: Path, wanted: LogOptions) -> Log:
    """A folder that is one run: of MLflow's file store, or of event files in order of name."""
    if is_run(path):
        return _pointed(path, run_points(path), ReplayFormat.MLFLOW, wanted)
    files = [one for one in sorted(path.iterdir()) if MARK in one.name and one.is_file()]
    if not files:
        raise CommandFailed(
            f"{path}: a folder without event files and no MLflow run: "
            "give a file, or `spikeguard backtest` the folder"
        )
    points = [point for one in files for point in _events(one)]
    return _pointed(path, points, ReplayFormat.TENSORBOARD, wanted)


def _pointed(
    path: Path, points: list[LogPoint], form: ReplayFormat, wanted: LogOptions, also: str = ""
) -> Log:
    """Measurements under their names; a name that means nothing to us is left out."""
    records = point_records(str(path), points)
    return _recorded(path, records, form, wanted, also)


_BY_SUFFIX = {
    ".csv": ReplayFormat.CSV,
    ".jsonl": ReplayFormat.JSONL,
    ".ndjson": ReplayFormat.JSONL,
}


def guess_format(path: Path, text: str) -> ReplayFormat:
    """By the ending where it says enough, else by how the text begins."""
    ending = _BY_SUFFIX.get(path.suffix.lower())
    if ending is not None:
        return ending
    if text.lstrip().startswith("["):
        return ReplayFormat.MEGATRON if ITERATION.search(text) else ReplayFormat.JSON_LIST
    if text.lstrip().startswith("{"):
        return ReplayFormat.JSONL if _one_a_line(text) else ReplayFormat.TRAINER_STATE
    return ReplayFormat.MEGATRON if ITERATION.search(text) else ReplayFormat.CSV


def _one_a_line(text: str) -> bool:
    """Whether the first line is an object by itself, and not a trainer state on one line."""
    try:
        first = json.loads(text.lstrip().split("\n", 1)[0])
    except (ValueError, RecursionError):
        return False
    return not (isinstance(first, dict) and "log_history" in first)


def _table(path: Path, text: str, wanted: LogOptions) -> Log:
    samples, columns = read_table(path, text, wanted)
    said = columns.said()
    return Log(samples, f"{path}: read as {ReplayFormat.CSV}; {said}" if said else "")


def _named(path: Path, text: str, form: ReplayFormat, wanted: LogOptions) -> Log:
    return _recorded(path, _records(path, text, form), form, wanted)


def _recorded(
    path: Path, records: list[Record], form: ReplayFormat, wanted: LogOptions, also: str = ""
) -> Log:
    samples, columns, left_out = read_records(path, records, wanted)
    parts = [f"{path}: read as {form}", also, columns.said()]
    if left_out:
        noun = "record" if left_out == 1 else "records"
        parts.append(f"{left_out:,} {noun} that measured no known signal left out")
    return Log(samples, "; ".join(part for part in parts if part))


def _records(path: Path, text: str, form: ReplayFormat) -> list[Record]:
    if form is ReplayFormat.JSONL:
        return jsonl_records(path, text)
    if form is ReplayFormat.JSON_LIST:
        return list_records(path, text)
    if form is ReplayFormat.TRAINER_STATE:
        return trainer_records(path, text)
    return megatron_records(path, text)
