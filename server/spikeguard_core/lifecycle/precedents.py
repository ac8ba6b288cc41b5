"""How earlier similar incidents ended, by the command that was carried out.

Alike are closed incidents of the same kind and likeliest cause. What was done is the
last cure that was carried out, or a stop; where there was none, people and policy waited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_protocol import Outcome, Verb
from spikeguard_protocol.phrases import times_phrase

DONE: Final = frozenset({*CURES, Verb.STOP})  # what counts as done about an incident
_DID: Final[Mapping[Verb | None, str]] = {
    Verb.ROLLBACK: "rolled back",
    Verb.SKIP_BATCHES: "skipped batches",
    Verb.SCALE_LR: "lowered the learning rate",
    Verb.APPLY: "applied a mitigation",
    Verb.STOP: "stopped",
    None: "waited",
}
_ENDED: Final[Mapping[Outcome, str]] = {
    Outcome.RECOVERED: "recovered",
    Outcome.HEALED: "healed",
    Outcome.LEVEL_ACCEPTED: "stayed at a new level",
    Outcome.OUTLIER: "did no harm",
    Outcome.WITHDRAWN: "did not hold as a spike",
    Outcome.RUN_ENDED: "still open when the run ended",
}


@dataclass(frozen=True, slots=True)
class Tally:
    """What one way of acting came to."""

    verb: Verb | None  # None: nothing was done
    count: int
    words: str  # `rolled back in 4 incidents: 3 recovered, 1 stayed at a new level`


def tallied(precedents: Iterable[tuple[Verb | None, Outcome]]) -> Sequence[Tally]:
    """What each way of acting came to, the most frequent first."""
    by_verb: dict[Verb | None, Counter[Outcome]] = {}
    for verb, outcome in precedents:
        by_verb.setdefault(verb, Counter())[outcome] += 1
    tallies = [Tally(verb, seen.total(), _words(verb, seen)) for verb, seen in by_verb.items()]
    return sorted(tallies, key=lambda tally: (-tally.count, tally.verb is None, tally.verb or ""))


def _words(verb: Verb | None, seen: Counter[Outcome]) -> str:
    if verb is Verb.STOP:  # with which the run ends, and its incident
        return f"{_DID[verb]} {times_phrase(seen.total())}"
    if seen.total() == 1:
        return f"{_DID[verb]} in 1 incident: {_ENDED[next(iter(seen))]}"
    ends = ", ".join(f"{count:,} {_ENDED[end]}" for end, count in seen.most_common())
    return f"{_DID[verb]} in {seen.total():,} incidents: {ends}"
