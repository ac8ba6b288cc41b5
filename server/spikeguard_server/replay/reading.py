"""Training logs as samples.

Law: what is blank was not measured; `nan` and `inf` were. A file that cannot be read is refused
with its line, its column and what to do about it, never half used. What was guessed is told.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from spikeguard_cli.command import CommandFailed
from spikeguard_server.domain.sample import Sample
from spikeguard_server.replay.records import (
    ITERATION,
    Record,
    jsonl_records,
    megatron_records,
    read_records,
    trainer_records,
)
from spikeguard_server.replay.table import read_table


class Format(StrEnum):
    """What a log was written as."""

    CSV = "CSV"
    JSONL = "JSONL"
    TRAINER_STATE = "Hugging Face trainer state"
    MEGATRON = "Megatron-LM log"


@dataclass(frozen=True)
class Log:
    """A training log, read."""

    samples: list[Sample]
    guessed: str  # what was guessed, for a person; empty where nothing was


def read_samples(path: Path) -> list[Sample]:
    """Every sample of a log; raises `CommandFailed`."""
    return read_log(path).samples


def read_log(path: Path) -> Log:
    """Read a log in any format of `Format`; raises `CommandFailed`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            text = lines.read()
        form = guess_format(path, text)
        return _table(path, text) if form is Format.CSV else _named(path, text, form)
    except FileNotFoundError:
        raise CommandFailed(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        form = _BY_SUFFIX.get(path.suffix.lower(), Format.CSV)
        raise CommandFailed(f"{path}: cannot be read as {form} in UTF-8: {error}") from error


_BY_SUFFIX = {
    ".csv": Format.CSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
}


def guess_format(path: Path, text: str) -> Format:
    """By the ending where it says enough, else by how the text begins."""
    ending = _BY_SUFFIX.get(path.suffix.lower())
    if ending is not None:
        return ending
    if text.lstrip().startswith("{"):
        return Format.JSONL if _one_a_line(text) else Format.TRAINER_STATE
    return Format.MEGATRON if ITERATION.search(text) else Format.CSV


def _one_a_line(text: str) -> bool:
    """Whether the first line is an object by itself, and not a trainer state on one line."""
    try:
        first = json.loads(text.lstrip().split("\n", 1)[0])
    except (ValueError, RecursionError):
        return False
    return not (isinstance(first, dict) and "log_history" in first)


def _table(path: Path, text: str) -> Log:
    samples, columns = read_table(path, text)
    said = columns.said()
    return Log(samples, f"{path}: read as {Format.CSV}; {said}" if said else "")


def _named(path: Path, text: str, form: Format) -> Log:
    samples, columns, left_out = read_records(path, _records(path, text, form))
    parts = [f"{path}: read as {form}", columns.said()]
    if left_out:
        noun = "record" if left_out == 1 else "records"
        parts.append(f"{left_out:,} {noun} that measured no known signal left out")
    return Log(samples, "; ".join(part for part in parts if part))


def _records(path: Path, text: str, form: Format) -> list[Record]:
    if form is Format.JSONL:
        return jsonl_records(path, text)
    if form is Format.TRAINER_STATE:
        return trainer_records(path, text)
    return megatron_records(path, text)
