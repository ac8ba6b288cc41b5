"""Bodies for `POST /v1/messages`: what an agent could send, and that bent in every way.

Law: a pure function of the seed. Most bodies are a valid message of a run, next in its sequence,
with a few things in it replaced, left out, doubled, swapped or cut off; the rest stay valid.

Whether all of a message is stored or nothing of it.

Law: what should be there is put together from the bodies that were acknowledged, by their own
content; what is there is read with plain SQL. Both have to agree row by row.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import sqlalchemy as sql

from spikeguard_protocol import (
    Ack,
    AttemptEnded,
    AttemptStarted,
    BatchRange,
    CommandResult,
    EvenRanges,
    Gap,
    LayerNorms,
    Medium,
    Message,
    Record,
    ResultState,
    Samples,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
    TargetDeleted,
    TargetSaved,
    decode_ack,
    decode_message,
    encode,
)
from spikeguard_server.store.engine import storable

UNBENT = 0.3  # share of the bodies that stay valid
CUT = 0.15  # share of the bent ones that are bent as bytes
SIGNALS = ("loss", "grad_norm", "update_norm", "lr", "tokens_per_second", "mine", "yours")
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 10**400,
    0.5, -0.0, 1e-320, 1e308, -1e308, "nan", "inf", "-inf", "NaN", "", " ", "0", "null", "\x00",
    "a\x00b", "\ud800", "\u202e", "é" * 65, "x" * 3000, "../..", "run#1.1", "run#0.0", "'; --",
    "Samples", "Nothing", [], {}, [[]], [None], {"": None}, {"type": "Samples"}, [1, "a", None],
    {"first": 5, "end": 5}, {"first": 9, "end": 1}, list(range(50)), [0.0] * 3, [["nan"]],
)  # fmt: skip


@dataclass
class FuzzedRun:
    """One attempt of one run: what it has sent so far."""

    name: str
    attempt: str
    sequence: int = 0  # acknowledged
    step: int = 0
    segment: int = 0


@dataclass
class Bodies:
    """An endless supply, from a few runs in turn."""

    seed: str
    runs: list[FuzzedRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._old: list[bytes] = []

    def next(self) -> tuple[FuzzedRun, bytes]:
        """The next body and the run that it was made for."""
        run = self._run()
        if self._old and self.random.random() < 0.02:
            return run, self.random.choice(self._old)
        body = encode(self._message(run))
        self._old = [*self._old[-20:], body]
        if self.random.random() < UNBENT:
            return run, body
        if self.random.random() < CUT:
            return run, self.random.choice(_BYTES)(body, self.random)
        return run, self._bent(body)

    def _run(self) -> FuzzedRun:
        if len(self.runs) < 4 or self.random.random() < 0.002:
            number = len(self.runs)
            name = f"fuzz-{self.seed}-{number}"
            self.runs.append(FuzzedRun(name, f"{self.random.getrandbits(64):016x}"))
        return self.random.choice(self.runs[-4:])

    def _message(self, run: FuzzedRun) -> Message:
        ahead = self.random.choice((0, 0, 0, 0, 0, 0, 0, 0, -1, 1))
        sequence = max(1, run.sequence + 1 + ahead)
        age = self.random.choice((0.0, 0.5, 59.0, 3600.0, 9e8))
        records = tuple(self._record(run) for _ in range(self.random.choice((0, 1, 1, 2, 5))))
        if run.sequence == 0:
            records = (*_beginning(), *records)
        return Message("default", run.name, run.attempt, sequence, age, records)

    def _record(self, run: FuzzedRun) -> Record:
        make: Callable[[FuzzedRun], Record] = self.random.choice(
            (self._samples,) * 6 + (self._other,) * 4
        )
        return make(run)

    def _samples(self, run: FuzzedRun) -> Samples:
        count = self.random.choice((1, 1, 2, 5, 20))
        first = run.step + 1
        run.step += count
        if self.random.random() < 0.05:
            run.step = max(0, run.step - self.random.randrange(50))  # trained over again
        signals = {
            name: tuple(self._value() for _ in range(count))
            for name in self.random.sample(SIGNALS, self.random.randrange(1, 5))
        }
        places = tuple(
            None if self.random.random() < 0.1 else BatchRange(s - 1, s)
            for s in range(first, first + count)
        )
        even = EvenRanges.of(places) if self.random.random() < 0.5 else None
        steps = tuple(range(first, first + count))
        return Samples(run.segment, steps, signals, even or places)

    def _value(self) -> float | None:
        odd = (None, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 1e-320, 0.0, 9.0)
        return self.random.choice(odd) if self.random.random() < 0.05 else self.random.gauss(2, 0.1)

    def _other(self, run: FuzzedRun) -> Record:
        pick, step = self.random.randrange(9), run.step
        point = SegmentPoint(SegmentId(run.attempt, run.segment), max(0, step - 5))
        if pick == 0:
            run.segment += 1
            return SegmentStarted(run.segment, SegmentReason.ROLLBACK, point, step, None)
        made: tuple[Record, ...] = (
            TargetSaved(f"step-{step}", run.segment, step, step, Medium.DISK),
            TargetSaved(f"held-{step}", run.segment, step, step, Medium.MEMORY),
            TargetDeleted(f"step-{step}"),
            CommandResult(f"{run.name}#1.1", ResultState.APPLIED, "done", step),
            Gap(run.sequence + 1, run.sequence + self.random.choice((1, 2, 9)), "lost", 3),
            LayerNorms(run.segment, step, "grad_norm", {"a": 1.0, "b": float("nan")}),
            AttemptEnded("finished"),
            _beginning()[0],
        )
        return made[pick - 1]

    def _bent(self, body: bytes) -> bytes:
        plain = json.loads(body)
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            self._bend(plain)
        return json.dumps(plain, separators=(",", ":")).encode()

    def _bend(self, plain: Any) -> None:
        """Change one thing somewhere in `plain`."""
        place, key = self._somewhere(plain)
        match self.random.randrange(6):
            case 0 | 1 | 2:
                place[key] = deepcopy(self.random.choice(ODD))
            case 3:
                del place[key]
            case 4 if isinstance(place, list):
                place.insert(key, deepcopy(place[key]))
            case 4:
                place[self.random.choice(("type", "extra", "", "step", "loss"))] = deepcopy(
                    place[key]
                )
            case _:
                other = self._somewhere(plain)
                mine, theirs = deepcopy(place[key]), deepcopy(other[0][other[1]])
                place[key], other[0][other[1]] = theirs, mine

    def _somewhere(self, plain: Any) -> tuple[Any, Any]:
        """A container and a key of it, anywhere."""
        while True:
            keys = list(plain) if isinstance(plain, dict) else list(range(len(plain)))
            if not keys:
                return [None], 0
            key = self.random.choice(keys)
            inner = plain[key]
            if not isinstance(inner, dict | list) or not inner or self.random.random() < 0.25:
                return plain, key
            plain = inner


def _beginning() -> tuple[AttemptStarted, SegmentStarted]:
    started = AttemptStarted(None, 8, ("rollback", "watch"), "fuzz", 4096, {"clip": "1.0"})
    return started, SegmentStarted(0, SegmentReason.START, None, 0)


def _cut(body: bytes, random: Random) -> bytes:
    return body[: random.randrange(len(body))]


def _flip(body: bytes, random: Random) -> bytes:
    bent = bytearray(body)
    for _ in range(random.choice((1, 1, 3, 30))):
        bent[random.randrange(len(bent))] = random.randrange(256)
    return bytes(bent)


def _insert(body: bytes, random: Random) -> bytes:
    at = random.randrange(len(body))
    what = random.choice((b"NaN", b"1e999", b",", b'"', b"\\u0000", b"\xff\xfe", b"[" * 3000, b"0"))
    return body[:at] + what + body[at:]


_BYTES: tuple[Callable[[bytes, Random], bytes], ...] = (
    _cut,
    _flip,
    _insert,
    lambda body, _: body + body,
    lambda body, _: body.decode().encode("utf-16"),
    lambda body, _: b"\xef\xbb\xbf" + body,
    lambda body, _: gzip.compress(body),
    lambda body, _: body.replace(b'"version":1', b'"version":2'),
    lambda body, _: body.replace(b'"type":', b'"type":"Message","type":'),
    lambda _, random: random.randbytes(random.randrange(200)),
    lambda _, random: b'{"a":' * random.choice((10, 2000)),
    lambda *_: b"",
)


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
    newest: dict[tuple[str, str, int], int] = field(default_factory=dict)  # step of a segment

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
        """Steps that do not lie behind all of their segment are not stored, and counted."""
        segment = (*who, record.segment)
        newest, nothing = self.newest.get(segment, -1), (None,) * len(record.steps)
        for row, step in enumerate(record.steps):
            if step <= newest:
                self.dropped[who] += 1
                continue
            columns = [record.signals.get(name, nothing)[row] for name in STORED]
            self.samples[*segment, step] = columns
            self.newest[segment] = step


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
