"""Records as text, made once: what is written to disk is what travels.

A step's sample is one row: `segment,step,first,end`, its signals' names and their values, a line
each. The rows of a message become columns by putting these texts together; no number is read again.

Invariants
- Pure. The text of a message is JSON as `spikeguard_protocol.encoding` reads it.
- A message holds no more than the protocol allows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    BatchDetail,
    CommandResult,
    Gap,
    LayerNorms,
    Record,
    Samples,
    SegmentStarted,
    decode_message,
    encode,
)
from spikeguard_protocol.encoding import float_to_json
from spikeguard_protocol.frames import Frame, Kind
from spikeguard_protocol.messages import MAX_SIGNALS, MAX_TEXT, VERSION, Message

_ESSENTIAL = (CommandResult, SegmentStarted, AttemptStarted, AttemptEnded, Gap)
FULL, DAMAGED = "the outbox was full", "it was damaged on disk"
_ABSENT = b"null"


class Text(NamedTuple):
    """One record for the log."""

    kind: Kind
    payload: bytes
    samples: int = 0


def texts_of(record: Record) -> Iterator[Text]:
    """A record as texts, each step's sample one of its own."""
    if isinstance(record, Samples):
        for at, step in enumerate(record.steps):
            yield Text(Kind.SAMPLE, _row(record, at, step), 1)
        return
    kind = Kind.NEWS
    if isinstance(record, LayerNorms | BatchDetail):
        kind = Kind.DETAIL
    elif isinstance(record, _ESSENTIAL):
        kind = Kind.ESSENTIAL
    lost = record.samples_lost if isinstance(record, Gap) else 0
    yield Text(kind, encode(record), lost)


def _row(record: Samples, at: int, step: int) -> bytes:
    columns = record.signals.items()
    measured = {name: value for name, column in columns if (value := column[at]) is not None}
    batches = record.positions[at]
    place = f",{batches.first},{batches.end}" if batches is not None else ""
    values = ",".join([_number(value) for value in measured.values()])
    return f"{record.segment},{step}{place}\n{_names(tuple(measured))}\n{values}".encode()


def _number(value: float) -> str:
    return repr(float(value)) if isfinite(value) else f'"{float_to_json(value)}"'


@lru_cache(256)
def _names(names: tuple[str, ...]) -> str:
    return ",".join(json.dumps(name) for name in names)


class _Row(NamedTuple):
    segment: bytes
    step: int
    batches: tuple[int, int] | None
    values: dict[bytes, bytes]  # by signal

    @classmethod
    def of(cls, payload: bytes) -> _Row:
        head, names, values = payload.split(b"\n")
        segment, step, *batches = head.split(b",")
        place = (int(batches[0]), int(batches[1])) if batches else None
        measured = zip(names.split(b","), values.split(b","), strict=True) if names else ()
        return cls(segment, int(step), place, dict(measured))


def records_of(frames: Iterable[Frame]) -> list[bytes]:
    """The records of one message; rows that follow one another as columns."""
    records: list[bytes] = []
    rows: list[_Row] = []
    names: dict[bytes, None] = {}  # of the rows, in the order in which they came up
    for frame in frames:
        row = _Row.of(frame.payload) if frame.kind is Kind.SAMPLE else None
        if rows and (row is None or not _continues(rows[-1], row, names)):
            records.append(_columns(rows, names))
            rows, names = [], {}
        if row is not None:
            rows.append(row)
            names.update(dict.fromkeys(row.values))
        elif frame.payload:
            records.append(frame.payload)
    return [*records, _columns(rows, names)] if rows else records


def _continues(last: _Row, row: _Row, names: dict[bytes, None]) -> bool:
    if last.segment != row.segment or last.step >= row.step:
        return False
    return row.values.keys() <= names.keys() or len(names | row.values.keys()) <= MAX_SIGNALS


def _columns(rows: Sequence[_Row], names: Iterable[bytes]) -> bytes:
    columns = (
        b"%b:[%b]" % (name, b",".join([row.values.get(name, _ABSENT) for row in rows]))
        for name in names
    )
    steps = b",".join([b"%d" % row.step for row in rows])
    return b'{"type":"Samples","segment":%b,"steps":[%b],"signals":{%b},"positions":%b}' % (
        rows[0].segment,
        steps,
        b",".join(columns),
        _positions([row.batches for row in rows]),
    )


def _positions(batches: Sequence[tuple[int, int] | None]) -> bytes:
    """Three numbers where each step consumed as much as the one before and went on there."""
    known = [each for each in batches if each is not None]
    if len(known) == len(batches) > 1:
        first, end = known[0]
        size = end - first
        if all(b == (a[1], a[1] + size) for a, b in pairwise(known)):
            text = b'{"type":"EvenRanges","first":%d,"size":%d,"length":%d}'
            return text % (first, size, len(known))
    return b"[%b]" % b",".join(
        _ABSENT if each is None else b'{"type":"BatchRange","first":%d,"end":%d}' % each
        for each in batches
    )


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

    @cached_property
    def message(self) -> Message:
        """As the server reads it."""
        return decode_message(self.body)

    @property
    def records(self) -> tuple[Record, ...]:
        """As the server reads them."""
        return self.message.records


def gap(first: int, last: int, reason: str, samples: int) -> bytes:
    """The text of a declared gap."""
    return encode(Gap(first, last, reason[: MAX_TEXT // 4], samples))


def gaps_of(frames: Iterable[Frame], sequence: int) -> list[bytes]:
    """What is declared for the records of a message that are gone."""
    lost: Counter[Kind] = Counter()
    for frame in frames:
        if frame.kind in (Kind.SHED, Kind.LOST):
            lost[frame.kind] += frame.samples
    reasons = {Kind.SHED: FULL, Kind.LOST: DAMAGED}
    return [
        gap(sequence, sequence, reasons[kind], n)
        for kind, n in lost.items()
        if n or kind is Kind.LOST
    ]
