"""Totals of the incidents of some weeks, by week, by run, by kind and cause.

Law: facts alone; moments are texts in UTC. Times are medians, since one forgotten night would drown
all others in a mean. Money is told by currency and never added across them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figures:
    """What some incidents came to; None = none of them knows."""

    incidents: int = 0
    still_open: int = 0
    detect_s: float | None = None  # median, from the onset to the detection
    decide_s: float | None = None  # median, from the first proposal to a person's first decision
    recover_s: float | None = None  # median, from the onset to the close, of those that recovered
    lost_steps: int = 0
    lost_s: float = 0.0
    saved_steps: int = 0
    saved_s: float = 0.0
    lost_money: Mapping[str, float] = field(default_factory=dict)  # by currency
    saved_money: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeekFact:
    """One week, Monday to Sunday, UTC."""

    name: str  # `2026-W47`
    begins: str  # RFC 3339, UTC
    figures: Figures


@dataclass(frozen=True, slots=True)
class RunFact:
    """One run."""

    project: str
    name: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class CauseFact:
    """Incidents of one kind and one likeliest cause."""

    kind: str
    cause: str | None  # None: nobody asked for it
    incidents: int
    runs: int  # that had one
    lost_steps: int


@dataclass(frozen=True, slots=True)
class OpenFollowup:
    """Something that is still to be done."""

    project: str
    run: str
    incident: int
    number: int
    text: str
    owner: str | None
    since: str  # RFC 3339, UTC


@dataclass(frozen=True, slots=True)
class Summary:
    """Some weeks of a project, a run, or all that the reader may see."""

    begins: str  # RFC 3339, UTC
    ends: str
    scope: str  # in words
    total: Figures
    weeks: Sequence[WeekFact]  # oldest first, also those without an incident
    runs: Sequence[RunFact]  # that lost most first
    runs_count: int
    causes: Sequence[CauseFact]  # the most frequent first
    followups: Sequence[OpenFollowup]  # the oldest first
    followups_count: int

    @property
    def recurring(self) -> Sequence[CauseFact]:
        """Causes that came more than once, over all kinds, the most frequent first."""
        found: dict[str, CauseFact] = {}
        for one in self.causes:
            if one.cause is None or one.cause == "unknown":
                continue
            old = found.get(one.cause)
            found[one.cause] = one if old is None else CauseFact(
                "", one.cause, old.incidents + one.incidents, max(old.runs, one.runs),
                old.lost_steps + one.lost_steps,
            )  # fmt: skip
        again = [one for one in found.values() if one.incidents > 1]
        return sorted(again, key=lambda one: (-one.incidents, one.cause or ""))
