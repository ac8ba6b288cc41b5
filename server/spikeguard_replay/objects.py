"""JSON documents: `trainer_state.json`, lists of objects, objects of lists (Keras's history)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.table import Table

SUMMARY = "train_runtime"  # Hugging Face's entry about the whole run, no measurement of its step
DEEPEST = 6  # objects in one another


def flat(record: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Names and cells of a record; nested names are joined by `/`, a list gives its only cell."""
    for name, cell in record.items():
        if isinstance(cell, dict):
            if depth < DEEPEST:
                yield from flat(cell, f"{before}{name}/", depth + 1)
        elif not isinstance(cell, list):
            yield before + name, cell
        elif len(cell) == 1 and not isinstance(cell[0], dict | list):
            yield before + name, cell[0]


def records_in(document: Any) -> list[Any] | None:
    """The longest list of records in a document, however deep; None where there is none."""
    if isinstance(document, dict) and isinstance(document.get("log_history"), list):
        found: list[Any] = document["log_history"]
        return found
    if isinstance(document, list):
        return document if any(isinstance(one, dict) for one in document) else None
    if not isinstance(document, dict):
        return None
    lists = [one for one in document.values() if isinstance(one, list) and one]
    columns = {len(one) for one in lists if not isinstance(one[0], dict | list)}
    if len(lists) > 1 and len(columns) == 1 and len(lists[0]) > 1:
        named = {name: one for name, one in document.items() if isinstance(one, list)}
        return [dict(zip(named, row, strict=False)) for row in zip(*named.values(), strict=False)]
    inner = [records_in(one) for one in document.values()]
    return max((one for one in inner if one), key=len, default=None)


def read_document(name: str, text: str) -> Table:
    """The records of a JSON document; raises `CommandFailed`."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandFailed(
            f"{name}: not JSON, line {error.lineno}, column {error.colno}: {error.msg}. Was it cut "
            "off? The log that the job printed can be read too"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{name}: cannot be read as JSON: {error}") from None
    records = records_in(document)
    if records is None:
        raise CommandFailed(
            f"{name}: no list of records in it, such as "
            '[{"step": 1, "loss": 2.5}, …] or {"log_history": […]}'
        )
    table = Table()
    for number, record in enumerate(records):
        if isinstance(record, dict) and SUMMARY not in record:
            table.add(number, dict(flat(record)))
    return table
