"""Everything a post-mortem is written from.

Facts only, gathered by the caller from the database when the incident closed; times are aware
datetimes in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from spikeguard_core.events import Precursor
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import (
    BatchDetail,
    BatchRange,
    Cause,
    CommandState,
    Rollback,
    RunId,
    SegmentId,
    SegmentReason,
    Signal,
    Verb,
)
from spikeguard_protocol.vocabulary import SPEAKS_OF
from spikeguard_server.entities import CommandRow, ResponseRow, RevisionRow
from spikeguard_server.report.wording import word

NORMS = (Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value, Signal.UPDATE_NORM.value)
QUIET_VERBS = frozenset({Verb.WATCH, Verb.CHECKPOINT_NOW})  # that change nothing of the training


@dataclass(frozen=True, slots=True)
class RecordedCurve:
    """The samples of one segment that are kept with the incident."""

    segment: SegmentId
    attempt_number: int  # as people know it, from 1
    reason: SegmentReason
    steps: tuple[int, ...]  # rising
    values: Mapping[str, tuple[float | None, ...]]  # one value a step; None = not measured
    kept_to: int | None = None  # last step the present weights descend from; None = all of them

    def rows(self, signal: str) -> list[tuple[int, float]]:
        """(step, value) wherever `signal` was measured."""
        pairs = zip(self.steps, self.values.get(signal, ()), strict=False)
        return [(step, value) for step, value in pairs if value is not None]


@dataclass(frozen=True, slots=True)
class AttemptFact:
    """One start of the run's processes that took part."""

    number: int  # from 1
    id: str
    started_at: datetime
    world_size: int
    agent_version: str
    ended_at: datetime | None = None
    end_reason: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)  # name -> address of its tracker's run


@dataclass(frozen=True, slots=True)
class IncidentPicture:
    """An incident as it stands, as far as its picture shows it."""

    run: RunId
    incident: Incident
    curves: tuple[RecordedCurve, ...]  # in the order in which they were trained
    commands: tuple[CommandRow, ...]  # oldest first

    @property
    def id(self) -> str:
        """The incident's public id, `gpt-124m-7#3`."""
        return f"{self.run}#{self.incident.number}"

    @property
    def rollbacks(self) -> Sequence[tuple[int, int]]:
        """(from, to) in steps of every rollback that was carried out."""
        return [
            (c.applied_step, c.action.step)
            for c in self.commands
            if isinstance(c.action, Rollback) and c.state in EXECUTED and c.applied_step is not None
        ]

    @property
    def signal_beside(self) -> str | None:
        """The signal below the loss: the one that the likeliest cause speaks of, or a norm; None
        where nothing of the kind was measured."""
        likely = next(iter(self.incident.causes), None)
        wanted = SPEAKS_OF.get(likely.cause, ()) if likely is not None else ()
        measured = {n: v for n in (*wanted, *NORMS) if (v := self._values(n))}
        if likely is not None and likely.cause is Cause.LR_TOO_HIGH:  # the group's that moved most
            wanted = tuple(sorted(wanted, key=lambda rate: -_range_of(measured.get(rate, ()))))
        return next((name for name in (*wanted, *NORMS) if name in measured), None)

    def _values(self, signal: str) -> list[float]:
        return [value for curve in self.curves for _, value in curve.rows(signal)]

    @property
    def label(self) -> str:
        """What it shows, for those who do not see it."""
        beside = self.signal_beside
        what = "Loss" if beside is None else f"Loss and {word(beside)}"
        return f"{what} around {self.id}"


def _range_of(rates: Sequence[float]) -> float:
    """The largest over the least of those above 0."""
    known = [rate for rate in rates if rate > 0.0]
    return max(known) / min(known) if known else 0.0


@dataclass(frozen=True, slots=True)
class PostMortem(IncidentPicture):
    """One closed incident, whole."""

    opened_at: datetime
    closed_at: datetime
    written_at: datetime
    followed_to: int | None = None  # samples up to this step still come; None = all are here
    revisions: tuple[RevisionRow, ...] = ()  # oldest first; of many the first and the last
    own_acts: tuple[CommandRow, ...] = ()  # of the job, by its emergency rule
    next_onset: int | None = None  # step at which the run's next incident began
    responses: tuple[ResponseRow, ...] = ()  # oldest first; the newest of many
    precursors: tuple[Precursor, ...] = ()
    attempts: tuple[AttemptFact, ...] = ()
    batch: BatchDetail | None = None  # of the onset, where the loop showed it
    step_time_s: float | None = None  # median before the onset
    tokens_per_step: int | None = None
    price_per_hour: float | None = None
    currency: str = "USD"
    notes: tuple[str, ...] = ()  # of changes of the run before the spike and while it was open

    @property
    def skipped(self) -> tuple[BatchRange, ...]:
        """Batches that were skipped by rollbacks, in ranges that do not touch: a widened skip
        covers the narrower one."""
        done = [c.action for c in self.commands if c.state in EXECUTED]
        skips = [one.skip for one in done if isinstance(one, Rollback) and one.skip is not None]
        found = list[BatchRange]()
        for skip in sorted(skips, key=lambda skip: skip.first):
            if found and skip.first <= found[-1].end:
                last = found.pop()
                skip = BatchRange(last.first, max(last.end, skip.end))
            found.append(skip)
        return tuple(found)

    @property
    def acting(self) -> Sequence[CommandRow]:
        """Commands that change the training, oldest first."""
        return [c for c in self.commands if c.verb not in QUIET_VERBS]

    @property
    def asked(self) -> Sequence[CommandRow]:
        """Of these, those that no later proposal took the place of."""
        return [c for c in self.acting if c.state is not CommandState.SUPERSEDED]
