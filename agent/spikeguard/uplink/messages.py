"""Records as text, made once: what is written to disk is what travels.

A step's sample is one object: `segment`, `step`, `batches` (first, end) and `signals` by name. The
samples of a message become columns as it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spikeguard_protocol import BatchRange, EvenRanges, Gap, Record, Samples, encode, to_json
from spikeguard_protocol.encoding import SpooledLine
from spikeguard_protocol.messages import MAX_SIGNALS, MAX_TEXT, VERSION

FULL, DAMAGED = "the outbox was full", "it was damaged on disk"


def texts_of(record: Record) -> Iterator[tuple[bytes, int]]:
    """A record for the disk, each step's sample one of its own: keys and values of a JSON object,
    without its braces; and of how many samples it tells."""
    if isinstance(record, Samples):
        for at, step in enumerate(record.steps):
            yield _row(record, at, step), 1
    elif isinstance(record, Gap):
        lost = record.samples_lost
        yield b'"lost":%d,"record":%b' % (lost, encode(record)), lost
    else:
        yield b'"record":%b' % encode(record), 0


def _row(record: Samples, at: int, step: int) -> bytes:
    columns, batches = record.signals.items(), record.positions[at]
    row = {
        "segment": record.segment,
        "step": step,
        **({} if batches is None else {"batches": [batches.first, batches.end]}),
        "signals": {n: to_json(float(v)) for n, column in columns if (v := column[at]) is not None},
    }
    return _json(row)[1:-1].encode()


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
        f"{_json(name)}:{_json([row['signals'].get(name) for row in rows])}" for name in names
    )
    steps = _json([row["step"] for row in rows])
    ranges = [BatchRange(*row["batches"]) if "batches" in row else None for row in rows]
    even = EvenRanges.of(ranges) if len(rows) > 1 else None
    positions = _json(to_json(even or ranges))
    head = f'{{"type":"Samples","segment":{rows[0]["segment"]},"steps":{steps}'
    return f'{head},"signals":{{{signals}}},"positions":{positions}}}'.encode()


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


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
