"""What was seen, for the appendix: losses, signals that moved, how the kind was found, causes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import Signal
from spikeguard_protocol.phrases import cause_phrase, sure_phrase
from spikeguard_server.entities import RevisionRow
from spikeguard_server.report.document import Block, Table
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.symptoms import Peak, peaks_of, symptoms_of
from spikeguard_server.report.wording import (
    MISSING,
    NOT_YET,
    SIGMA,
    deviations,
    number,
    plural,
    time_of,
    word,
)

LEAST_SHOWN = 0.01  # confidence of a cause
MOST_REVISIONS = 5  # rows of the table of revisions
ALWAYS_SHOWN = {Signal.LOSS, Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP}
DEVIATES = 3.0  # a signal whose largest deviation is below it, and that never moved, has no row


def seen_before_and_after(facts: PostMortem) -> tuple[Block, ...]:
    """The loss before the spike and after it."""
    seen = symptoms_of(facts)
    rows = [("Loss before the spike", number(seen.pre_loss), _trend_note(facts))]
    if seen.later_step is not None:
        where = f"mean of steps {seen.later_first:,} to {seen.later_step:,}"
        rows.append(("Loss later", number(seen.later_loss), where))
    elif facts.followed_to is not None:
        where = f"step {facts.followed_to:,} or the end of the run; this is written again then"
        rows.append(("Loss later", NOT_YET, where))
    rows.append(("Activations by layer", MISSING, ""))
    return (Table(("", "value", "where"), tuple(rows), frozenset({1})),)


def _trend_note(facts: PostMortem) -> str:
    trend = facts.incident.trend
    return (
        "" if trend is None else f"trend at step {trend.step:,}, {SIGMA} {number(trend.scale, 2)}"
    )


def signals_of(facts: PostMortem) -> tuple[Block, ...]:
    """What loss, gradient norm and each signal that left its baseline did while it was open, the
    first to move first."""
    incident, peaks = facts.incident, peaks_of(facts)
    moved = {name for name in {*incident.worst_z, *incident.first_moves} if _moved(incident, name)}
    names = sorted(
        moved | (ALWAYS_SHOWN & peaks.keys()),
        key=lambda name: (incident.first_moves.get(name, 2**60), name != Signal.LOSS, name),
    )
    if not names:
        return ()
    header = ("signal", "first moved", "largest deviation", "largest value", "where")
    rows = tuple(_signal_row(incident, name, peaks.get(name)) for name in names)
    return (Table(header, rows, frozenset({1, 2, 3})),)


def _moved(incident: Incident, name: str) -> bool:
    z = incident.worst_z.get(name, 0.0)
    return name in incident.first_moves or not math.isfinite(z) or abs(z) >= DEVIATES


def _signal_row(incident: Incident, name: str, peak: Peak | None) -> tuple[str, ...]:
    step, z = incident.first_moves.get(name), incident.worst_z.get(name)
    return (
        word(name),
        "" if step is None else f"step {step:,}",
        "" if z is None else deviations(z),
        *_largest(peak),
    )


def _largest(peak: Peak | None) -> tuple[str, str]:
    """The value in words, and where; the values that were none count as well."""
    if peak is None:
        return "", ""
    value = "not finite" if peak.value is None else number(peak.value)
    parts = [] if peak.step is None else [f"step {peak.step:,}"]
    if peak.not_finite:
        parts.append(f"not finite at {plural(peak.not_finite, 'step')}")
    return value, "; ".join(parts)


def classification_of(facts: PostMortem) -> tuple[Block, ...]:
    """What the incident was classified as at first and at each change, and why."""
    rows = tuple(
        (f"{r.step:,}", time_of(r.at), word(r.kind), f"{r.confidence:.0%}", r.reason)
        for r in _changes(facts.revisions)
    )
    header = ("step", "time", "classified as", "confidence", "because")
    return (Table(header, rows, frozenset({0, 3})),) if rows else ()


def _changes(revisions: Sequence[RevisionRow]) -> Sequence[RevisionRow]:
    """The first, and the changes of kind: of more than fit the last ones."""
    changes = [later for one, later in pairwise(revisions) if later.kind != one.kind]
    return [*revisions[:1], *changes[1 - MOST_REVISIONS :]]


def causes_considered(facts: PostMortem) -> tuple[Block, ...]:
    """Every cause that is not all but ruled out and that anything speaks for or against."""
    rows = tuple(
        (
            cause_phrase(one.cause),
            sure_phrase(one.confidence),
            "; ".join([*one.reasons, *(f"against: {said}" for said in one.against)]),
        )
        for one in facts.incident.causes
        if one.confidence >= LEAST_SHOWN and (one.reasons or one.against)
    )
    return (Table(("cause", "confidence", "because"), rows, frozenset({1})),) if rows else ()
