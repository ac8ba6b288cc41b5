"""How earlier similar incidents ended, by the command that was carried out.

Law: pure. Alike are closed incidents of the same kind and likeliest cause. What was done is the
last cure that was carried out, or a stop; where there was none, people and policy waited.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from spikeguard_protocol import Outcome, Verb
from spikeguard_server.domain.diagnosis.incident_tracker import CURES

DONE: Final = frozenset({*CURES, Verb.STOP})  # what counts as done about an incident
_DID: Final[Mapping[Verb | None, str]] = {
    Verb.ROLLBACK: "rolled back",
    Verb.SKIP_BATCHES: "skipped batches",
    Verb.SCALE_LR: "lowered the learning rate",
    Verb.STOP: "stopped",
    None: "waited",
}
_ENDED: Final[Mapping[Outcome, str]] = {
    Outcome.RECOVERED: "recovered",
    Outcome.HEALED: "healed",
    Outcome.LEVEL_ACCEPTED: "stayed at a new level",
    Outcome.OUTLIER: "did no harm",
    Outcome.WITHDRAWN: "did not hold as a spike",
    Outcome.RUN_ENDED: "unsettled when the run ended",
}


@dataclass(frozen=True, slots=True)
class Precedent:
    """An earlier incident. `verb` is None where nothing was done."""

    verb: Verb | None
    outcome: Outcome
    lost_steps: int | None = None  # until it was over; None: not known


@dataclass(frozen=True, slots=True)
class Tally:
    """What one way of acting came to."""

    verb: Verb | None
    count: int
    outcomes: Mapping[Outcome, int]  # the most frequent first
    lost_steps: int | None  # median; None: not known

    @property
    def words(self) -> str:
        """`rolled back 4 times: 3 recovered, 1 stayed at a new level; 180 steps lost, median`."""
        times = "once" if self.count == 1 else f"{self.count:,} times"
        ends = ", ".join(f"{count:,} {_ENDED[end]}" for end, count in self.outcomes.items())
        return f"{_DID[self.verb]} {times}: {ends}{self._lost()}"

    def _lost(self) -> str:
        if self.lost_steps is None:
            return ""
        return f"; {self.lost_steps:,} steps lost{' in the median' * (self.count > 1)}"


def tallied(precedents: Iterable[Precedent]) -> Sequence[Tally]:
    """What each way of acting came to, the most frequent first."""
    by_verb: dict[Verb | None, list[Precedent]] = {}
    for one in precedents:
        by_verb.setdefault(one.verb, []).append(one)
    tallies = [_tally(verb, found) for verb, found in by_verb.items()]
    return sorted(tallies, key=lambda tally: (-tally.count, tally.verb is None, tally.verb or ""))


def _tally(verb: Verb | None, found: Sequence[Precedent]) -> Tally:
    outcomes = Counter(one.outcome for one in found)
    lost = [one.lost_steps for one in found if one.lost_steps is not None]
    middle = math.floor(median(lost)) if lost else None
    return Tally(verb, len(found), dict(outcomes.most_common()), middle)
