"""Whether all of a message is stored or nothing of it.

Law: what should be there is put together from the bodies that were acknowledged, by their own
content; what is there is read with plain SQL. Both have to agree row by row.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sql

from benchmarks.fuzz_bodies import FuzzedRun
from spikeguard_protocol import (
    Ack,
    Gap,
    LayerNorms,
    Message,
    Samples,
    TargetSaved,
    decode_ack,
    decode_message,
)
from spikeguard_server.store.stored_text import storable

ALLOWED = frozenset({200, 400, 409, 413, 422, 429})
SHAPE = frozenset({"code", "field", "message", "remedy"})
STORED = ("loss", "grad_norm", "update_norm", "lr", "tokens_per_second")
Place = tuple[str, str, int, int]  # run, attempt, segment, step


@dataclass
class Expected:
    """What the acknowledged messages say."""

    samples: dict[Place, list[float | None]] = field(default_factory=dict)
    layers: set[tuple[str, str, int, int, str]] = field(default_factory=set)
    targets: set[tuple[str, str]] = field(default_factory=set)
    sequences: dict[tuple[str, str], int] = field(default_factory=dict)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)

    def take(self, message: Message, ack: Ack) -> None:
        """The message was acknowledged: for the first time if the sequence rose."""
        who = (f"{message.project}/{message.run}", message.attempt)
        if ack.sequence <= self.sequences.get(who, 0):
            return
        self.sequences[who] = ack.sequence
        for record in message.records:
            if isinstance(record, Samples):
                self._take_samples(who, record)
            elif isinstance(record, LayerNorms):
                signal = storable(record.signal)[:64]  # without what Postgres cannot hold
                self.layers.add((*who, record.segment, record.step, signal))
            elif isinstance(record, TargetSaved):
                self.targets.add((who[0], record.name))
            elif isinstance(record, Gap):
                self.dropped[who] += record.samples_lost

    def _take_samples(self, who: tuple[str, str], record: Samples) -> None:
        for row, step in enumerate(record.steps):
            place = (*who, record.segment, step)
            known = self.samples.setdefault(place, [None] * len(STORED))
            for column, name in enumerate(STORED):
                given = record.signals.get(name, (None,) * len(record.steps))[row]
                known[column] = given if known[column] is None else known[column]


@dataclass
class Findings:
    """What the answers and the database showed."""

    bodies: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    undocumented: list[str] = field(default_factory=list)
    half_stored: list[str] = field(default_factory=list)
    rows: int = 0  # samples compared

    def note(
        self, expected: Expected, run: FuzzedRun, body: bytes, status: int, answer: bytes
    ) -> None:
        """Judge one answer."""
        self.bodies += 1
        self.statuses[status] += 1
        if status == 200:
            message, ack = decode_message(body), decode_ack(answer)
            expected.take(message, ack)
            if (message.run, message.attempt) == (run.name, run.attempt):
                run.sequence = max(run.sequence, ack.sequence)
        elif status not in ALLOWED or not _is_error(answer):
            self.undocumented.append(f"{status} {answer[:200]!r} to {body[:2000]!r}")

    def compare(self, connection: sql.Connection, expected: Expected) -> None:
        """Read the database and tell what differs."""
        for what, there, wanted in (
            ("samples", _samples(connection), _words(expected.samples)),
            ("layers", _rows(connection, _LAYERS), expected.layers),
            ("targets", _rows(connection, _TARGETS), expected.targets),
            ("attempts", _rows(connection, _ATTEMPTS), _attempts(expected)),
        ):
            if differing := there ^ wanted:
                some = sorted(map(str, differing))[:5]
                self.half_stored.append(f"{what}: {len(differing)} differ: {some}")
        self.rows = len(expected.samples)


def _is_error(answer: bytes) -> bool:
    try:
        error = json.loads(answer)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(error, dict) and error.keys() >= SHAPE


def _attempts(expected: Expected) -> set[tuple[Any, ...]]:
    return {(*who, last, expected.dropped[who]) for who, last in expected.sequences.items()}


def _words(samples: dict[Place, list[float | None]]) -> set[tuple[Any, ...]]:
    """With NaN as a word: it equals nothing."""
    return {(*place, *map(_word, values)) for place, values in samples.items()}


def _word(value: float | None) -> float | str | None:
    return "nan" if value is not None and math.isnan(value) else value


_OWNER = "runs.project || '/' || runs.name, attempts.id"
_JOINED = "join runs using (run_id) join attempts on attempts.run_id = {0}.run_id and number"
_SAMPLES = f"""select {_OWNER}, segment, step, {", ".join("samples." + n for n in STORED)}
    from samples {_JOINED.format("samples")} = samples.attempt"""
_LAYERS = f"""select {_OWNER}, segment, step, signal
    from layer_norms {_JOINED.format("layer_norms")} = layer_norms.attempt"""
_TARGETS = """select runs.project || '/' || runs.name, targets.name
    from targets join runs using (run_id)"""
_ATTEMPTS = f"""select {_OWNER}, last_sequence, dropped_samples
    from attempts join runs using (run_id)"""


def _rows(connection: sql.Connection, statement: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in connection.execute(sql.text(statement))}


def _samples(connection: sql.Connection) -> set[tuple[Any, ...]]:
    rows = connection.execute(sql.text(_SAMPLES))
    return {(*row[:4], *map(_word, row[4:])) for row in rows}
