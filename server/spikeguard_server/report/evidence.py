"""What was seen, for the appendix: losses, signals that moved, how the kind was found, causes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from spikeguard_core.lifecycle.damage import rose
from spikeguard_protocol import Signal
from spikeguard_protocol.phrases import cause_phrase, sure_phrase
from spikeguard_server.entities import RevisionRow
from spikeguard_server.report.document import Block, Table
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.symptoms import Peak, peaks_of, symptoms_of
from spikeguard_server.report.wording import (
    NOT_YET,
    SIGMA,
    deviations,
    number,
    off_trend,
    plural,
    time_of,
    word,
)

LEAST_SHOWN = 0.01  # confidence of a cause
MOST_REVISIONS = 5  # rows of the table of revisions
GRAD_NORMS = {
    Signal.GRAD_NORM: "global L2 before clipping",
    Signal.GRAD_NORM_AT_STEP: "global L2 as the optimizer saw it",
}
DEVIATES = 3.0  # a signal whose largest deviation is below it, and that never moved, has no row


def seen_before_and_after(facts: PostMortem) -> tuple[Block, ...]:
    """The loss before, at and after the spike, and the largest gradient norm."""
    seen, peaks = symptoms_of(facts), peaks_of(facts)
    rows = [("Loss before the spike", number(seen.pre_loss), _trend_note(facts))]
    peak = (number(seen.peak_loss), f"step {seen.peak_step:,}")
    rows.append(("Peak loss", *(peak if rose(facts.incident) else ("it did not rise", ""))))
    if (loss := peaks.get(Signal.LOSS)) is not None and loss.not_finite:
        rows.append(("Loss not finite", plural(loss.not_finite, "step"), "while it was open"))
    if seen.later_step is not None:
        where = f"mean of steps {seen.later_first:,} to {seen.later_step:,}"
        if seen.later_above is not None:
            where = f"{where}; {off_trend(seen.later_above)}"
        rows.append(("Loss later", number(seen.later_loss), where))
    elif facts.followed_to is not None:
        where = f"step {facts.followed_to:,} or the end of the run; this is written again then"
        rows.append(("Loss later", NOT_YET, where))
    rows.append(("Activations by layer", "not measured", ""))
    for norm in (Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP):
        if norm in peaks:
            value, where = _largest(peaks[norm])
            rows.append((f"Peak {word(norm)}", value, f"{where}; {GRAD_NORMS[norm]}"))
    return (Table(("", "value", "where"), tuple(rows), frozenset({1})),)


def _largest(peak: Peak | None) -> tuple[str, str]:
    """The value in words, and where; the values that were none count as well."""
    if peak is None:
        return "", ""
    value = "not finite" if peak.value is None else number(peak.value)
    parts = [] if peak.step is None else [f"step {peak.step:,}"]
    if peak.not_finite:
        parts.append(f"not finite at {plural(peak.not_finite, 'step')}")
    return value, "; ".join(parts)


def _trend_note(facts: PostMortem) -> str:
    trend = facts.incident.trend
    return (
        "" if trend is None else f"trend at step {trend.step:,}, {SIGMA} {number(trend.scale, 2)}"
    )


def signals_of(facts: PostMortem) -> tuple[Block, ...]:
    """What each signal that left its baseline did, the first to move first."""
    incident, peaks = facts.incident, peaks_of(facts)
    names = sorted(
        (name for name in {*incident.worst_z, *incident.first_moves} if _deviates(facts, name)),
        key=lambda name: (incident.first_moves.get(name, 2**60), name != Signal.LOSS, name),
    )
    if not names:
        return ()
    header = ("signal", "first moved", "largest deviation", "largest value", "where")
    rows = tuple(_signal_row(facts, name, peaks.get(name)) for name in names)
    return (Table(header, rows, frozenset({1, 2, 3})),)


def _deviates(facts: PostMortem, name: str) -> bool:
    z = facts.incident.worst_z.get(name, 0.0)
    return name in facts.incident.first_moves or not math.isfinite(z) or abs(z) >= DEVIATES


def _signal_row(facts: PostMortem, name: str, peak: Peak | None) -> tuple[str, ...]:
    incident = facts.incident
    step, z = incident.first_moves.get(name), incident.worst_z.get(name)
    return (
        word(name),
        "" if step is None else f"step {step:,}",
        "" if z is None else deviations(z),
        *_largest(peak),
    )


def classification_of(facts: PostMortem) -> tuple[Block, ...]:
    """What the incident was classified as, step by step, and why."""
    shown = _telling(facts.revisions)
    if not shown:
        return ()
    rows = tuple(
        (f"{r.step:,}", time_of(r.at), word(r.kind), f"{r.confidence:.0%}", r.reason) for r in shown
    )
    header = ("step", "time", "classified as", "confidence", "because")
    left_out = facts.revision_count - len(rows)
    said = [f"{plural(left_out, 'revision')} in between left out."] if left_out > 0 else []
    return (Table(header, rows, frozenset({0, 3})), *said)


def _telling(revisions: Sequence[RevisionRow]) -> Sequence[RevisionRow]:
    """The first, the changes of kind as far as they fit, and the last."""
    changes = [later for one, later in pairwise(revisions) if later.kind != one.kind]
    shown = [*revisions[:1], *changes[: MOST_REVISIONS - 2], *revisions[-1:]]
    return list({revision.number: revision for revision in shown}.values())


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
