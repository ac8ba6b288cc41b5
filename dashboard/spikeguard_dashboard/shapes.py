"""The shapes of the HTTP API, as `docs/protocol.md` writes them.

Law: descriptions only. A `Wire` number is a number or one of "nan", "inf", "-inf"; `number` is how
it is read. `Series` is the one shape that is converted, because charts compute with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from spikeguard_protocol import ProtocolError
from spikeguard_protocol.encoding import float_from_json

Wire = float | str | None
Json = Mapping[str, object]


class Point(TypedDict):
    """A place in the tree of history."""

    attempt: str
    segment: int
    step: int


class Run(TypedDict):
    """One training job in a list."""

    project: str
    name: str
    id: str
    state: str
    created_at: str
    last_message_at: str | None
    age_s: float | None
    last_step: int | None
    last_loss: Wire
    last_grad_norm: Wire
    tokens_per_second: Wire
    open_incident: int | None
    incidents: int
    waiting_approval: bool
    live_attempts: int


class Attempt(TypedDict):
    """One start of the run's processes."""

    id: str
    number: int
    started_at: str
    last_message_at: str | None
    ended_at: str | None
    end_reason: str | None
    world_size: int | None
    agent_version: str | None
    dropped_samples: int


class Segment(TypedDict):
    """An unbroken stretch of steps, and where it began."""

    attempt: str
    number: int
    reason: str
    parent: Point | None
    first_step: int | None
    last_step: int | None
    current: bool


class Target(TypedDict):
    """A checkpoint or memory snapshot that can be rolled back to."""

    name: str
    attempt: str
    segment: int
    step: int
    position: int
    medium: str
    health: str
    protected: bool


class RunDetail(Run):
    """One training job with its history."""

    attempts: list[Attempt]
    segments: list[Segment]
    targets: list[Target]


class Cost(TypedDict):
    """What carrying out a command would give up."""

    steps: int
    seconds: Wire
    tokens: Wire
    money: Wire


class CommandRevision(TypedDict):
    """What was proposed, before it was proposed anew."""

    number: int
    at: str
    verb: str
    arguments: Json
    reason: str


class Command(TypedDict):
    """A recovery: proposed, decided, carried out and judged."""

    id: str
    number: int
    incident: str
    verb: str
    arguments: Json
    state: str
    revision: int
    reason: str
    policy_version: int | str | None
    cost: Cost | None
    attempt: str | None
    expires_in_s: Wire
    expires_at_step: int | None
    proposed_at: str
    decided_at: str | None
    decided_by: str | None
    decision_reason: str | None
    delivered_at: str | None
    finished_at: str | None
    applied_step: int | None
    result: str | None
    judgement: str | None
    revisions: list[CommandRevision]


class TrendShape(TypedDict):
    """Where the loss was heading before the spike."""

    step: int
    level: Wire
    slope: Wire
    scale: Wire


class Incident(TypedDict):
    """One spike in a list."""

    id: str
    run: str
    project: str
    number: int
    state: str
    kind: str
    confidence: Wire
    reason: str
    settled: bool
    onset_step: int
    detected_step: int
    peak_step: int
    closed_step: int | None
    onset_batches: list[int] | None
    signal: str
    pre_loss: Wire
    peak_loss: Wire
    excess: Wire
    newest_step: int
    dropped: bool
    recurrences: int
    outcome: str | None
    opened_at: str
    closed_at: str | None
    trend: TrendShape | None
    proposal: Command | None


class KindRevision(TypedDict):
    """What an incident was held to be at one step."""

    number: int
    step: int
    at: str
    kind: str
    confidence: Wire
    reason: str


class PrecursorShape(TypedDict):
    """A leading signal that moved before the loss."""

    step: int
    signal: str
    value: Wire
    z: Wire


class Evidence(TypedDict):
    """What was measured of an incident."""

    first_moves: Mapping[str, int]
    worst_z: Mapping[str, Wire]
    peaks: Mapping[str, Wire]
    precursors: list[PrecursorShape]


