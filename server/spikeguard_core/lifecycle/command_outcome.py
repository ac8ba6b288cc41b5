"""What commands came to that were carried out: one, when its spike comes back or its incident ends,
and those of earlier similar incidents.

Of several cures the last alone is judged, since nobody can tell what the one before would have come
to. Alike are closed incidents of the same kind and likeliest cause.
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


def after_return(verb: Verb, later: str | None, *, step: int, stayed: bool = False) -> str | None:
    """The judgement where the spike came back at `step`; None: it is judged when all is over.

    `later` is the id of the next cure that was carried out, if there was one. `stayed`: it never
    left.
    """
    if verb not in CURES:
        return None
    back = "the loss stayed off its trend after it"
    return _overtaken(later) or (back if stayed else f"the spike came back at step {step:,}")


def after_end(verb: Verb, later: str | None, *, outcome: Outcome, reason: str = "") -> str:
    """The judgement where the incident ended as `outcome`, for this `reason`."""
    if verb not in CURES:
        did = "stopped the run" if verb is Verb.STOP else "changes nothing of the training"
        return f"nothing to judge: it {did}"
    if later is None and outcome is Outcome.RUN_ENDED and reason:
        return f"not judged: {reason}"
    return _overtaken(later) or f"the incident ended as {outcome.value.replace('_', ' ')}"


def next_cure(number: int, done: Sequence[tuple[int, Verb, str]]) -> str | None:
    """Of the commands that were carried out, in their order: the id of the first cure behind."""
    return next((id for other, verb, id in done if other > number and verb in CURES), None)


def _overtaken(later: str | None) -> str | None:
    return None if later is None else f"nobody can tell: {later} followed before its effect showed"


@dataclass(frozen=True, slots=True)
class Tally:
    """What one way of acting came to."""

    verb: Verb | None  # None: nothing was done
    count: int
    words: str  # `rolled back 4 times: 3 recovered, 1 stayed at a new level`


def tallied(precedents: Iterable[tuple[Verb | None, Outcome]]) -> Sequence[Tally]:
    """What each way of acting came to, the most frequent first."""
    by_verb: dict[Verb | None, Counter[Outcome]] = {}
    for verb, outcome in precedents:
        by_verb.setdefault(verb, Counter())[outcome] += 1
    tallies = [Tally(verb, seen.total(), _words(verb, seen)) for verb, seen in by_verb.items()]
    return sorted(tallies, key=lambda tally: (-tally.count, tally.verb is None, tally.verb or ""))


def _words(verb: Verb | None, seen: Counter[Outcome]) -> str:
    did = f"{_DID[verb]} {times_phrase(seen.total())}"
    ends = ", ".join(f"{count:,} {_ENDED[end]}" for end, count in seen.most_common())
    ends = ends if seen.total() > 1 else ends.removeprefix("1 ")
    return did if verb is Verb.STOP else f"{did}: {ends}"  # a stop ends the run and its incident
