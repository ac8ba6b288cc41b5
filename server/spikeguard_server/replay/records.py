"""Logs of named fields: JSONL, Hugging Face `trainer_state.json`, Megatron-LM text.

Law: a record that measured nothing we know is left out and counted; one that measured something
at no step is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikeguard_cli.command import CommandFailed
from spikeguard_protocol import STANDARD_SIGNALS
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.replay.columns import NAMES, STEP, Columns, guess_columns
from spikeguard_server.replay.numbers import parse_number, whole_step
from spikeguard_server.replay.wanted import LogOptions

ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|(.*)")
MEND = "write a number, NaN or Infinity, or leave the field out where nothing was logged"


@dataclass(frozen=True)
class Record:
    """What was logged together."""

    place: str  # file and line or entry, for errors
    fields: Mapping[str, Any]


def jsonl_records(path: Path, text: str) -> list[Record]:
    """One object a line, blank lines apart; raises `CommandFailed`."""
    lines = ((f"{path}, line {n}", line) for n, line in enumerate(text.split("\n"), start=1))
    return [Record(place, _object(place, line)) for place, line in lines if line.strip()]


def trainer_records(path: Path, text: str) -> list[Record]:
    """The `log_history` of a trainer state; raises `CommandFailed`.

    The entry with `train_runtime` sums up the whole run and is no measurement of its step.
    """
    history = _object(f"{path}", text).get("log_history")
    if not isinstance(history, list):
        raise CommandFailed(
            f"{path}: no list `log_history` in the object: "
            "give a trainer_state.json, or JSONL with one object a line"
        )
    records = []
    for n, entry in enumerate(history):
        if not isinstance(entry, dict):
            raise CommandFailed(
                f"{path}, log_history[{n}]: not an object: give the file as the trainer wrote it"
            )
        if "train_runtime" not in entry:
            records.append(Record(f"{path}, log_history[{n}]", entry))
    return records


def megatron_records(path: Path, text: str) -> list[Record]:
    """The lines ` iteration 100/ 1000 | lm loss: 1.2 | ...`; all others are passed over."""
    lines = ((n, ITERATION.search(line)) for n, line in enumerate(text.split("\n"), start=1))
    return [
        Record(f"{path}, line {n}", {"iteration": found[1], **_parts(found[2])})
        for n, found in lines
        if found
    ]


def _parts(rest: str) -> dict[str, str]:
    pairs = (part.rpartition(":") for part in rest.split("|"))
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}


def list_records(path: Path, text: str) -> list[Record]:
    """A list of objects, as `json.dump` writes a history; raises `CommandFailed`."""
    records = []
    for n, entry in enumerate(_json(f"{path}", text)):
        if not isinstance(entry, dict):
            raise CommandFailed(
                f"{path}, entry {n}: not an object: "
                'write a list of objects, such as [{"step": 1, "loss": 2.5}]'
            )
        records.append(Record(f"{path}, entry {n}", entry))
    return records


def _json(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, " if "\n" in text.strip() else ""
        raise CommandFailed(
            f"{place}: not JSON ({error.msg} at {at}column {error.colno}): "
            "mend the object, or remove it if it was cut off"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{place}: cannot be read as JSON: {error}") from None


def _object(place: str, text: str) -> dict[str, Any]:
    found = _json(place, text)
    if not isinstance(found, dict):
        raise CommandFailed(
            f"{place}: {type(found).__name__} where an object should stand: "
            'write one object a line, such as {"step": 1, "loss": 2.5}'
        )
    return found


def read_records(
    path: Path,
    records: Iterable[Record],
    wanted: LogOptions = LogOptions(),  # noqa: B008
) -> tuple[list[Sample], Columns, int]:
    """Samples, columns, and how many records were left out; raises `CommandFailed`."""
    records = list(records)
    found = dict.fromkeys(name for one in records for name in one.fields)
    wanted.check(path, found)
    columns = guess_columns(found, wanted.columns)
    for name in columns.missing():
        raise CommandFailed(
            f"{path}: no field `{name}` in any of {len(records)} records (looked for "
            f"{', '.join(NAMES[name])}): rename the field that holds it"
        )
    known = [columns.chosen.get(name, name) for name in STANDARD_SIGNALS]
    measured = [one for one in records if any(one.fields.get(name) is not None for name in known)]
    samples = [_sample(one, columns, known) for one in measured]
    return samples, columns, len(records) - len(measured)


def _sample(record: Record, columns: Columns, known: Iterable[str]) -> Sample:
    column = columns.chosen[STEP]
    if record.fields.get(column) is None:
        raise CommandFailed(
            f"{record.place}: no field `{column}` beside what was measured: "
            "write the step into every record"
        )
    step = whole_step(f"{record.place}, field `{column}`", record.fields[column], MEND)
    values = {
        columns.signal(name): parse_number(
            f"{record.place}, field `{name}`", record.fields[name], MEND
        )
        for name in known
        if record.fields.get(name) is not None
    }
    return Sample(step, values)