class CauseShape(TypedDict):
    """What may have started an incident, and what speaks for it."""

    cause: str
    confidence: Wire
    reasons: list[str]


class FirstLayer(TypedDict):
    """The layer that moved first."""

    signal: str
    layer: str
    step: int
    ratio: Wire
    layers_moved: int
    layers_known: int


class IncidentDetail(Incident):
    """One spike with everything known about it."""

    revisions: list[KindRevision]
    evidence: Evidence
    causes: list[CauseShape]
    first_layer: FirstLayer | None
    commands: list[Command]
    has_postmortem: bool


class AuditEntry(TypedDict):
    """One change of state: who, what, when and why."""

    number: int
    at: str
    actor: str
    action: str
    subject: str
    before: object
    after: object
    reason: str | None


class Me(TypedDict):
    """Whose token it is."""

    name: str | None
    role: str
    project: str | None
    expires_in_s: Wire


@dataclass(frozen=True, slots=True)
class Trend:
    """The extrapolated baseline of the loss, straight in the logarithm of the step."""

    step: int
    level: float
    slope: float  # change a step, at `step`; fades as 1/step
    scale: float  # robust standard deviation

    def at(self, step: float) -> float:
        """The level at `step`."""
        start = max(self.step, 0) + 1
        return self.level + self.slope * start * math.log((max(step, 0.0) + 1) / start)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The samples of one segment; columns of equal length."""

    attempt: str
    number: int
    current: bool
    steps: tuple[int, ...]
    values: Mapping[str, tuple[float | None, ...]]  # None = not measured; NaN was measured
    batches: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Curves of a run, by segment."""

    signals: tuple[str, ...]
    segments: tuple[Stretch, ...]
    truncated: bool  # thinned: extremes and non-finite values were kept
    trend: Trend | None
    fingerprint: str = ""  # of the answer it was read from: equal ones draw the same


def number(value: Wire) -> float | None:
    """The float that `value` stands for; None where there is none."""
    return None if value is None else float_from_json("value", value)


def read_trend(plain: TrendShape | None) -> Trend | None:
    """The trend, if all of it is there."""
    if plain is None:
        return None
    level, slope, scale = (number(plain[key]) for key in ("level", "slope", "scale"))
    if level is None or slope is None or scale is None:
        return None
    return Trend(int(plain["step"]), level, slope, scale)


def read_batches(value: object) -> tuple[int, int] | None:
    """A half-open range, written `[a, b]` or as an object with `first` and `end`."""
    if isinstance(value, Mapping):
        value = [value.get("first"), value.get("end")]
    if isinstance(value, list | tuple) and len(value) == 2:
        first, end = value
        if isinstance(first, int) and isinstance(end, int):
            return first, end
    return None


def read_series(plain: Mapping[str, object]) -> Series:
    """Convert the JSON of a `Series`; raise `ProtocolError` where it is not one."""
    try:
        stretches = tuple(_stretch(segment) for segment in plain["segments"])  # type: ignore[attr-defined]
        return Series(
            tuple(plain["signals"]),  # type: ignore[arg-type]
            stretches,
            bool(plain["truncated"]),
            read_trend(plain["trend"]),  # type: ignore[arg-type]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError("series", "is a Series of the HTTP API", repr(error)[:200]) from error


def _stretch(plain: Mapping[str, object]) -> Stretch:
    steps: tuple[int, ...] = tuple(plain["steps"])  # type: ignore[arg-type]
    values: Mapping[str, list[Wire]] = plain["values"]  # type: ignore[assignment]
    ranges: list[object] = plain.get("batches") or [None] * len(steps)  # type: ignore[assignment]
    columns = {name: tuple(number(value) for value in column) for name, column in values.items()}
    if any(len(column) != len(steps) for column in [*columns.values(), ranges]):
        raise ValueError("columns of unequal length")
    return Stretch(
        str(plain["attempt"]),
        int(plain["number"]),  # type: ignore[call-overload]
        bool(plain["current"]),
        steps,
        columns,
        tuple(read_batches(value) for value in ranges),
    )
