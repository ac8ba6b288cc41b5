"""Bodies for `POST /v1/messages`: what an agent could send, and that bent in every way.

Law: a pure function of the seed. Most bodies are a valid message of a run, next in its sequence,
with a few things in it replaced, left out, doubled, swapped or cut off; the rest stay valid.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from spikeguard_protocol import (
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
    encode,
)

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
