"""Other possible causes of the spike, and what the record says about each.

Only what was measured rules a cause out; where the signal that would tell is missing, the cause
stays open, and that is said.

Invariants: pure; every verdict names the fact it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spikeguard_protocol import Cause, OptionalSignal, Rollback, Signal
from spikeguard_protocol.phrases import batches_phrase, cause_phrase
from spikeguard_server.domain.diagnosis.silent_failures import LIMIT
from spikeguard_server.domain.lifecycle.command_life import EXECUTED
from spikeguard_server.domain.suspicion import SHOWN, Suspicion
from spikeguard_server.report.facts import PostMortem

AROUND: Final = 20  # steps on either side of the onset that are compared
STEADY_RATE: Final = 1.1  # of the highest learning rate around the onset to the lowest
STEADY_WEIGHTS: Final = 1.02  # the same of the parameter norm
QUIET_Z: Final = 6.0  # a signal that left its baseline by less did not move


class AlternativeVerdict(StrEnum):
    """What the record says to a cause that is not the one named."""

    RULED_OUT = "ruled out"
    UNLIKELY = "unlikely"  # the evidence speaks more for another
    OPEN = "not ruled out"


@dataclass(frozen=True, slots=True)
class Alternative:
    """A cause that is not the one named."""

    cause: Cause
    confidence: float
    verdict: AlternativeVerdict
    because: str

    @property
    def phrase(self) -> str:
        """`learning rate too high (the learning rate changed by 0.4 % around the onset)`."""
        return f"{cause_phrase(self.cause)} ({self.because})"


def alternatives_of(facts: PostMortem) -> tuple[Alternative, ...]:
    """Every cause but the likeliest, the likeliest of them first."""
    return tuple(
        _judged(one, facts) for one in facts.incident.causes[1:] if one.cause is not Cause.UNKNOWN
    )


def _judged(one: Suspicion, facts: PostMortem) -> Alternative:
    cause, confidence = one.cause, one.confidence
    fact = _AGAINST[cause](facts) if cause in _AGAINST else None
    if fact is not None and confidence < SHOWN:
        return Alternative(cause, confidence, AlternativeVerdict.RULED_OUT, fact)
    if confidence < SHOWN:
        return Alternative(cause, confidence, AlternativeVerdict.UNLIKELY, _weighed(one))
    return Alternative(cause, confidence, AlternativeVerdict.OPEN, fact or _left_open(cause, facts))


def _weighed(one: Suspicion) -> str:
    """What speaks most against it."""
    return one.against[0] if one.against else "the evidence speaks for another"


def _rate_held(facts: PostMortem) -> str | None:
    rates = [v for v in _near(facts, Signal.LR.value) if v > 0]
    if len(rates) < 4 or max(rates) > STEADY_RATE * min(rates):
        return None
    part = max(rates) / min(rates) - 1
    moved = f"moved by {part:.1%}" if part >= 0.0005 else "did not move"
    return f"the learning rate {moved} within {AROUND} steps of the onset"


def _batches_came_again(facts: PostMortem) -> str | None:
    batches = facts.incident.onset_batches
    back = [
        c.action for c in facts.commands if isinstance(c.action, Rollback) and c.state in EXECUTED
    ]
    again = bool(back) and all(
        a.skip is None or batches is None or not _overlap(a, batches) for a in back
    )
    if not again or batches is None or facts.incident.recurrences:
        return None
    return (
        f"{batches_phrase(batches)} was trained on again after the rollback and nothing stood out"
    )


def _overlap(action: Rollback, batches: object) -> bool:
    skip, first = action.skip, getattr(batches, "first", 0)
    return skip is not None and skip.first <= first < skip.end


def _moment_held(facts: PostMortem) -> str | None:
    if not _measured(facts, Signal.ADAM_V_NORM.value):
        return None
    z = abs(facts.incident.worst_z.get(Signal.ADAM_V_NORM, 0.0))
    if z < 0.1:
        return "its norm did not leave its baseline"
    return f"its norm stayed within {z:.1f} deviations" if z < QUIET_Z else None


def _no_single_layer(facts: PostMortem) -> str | None:
    first = facts.incident.first_layer
    if first is None or first.alone:
        return None
    return f"{first.moved:,} of {first.known:,} layers moved at the same step"


def _all_finite(facts: PostMortem) -> str | None:
    names = (Signal.LOSS, Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP, Signal.PARAM_NORM)
    values = [v for name in names for v in _values(facts, name.value)]
    known = values and all(map(math.isfinite, values))
    return "every loss and norm on record is finite" if known else None


def _weights_held(facts: PostMortem) -> str | None:
    norms = _near(facts, Signal.PARAM_NORM.value)
    if len(norms) < 2 or not all(map(math.isfinite, norms)) or min(norms) <= 0:
        return None
    if max(norms) > STEADY_WEIGHTS * min(norms):
        return None
    part = max(norms) / min(norms) - 1
    moved = f"moved by {part:.2%}" if part >= 0.00005 else "did not move"
    return f"the parameter norm {moved} around the onset"


def _no_scaler(facts: PostMortem) -> str | None:
    skipped = list(_values(facts, OptionalSignal.STEP_SKIPPED.value))
    if any(skipped):
        return None
    return "its gradient scaler skipped no step" if skipped else "no gradient scaler is on record"


def _updates_arrive(facts: PostMortem) -> str | None:
    shares = list(_values(facts, OptionalSignal.UNCHANGED_PARAMETERS.value))
    if not shares or max(shares) >= LIMIT:
        return None
    return f"at most {max(shares):.0%} of the parameters stayed as they were in a step"


def _tokens_known(facts: PostMortem) -> str | None:
    shares = _near(facts, OptionalSignal.UNSEEN_TOKENS.value)
    if not shares:
        return _batches_came_again(facts)
    return f"at most {max(shares):.2%} of a step's tokens were new" if max(shares) < 0.01 else None


_AGAINST: Mapping[Cause, Callable[[PostMortem], str | None]] = {
    Cause.BAD_BATCH: _batches_came_again,
    Cause.RARE_TOKENS: _tokens_known,
    Cause.STALE_SECOND_MOMENT: _moment_held,
    Cause.LR_TOO_HIGH: _rate_held,
    Cause.LAYER_FAULT: _no_single_layer,
    Cause.NON_FINITE_SOURCE: _all_finite,
    Cause.WEIGHT_CORRUPTION: _weights_held,
    Cause.LOSS_SCALE_OVERFLOW: _no_scaler,
    Cause.STALLED_WEIGHTS: _updates_arrive,
}
_TELLS: Mapping[Cause, tuple[str, str, str]] = {  # signal, while it is not there, where it moved
    Cause.RARE_TOKENS: (
        OptionalSignal.UNSEEN_TOKENS.value, "the tokens of its batches were not counted",
        "its batches held tokens that no step before had",
    ),
    Cause.STALE_SECOND_MOMENT: (
        Signal.ADAM_V_NORM.value, "the norm of Adam's second moment was not reported",
        "the norm of Adam's second moment moved too",
    ),
    Cause.LR_TOO_HIGH: (
        Signal.LR.value, "the learning rate was not reported",
        "the learning rate changed around the onset",
    ),
    Cause.WEIGHT_CORRUPTION: (
        Signal.PARAM_NORM.value, "the parameter norm was not reported",
        "the parameter norm moved too",
    ),
}  # fmt: skip
_MISSING: Mapping[Cause, str] = {
    Cause.BAD_BATCH: "its batches were not trained on again",
    Cause.LAYER_FAULT: "norms by layer were not sent",
}


def _left_open(cause: Cause, facts: PostMortem) -> str:
    """Why nothing rules it out."""
    if cause not in _TELLS:
        return _MISSING.get(cause, "nothing that was measured speaks against it")
    signal, missing, moved = _TELLS[cause]
    return moved if _measured(facts, signal) else missing


def _near(facts: PostMortem, signal: str) -> list[float]:
    """Values around the onset, of the branch on which it lies."""
    onset = facts.incident.onset_step
    return [v for s, v in _samples(facts, signal) if abs(s - onset) <= AROUND]


def _values(facts: PostMortem, signal: str) -> Iterator[float]:
    onset = facts.incident.onset_step
    return (v for s, v in _samples(facts, signal) if s >= onset)


def _samples(facts: PostMortem, signal: str) -> Iterator[tuple[int, float]]:
    for curve in facts.curves:
        if curve.segment == facts.incident.segment:
            for step, value in zip(curve.steps, curve.values.get(signal, ()), strict=False):
                if value is not None:
                    yield step, value


def _measured(facts: PostMortem, signal: str) -> bool:
    return any(True for _ in _samples(facts, signal))
