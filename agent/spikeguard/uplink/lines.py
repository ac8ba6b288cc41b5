"""A record as a line of the outbox's files, and the records of one message put together.

Law: pure; what was written is read back to the bit, and a torn line is as if never written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from spikeguard_protocol import (
    BatchesSkipped,
    EvenRanges,
    Message,
    Record,
    Samples,
    encode,
    from_json,
)


def encoded(record: Record) -> bytes:
    """One line, its end included."""
    return encode(record) + b"\n"


def decoded(line: bytes) -> Record | None:
    """None for the torn last line of a killed process."""
    try:
        record: Record = from_json(Record, json.loads(line))
    except (ValueError, RecursionError):
        return None
    return record


def count_samples(records: Iterable[Record]) -> int:
    """Steps that `records` have samples of."""
    return sum(len(r.steps) for r in records if isinstance(r, Samples))


def merged(records: Iterable[Record]) -> list[Record]:
    """Neighbouring samples of one segment as one record, in columns."""
    merged: list[Record] = []
    run: list[Samples] = []
    for record in records:
        if isinstance(record, Samples) and (not run or _continues(run[-1], record)):
            run.append(record)
            continue
        merged += [_columns(run)] if run else []
        run = [record] if isinstance(record, Samples) else []
        merged += [] if run else [record]
    return merged + ([_columns(run)] if run else [])


def shortened(message: Message) -> Message:
    """The same message, with batches that follow one another as three numbers."""
    return replace(message, records=tuple(map(_short, message.records)))


def without_skips(message: Message) -> Message:
    """The same message for a server that knows no record of batches left out."""
    return replace(
        message, records=tuple(r for r in message.records if not isinstance(r, BatchesSkipped))
    )


def _short(record: Record) -> Record:
    if not isinstance(record, Samples) or len(record.steps) == 1:
        return record
    even = EvenRanges.of(record.positions)
    return record if even is None else replace(record, positions=even)


def _continues(last: Samples, more: Samples) -> bool:
    return last.segment == more.segment and last.steps[-1] < more.steps[0]


def _columns(rows: list[Samples]) -> Samples:
    if len(rows) == 1:
        return rows[0]
    names = list(dict.fromkeys(name for row in rows for name in row.signals))
    columns: dict[str, Any] = {
        name: tuple(
            value for row in rows for value in row.signals.get(name, (None,) * len(row.steps))
        )
        for name in names
    }
    steps = tuple(step for row in rows for step in row.steps)
    positions = tuple(place for row in rows for place in row.positions)
    return Samples(rows[0].segment, steps, columns, positions)
