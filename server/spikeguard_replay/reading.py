"""A training log, whatever wrote it: finds out what it is and reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from spikeguard_cli.command import CommandFailed
from spikeguard_protocol.encoding import SPOOLED
from spikeguard_protocol.escaping import printable
from spikeguard_replay import stores
from spikeguard_replay.choice import log_of
from spikeguard_replay.console import LineReader
from spikeguard_replay.delimited import ONE_COLUMN, dialect_of, read_delimited
from spikeguard_replay.log import Log, LogOptions
from spikeguard_replay.objects import (
    BEGINS,
    python_values,
    read_document,
    records_in,
    records_table,
)
from spikeguard_replay.source import HEAD, STANDARD_INPUT, Source
from spikeguard_replay.table import Table

NOTHING: Final = LogOptions()
TRIED: Final = 20  # newest files of a directory
DEEPEST: Final = 8  # folders in one another that are searched
WANDB: Final = (
    "a W&B run in its own binary format: export it as JSONL, one history row a line "
    '(json.dumps of each of wandb.Api().run("entity/project/id").scan_history()), '
    "or as CSV from the panel's menu"
)
AIM: Final = (
    "Aim's own store: export a run's metrics as CSV, "
    "aim.Repo(PATH).get_run(HASH).metrics().dataframe().to_csv(FILE)"
)


def read_log(path: Path, options: LogOptions = NOTHING) -> Log:
    """Read a log, `-` for standard input; of a directory the newest. Raises `CommandFailed`."""
    try:
        if path != STANDARD_INPUT and path.is_dir():
            return _directory(path, options)
        return _file(path, options)
    except CommandFailed as failed:  # it quotes names of files, columns and runs
        raise CommandFailed(printable(str(failed))) from failed
    except FileNotFoundError:
        raise CommandFailed(f"{printable(str(path))}: no such file") from None
    except OSError as error:
        raise CommandFailed(f"{printable(str(path))}: cannot be read: {error}") from error


def _file(path: Path, options: LogOptions) -> Log:
    if path.suffix.lower() == ".wandb":
        raise CommandFailed(f"{path}: {WANDB}")
    if stores.MARK in path.name:
        return log_of(str(path), "TensorBoard events", stores.event_table([path]), options)
    return log_of(str(path), *_table_of(Source(path), options.run), options)


def _table_of(source: Source, run: str | None) -> tuple[str, Table]:
    """What `source` is and what it holds, by how it begins."""
    name, path = source.name, source.path
    if source.head.startswith(stores.SQLITE_MAGIC):
        return stores.database_table(path, run)
    if source.head.startswith(SPOOLED):
        return "a guard's outbox", stores.guard_table([path])
    if (arrays := source.arrays()) is not None:
        return "NumPy", records_table(name, records_in(arrays))
    text = source.text()
    first = next((line for line in text if line.strip()), "")
    rest = text.read(HEAD)
    if first.lstrip()[:1] in ("{", "[") and _is_document(first, not rest.strip()):
        return "JSON", read_document(name, first + rest + text.read())
    if BEGINS.match(first.lstrip()):
        records = records_in(python_values(first + rest + text.read()))
        if records is not None:
            return "Python", records_table(name, records)
    text.detach()
    dialect = None if first.lstrip()[:1] == "{" else dialect_of(first + rest, len(rest) < HEAD)
    if dialect is not None:
        form = {"\t": "TSV", " ": "a table", ONE_COLUMN: "one column", ";": "CSV with `;`"}.get(
            dialect.delimiter, "CSV"
        )
        return form, read_delimited(name, source.text(), dialect, run)
    reader = LineReader()
    table = reader.read(source.text())
    return "JSON lines" if reader.objects > len(table) // 2 else "console output", table


def _is_document(line: str, whole: bool) -> bool:
    """Whether a text that begins with `line`, and is the `whole` of it, is one JSON value."""
    try:
        return records_in(json.loads(line)) is not None and whole
    except json.JSONDecodeError as error:  # a document goes on in the lines below
        return error.pos >= len(line.rstrip())
    except (ValueError, RecursionError):
        return False


def _directory(path: Path, options: LogOptions) -> Log:
    """A directory that is one run of a known tool, else the newest log in it."""
    if stores.is_mlflow_run(path):
        return log_of(str(path), "MLflow metrics", stores.mlflow_table(path), options)
    if segments := stores.segments_in(path):
        return log_of(str(path), "a guard's outbox", stores.guard_table(segments), options)
    if events := [one for one in sorted(path.glob(f"*{stores.MARK}*")) if one.is_file()]:
        return log_of(str(path), "TensorBoard events", stores.event_table(events), options)
    newest = sorted(logs_under(path), key=lambda one: one.stat().st_mtime, reverse=True)
    first: CommandFailed | None = None
    for one in newest[:TRIED]:
        try:
            log = _directory(one, options) if one.is_dir() else _file(one, options)
        except (CommandFailed, OSError) as failed:
            first = first or CommandFailed(str(failed))
        else:
            log.notes.insert(0, f"the newest log of {len(newest)} files in {path}")
            return log
    if path.name == ".aim" or (path / ".aim").is_dir():
        raise CommandFailed(f"{path}: {AIM}")
    why = f"; of the newest file: {first}" if first else ""
    raise CommandFailed(f"{path}: no training log among {len(newest)} files{why}")


def logs_under(folder: Path, depth: int = DEEPEST) -> list[Path]:
    """Every log under `folder`, sorted: files, and folders that are one run together.

    What begins with a dot, MLflow's record of an experiment, and what lies deeper than `depth`
    folders, is passed over.
    """
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == stores.RECORD:
            continue
        if path.is_dir() and not path.is_symlink():
            one_run = stores.is_mlflow_run(path) or stores.segments_in(path)
            found += [path] if one_run else logs_under(path, depth - 1) if depth else []
        elif path.is_file():
            found.append(path)
    return found
