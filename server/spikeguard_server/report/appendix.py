"""What the page of a post-mortem rests on, as tables."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from spikeguard_protocol import OptionalSignal, Signal
from spikeguard_protocol.phrases import action_phrase, cause_phrase, response_phrase, sure_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS, SPEAKS_OF
from spikeguard_server.report.document import Section, Table
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.symptoms import Peak, open_curves, peaks_of, values_before
from spikeguard_server.report.wording import decider, number, plural, step_of, time_of, word

LEAST_SHOWN = 0.01  # confidence of a cause
ALWAYS_SHOWN = {Signal.LOSS, Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP}
COUNTED = {Signal.UPDATE_DROPPED, OptionalSignal.STEP_SKIPPED}  # among the cost, step by step
DEVIATES = 3.0  # a signal whose largest deviation is below it, and that never moved, has no row
CALM_ROWS = 20  # before the onset, that tell what was usual
HOLE = 5.0  # times the usual distance of two samples


def appendix_sections(facts: PostMortem) -> list[Section]:
    """Its sections."""
    said = tuple(
        f"{time_of(r.at)} {response_phrase(r.action, r.person, r.assignee, r.text)}"
        for r in facts.responses
        if r.text
    )
    return [
        Section("Signals", (_signals(facts), *_holes(facts))),
        Section("Classification", (_classification(facts),)),
        Section("Causes considered", (_causes(facts),)),
        Section("Commands", (_commands(facts),)),
        Section("What people said", (said,)),
        Section("Changes noted", (facts.notes,)),
    ]


def _signals(facts: PostMortem) -> Table:
    """What loss, gradient norm, each signal that left its baseline and those that the likely cause
    speaks of did while it was open, the first to move first."""
    incident, peaks = facts.incident, peaks_of(facts)
    shown = ALWAYS_SHOWN.union(*(SPEAKS_OF.get(one.cause, ()) for one in incident.causes[:1]))
    calm = {name for name, z in incident.worst_z.items() if abs(z) < DEVIATES}  # so is no NaN
    moved = incident.first_moves.keys() | (incident.worst_z.keys() - calm)
    names = sorted(
        (moved | (shown & peaks.keys())) - COUNTED,
        key=lambda name: (incident.first_moves.get(name, 2**60), name != Signal.LOSS, name),
    )
    header = ("signal", "first moved", "before", "least", "largest", "where")
    rows = tuple(_signal_row(facts, name, peaks.get(name)) for name in names)
    return Table(header, rows, (1, 2, 3, 4))


def _signal_row(facts: PostMortem, name: str, peak: Peak | None) -> tuple[str, ...]:
    """`before` is the median of the last samples before the onset."""
    step = facts.incident.first_moves.get(name)
    calm = [value for _, value in values_before(facts, name)[-CALM_ROWS:]]
    start = (
        word(name),
        "" if step is None else f"step {step:,}",
        number(median(calm)) if calm else "",
    )
    if peak is None:
        return (*start, "", "", "")
    if peak.value is None:
        return (*start, "", "not finite", f"{plural(peak.not_finite, 'step')}")
    where = [f"step {step_of(peak.step)}"]
    if peak.not_finite:
        where.append(f"not finite at {plural(peak.not_finite, 'step')}")
    return (*start, number(peak.least), number(peak.value), "; ".join(where))


def _holes(facts: PostMortem) -> list[str]:
    """The longest stretch of each branch from which no sample is here."""
    found = []
    for curve, steps in open_curves(facts):
        pairs = [(a, b) for a, b in pairwise(curve.steps) if b in steps]
        if pairs:
            first, last = max(pairs, key=lambda pair: pair[1] - pair[0])
            if last - first > HOLE * median(b - a for a, b in pairs):
                found.append(f"Of steps {first + 1:,} to {last - 1:,} no sample is known.")
    return found


def _classification(facts: PostMortem) -> Table:
    """What the incident was classified as at first and at each change, and why."""
    changes = [later for one, later in pairwise(facts.revisions) if later.kind != one.kind]
    rows = tuple(
        (step_of(r.step), time_of(r.at), word(r.kind), f"{r.confidence:.0%}", r.reason)
        for r in (*facts.revisions[:1], *changes)
    )
    return Table(("step", "time", "classified as", "confidence", "because"), rows, (0, 3))


def _causes(facts: PostMortem) -> Table:
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
    return Table(("cause", "confidence", "because"), rows, (1,))


def _commands(facts: PostMortem) -> Table:
    """Every command with who decided it and when."""
    rows = tuple(
        (
            str(command.id),
            action_phrase(command.action),
            COMMAND_STATE_WORDS[command.state],
            decider(command),
            time_of(command.decided_at),
            time_of(command.finished_at),
            step_of(command.applied_step),
        )
        for command in facts.commands
    )
    header = ("command", "order", "state", "decided by", "decided", "ended", "at step")
    return Table(header, rows, (6,))
