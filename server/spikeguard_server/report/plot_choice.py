"""Which signal a picture shows beside the loss: the one that the likeliest cause speaks of, as far
as it was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from spikeguard_protocol import RATES_OF_GROUPS, Cause, Signal
from spikeguard_protocol.vocabulary import SPEAKS_OF
from spikeguard_server.report.facts import IncidentPicture, RecordedCurve
from spikeguard_server.report.wording import word

NORMS: Final = (Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value, Signal.UPDATE_NORM.value)


def kept_indices(values: Sequence[float | None], points: int) -> list[int]:
    """Indices of at most about `points` values: each bucket's extremes, and the non-finite ones.

    Of a long stretch of non-finite values its ends and one in each bucket are kept.
    """
    if len(values) <= points:
        return list(range(len(values)))
    size = math.ceil(len(values) / max(1, points // 3))
    kept = {0, len(values) - 1}
    for start in range(0, len(values), size):
        kept |= _of_bucket(values, range(start, min(start + size, len(values))))
    return sorted(kept)


def _of_bucket(values: Sequence[float | None], bucket: range) -> set[int]:
    numbers = [(v, i) for i in bucket if (v := values[i]) is not None]
    finite = [pair for pair in numbers if math.isfinite(pair[0])]
    kept = {min(finite)[1], max(finite)[1]} if finite else set()
    odd = [i for v, i in numbers if not math.isfinite(v)]
    return kept | set(odd[:1])


def signal_beside(facts: IncidentPicture) -> str | None:
    """The signal below the loss; None where nothing of the kind was measured."""
    likely = next(iter(facts.incident.causes), None)
    wanted = SPEAKS_OF.get(likely.cause, ()) if likely is not None else ()
    measured = {
        name
        for curve in facts.curves
        for name, column in curve.values.items()
        if any(value is not None for value in column)
    }
    if likely is not None and likely.cause is Cause.LR_TOO_HIGH:
        rates = [name for name in wanted if name in measured]
        wanted = tuple(sorted(rates, key=lambda name: -_rise(facts.curves, name)))
    return next((name for name in (*wanted, *NORMS) if name in measured), None)


def _rise(curves: Sequence[RecordedCurve], rate: str) -> float:
    """How far it lies apart: the rate that is blamed is the one that moved most."""
    columns = (curve.values.get(rate, ()) for curve in curves)
    known = [value for column in columns for value in column if value is not None and value > 0.0]
    return max(known) / min(known) if known else 0.0


def named(signal: str) -> str:
    """A signal as a reader says it."""
    if signal in RATES_OF_GROUPS:
        return f"learning rate of group {signal.rpartition('_')[2]}"
    return word(signal)


def picture_label(facts: IncidentPicture) -> str:
    """What the picture of the curves shows, for those who do not see it."""
    beside = signal_beside(facts)
    what = "Loss" if beside is None else f"Loss and {named(beside)}"
    return f"{what} around {facts.id}"
