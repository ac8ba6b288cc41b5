"""The outcome of a command that was carried out, when its spike comes back or its incident ends.

A command is judged by what followed it: of several cures the last alone, since nobody
can tell what the one before would have come to; what changes nothing of the training, not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_protocol import Outcome, Verb

_CHANGES_NOTHING: Final[Mapping[Verb, str]] = {
    Verb.WATCH: "watching",
    Verb.CHECKPOINT_NOW: "saving a checkpoint",
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
    if verb in _CHANGES_NOTHING:
        return f"nothing to judge: {_CHANGES_NOTHING[verb]} changes nothing of the training"
    if verb is Verb.STOP:
        return "nothing to judge: it stopped the run"
    if later is None and outcome is Outcome.RUN_ENDED and reason:
        return f"not judged: {reason}"
    return _overtaken(later) or f"the incident ended as {outcome.value.replace('_', ' ')}"


def next_cure(number: int, done: Sequence[tuple[int, Verb, str]]) -> str | None:
    """Of the commands that were carried out, in their order: the id of the first cure behind."""
    return next((id for other, verb, id in done if other > number and verb in CURES), None)


def _overtaken(later: str | None) -> str | None:
    return None if later is None else f"nobody can tell: {later} followed before its effect showed"
