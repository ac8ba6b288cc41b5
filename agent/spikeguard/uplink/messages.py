"""Records as text, made once: what is written to disk is what travels.

A step's sample is one object: `segment`, `step`, `batches` (first, end) and `signals` by name. The
samples of a message become columns as it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

from spikeguard_protocol import (
    Gap,
    Record,
    Samples,
    encode,
)
from spikeguard_protocol.encoding import SpooledLine, float_to_json
from spikeguard_protocol.messages import MAX_SIGNALS, MAX_TEXT, VERSION

FULL, DAMAGED = "the outbox was full", "it was damaged on disk"


class Text(NamedTuple):
    """One record for the disk: keys and values of a JSON object, without its braces."""

    body: bytes
    samples: int = 0


def texts_of(record: Record) -> Iterator[Text]:
    """A record as texts, each step's sample one of its own."""
    if isinstance(record, Samples):
        for at, step in enumerate(record.steps):
            yield Text(_row(record, at, step), 1)
    elif isinstance(record, Gap):
        lost = record.samples_lost
        yield Text(b'"lost":%d,"record":%b' % (lost, encode(record)), lost)
    else:
        yield Text(b'"record":%b' % encode(record))


def _row(record: Samples, at: int, step: int) -> bytes:
    columns = record.signals.items()
    measured = [
        f"{_quoted(name)}:{_number(value)}"
        for name, column in columns
        if (value := column[at]) is not None
    ]
    batches = record.positions[at]
    place = f'"batches":[{batches.first},{batches.end}],' if batches is not None else ""
    signals = ",".join(measured)
    return f'"segment":{record.segment},"step":{step},{place}"signals":{{{signals}}}'.encode()


def _number(value: float) -> str:
    return repr(float(value)) if isfinite(value) else f'"{float_to_json(value)}"'


@lru_cache(256)
def _quoted(name: str) -> str:
    return json.dumps(name)


def records_of(lines: Iterable[SpooledLine]) -> list[bytes]:
    """The records of one message; steps that follow one another become columns."""
    records: list[bytes] = []
    rows: list[dict[str, Any]] = []
    names: dict[str, None] = {}  # of the rows, in the order in which they came up
    for line in lines:
        row = line.entry if "step" in line.entry else None
        if rows and (row is None or not _continues(rows[-1], row, names)):
            records.append(_columns(rows, names))
            rows, names = [], {}
        if row is not None:
            rows.append(row)
            names.update(dict.fromkeys(row["signals"]))
        elif record := line.record:
            records.append(record)
    return [*records, _columns(rows, names)] if rows else records


def _continues(last: dict[str, Any], row: dict[str, Any], names: dict[str, None]) -> bool:
    if last["segment"] != row["segment"] or last["step"] >= row["step"]:
        return False
    return len(names | row["signals"]) <= MAX_SIGNALS


def _columns(rows: Sequence[dict[str, Any]], names: Iterable[str]) -> bytes:
    """A column at a time, so that the loop gets the interpreter back in between."""
    signals = ",".join(
        f"{_quoted(name)}:{_json([row['signals'].get(name) for row in rows])}" for name in names
    )
    steps = _json([row["step"] for row in rows])
    positions = _json(_positions([row.get("batches") for row in rows]))
    head = f'{{"type":"Samples","segment":{rows[0]["segment"]},"steps":{steps}'
    return f'{head},"signals":{{{signals}}},"positions":{positions}}}'.encode()


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _positions(batches: Sequence[list[int] | None]) -> object:
    """Three numbers where each step consumed as much as the one before and went on there."""
    known = [each for each in batches if each is not None]
    if len(known) == len(batches) > 1:
        first, end = known[0]
        size = end - first
        if all(b == [a[1], a[1] + size] for a, b in pairwise(known)):
            return {"type": "EvenRanges", "first": first, "size": size, "length": len(known)}
    return [
        None if each is None else {"type": "BatchRange", "first": each[0], "end": each[1]}
        for each in batches
    ]


@dataclass(frozen=True)
class EncodedMessage:
    """One message as it travels; sent again it is the same but for its age."""

    project: str
    run: str
    attempt: str
    sequence: int
    age_s: float
    texts: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        """The whole of it."""
        head = f'{{"type":"Message","project":"{self.project}","run":"{self.run}",'
        head += f'"attempt":"{self.attempt}","sequence":{self.sequence},"age_s":{self.age_s!r}'
        return b'%b,"records":[%b],"version":%d}' % (head.encode(), b",".join(self.texts), VERSION)


def gap(first: int, last: int, reason: str, samples: int) -> bytes:
    """The text of a declared gap."""
    return encode(Gap(first, last, reason[: MAX_TEXT // 4], samples))
