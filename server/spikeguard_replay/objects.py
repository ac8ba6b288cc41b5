"""JSON documents: `trainer_state.json`, lists of objects, objects of lists (Keras's history)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.table import Table

FEWEST = 3  # numbers that are a log
SUMMARY = "train_runtime"  # Hugging Face's entry about the whole run, no measurement of its step


def flat(record: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Names and cells of a record; nested names are joined by `/`, a list gives its only cell."""
    for name, cell in record.items():
        if isinstance(cell, dict) and depth < 6:
            yield from flat(cell, f"{before}{name}/", depth + 1)
        elif isinstance(cell, list) and (len(cell) == 1 or (name == "step" and cell)):
            cell = cell[-1]  # of several steps, as DLLogger writes them, the innermost
        if not isinstance(cell, dict | list):
            yield before + name, cell


def records_in(document: Any) -> list[Any] | None:
    """The longest list of records in a document, however deep; None where there is none."""
    if isinstance(document, list):
        return document if any(isinstance(one, dict) for one in document) else _unnamed(document)
    if not isinstance(document, dict):
        return None
    if isinstance(history := document.get("log_history"), list):
        return history
    lists = {name: one for name, one in document.items() if isinstance(one, list) and one}
    lengths = {len(one) for one in lists.values() if not isinstance(one[0], dict | list)}
    if len(lists) > 1 and len(lengths) == 1 and max(lengths) > 1:
        return [dict(zip(lists, row, strict=False)) for row in zip(*lists.values(), strict=False)]
    inner = [records_in(one) for one in document.values()]
    return max((one for one in inner if one), key=len, default=None)


def _unnamed(rows: list[Any]) -> list[dict[str, Any]] | None:
    """Bare numbers, or lists of as many each, with their columns numbered."""
    cells = [one if isinstance(one, list) else [one] for one in rows]
    numbers = all(isinstance(cell, int | float | None) for row in cells for cell in row)
    if len(rows) < FEWEST or not numbers or len({len(row) for row in cells}) != 1:
        return None
    return [{f"column {n}": cell for n, cell in enumerate(row, start=1)} for row in cells]


def read_document(name: str, text: str) -> Table:
    """The records of a JSON document; raises `CommandFailed`."""
    try:
        records = records_in(json.loads(text))
    except json.JSONDecodeError as error:
        raise CommandFailed(
            f"{name}: not JSON, line {error.lineno}, column {error.colno}: {error.msg}. Was it cut "
            "off? The log that the job printed can be read too"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{name}: cannot be read as JSON: {error}") from None
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
