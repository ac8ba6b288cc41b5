"""From facts to a document: what is told, and in which order.

Law: every sentence comes from a fact; where there is none, the section says so or is left out.
"""

from __future__ import annotations

from spikeguard_protocol import Outcome, Signal, verb_of
from spikeguard_protocol.phrases import batches_phrase
from spikeguard_server.domain.diagnosis.incident_tracker import CURES
from spikeguard_server.domain.lifecycle.command_life import EXECUTED
from spikeguard_server.domain.lifecycle.damage import rose
from spikeguard_server.report.causes import causes_of
from spikeguard_server.report.document import (
    Block,
    Bullets,
    Document,
    Paragraph,
    Picture,
    Section,
    Table,
)
from spikeguard_server.report.facts import PostMortem, RevisionFact
from spikeguard_server.report.followups import followups_of
from spikeguard_server.report.heading import heading_of, summary_of
from spikeguard_server.report.record import attempts_of, commands_of, left_out_of, timeline_of
from spikeguard_server.report.symptoms import GRAD_NORMS, lead_of, spent_by, symptoms_of
from spikeguard_server.report.wording import (
    ENDINGS,
    NOT_YET,
    SIGMA,
    count,
    deviations,
    duration,
    large,
    number,
    plural,
    time_of,
    word,
)

MOST_REVISIONS = 5  # rows of the table of revisions
_OUTCOMES: dict[Outcome | None, str] = {
    Outcome.HEALED: "The loss came back to its trend by itself.",
    Outcome.RECOVERED: "The loss came back to its trend after a command.",
    Outcome.LEVEL_ACCEPTED: "The loss stayed above its trend; the new level became the baseline.",
    Outcome.OUTLIER: "One batch stood out; the model did not move.",
    Outcome.WITHDRAWN: "The evidence on which it was opened did not hold.",
    Outcome.RUN_ENDED: "The run ended before it was settled.",
    None: "It has no outcome on record.",
}


def document_of(facts: PostMortem) -> Document:
    """The whole post-mortem."""
    incident = facts.incident
    where = f"at step {incident.onset_step:,}"
    return Document(
        title=f"{facts.id}: {heading_of(incident)} {where}, {ENDINGS[incident.outcome]}",
        summary=_summary(facts),
        figures=_figures(facts),
        sections=tuple(_sections(facts)),
        footer=(
            f"Run {facts.run} in project {facts.run.project}. Written {time_of(facts.written_at)} "
            "UTC from the record of the incident. All times are UTC; losses are nats per token; "
            f"{SIGMA} is the robust standard deviation of the signal before the onset."
        ),
    )


def _sections(facts: PostMortem) -> list[Section]:
    sections = [
        Section("Symptoms", _symptoms(facts)),
        Section("Evidence", _evidence(facts)),
        Section("Classification", _classification(facts)),
        *([Section("Likely cause", causes_of(facts.incident))] if facts.incident.causes else []),
        Section("Commands", commands_of(facts)),
        *([Section("Batches left out", left_out_of(facts))] if facts.left_out else []),
        Section("Outcome", (Paragraph(_outcome(facts)), *_judgements(facts))),
        Section("Cost", _cost(facts)),
        Section("Timeline", (timeline_of(facts),)),
        Section("Follow-ups", _followups(facts)),
    ]
    if facts.attempts:
        sections.append(Section("Attempts", (attempts_of(facts.attempts),)))
    if facts.notes:
        sections.append(Section("Notes", (Bullets(facts.notes),)))
    return sections


def _summary(facts: PostMortem) -> str:
    incident, spent = facts.incident, spent_by(facts)
    words = [
        f"{summary_of(incident)}. It was detected {_delay(facts)}.",
        _OUTCOMES[incident.outcome],
    ]
    if spent.steps:
        took = "" if spent.again_s is None else f", {duration(spent.again_s)}"
        were = "was" if spent.steps == 1 else "were"
        words.append(f"{plural(spent.steps, 'step')} {were} trained again{took}.")
    return " ".join(words)


def _delay(facts: PostMortem) -> str:
    steps = facts.incident.detected_step - facts.incident.onset_step
    return "at its first step" if steps <= 0 else f"{plural(steps, 'step')} after its onset"


def _figures(facts: PostMortem) -> tuple[tuple[str, str], ...]:
    incident, spent = facts.incident, spent_by(facts)
    open_s = (facts.closed_at - facts.opened_at).total_seconds()
    return (
        (number(incident.pre_loss), "loss before"),
        (number(incident.peak_loss), "peak loss"),
        (f"{incident.confidence:.0%}", f"confidence that it is {word(incident.kind)}"),
        (duration(open_s), "from detected to closed"),
        (count(spent.steps), "steps trained again"),
    )


def _symptoms(facts: PostMortem) -> tuple[Block, ...]:
    seen, incident = symptoms_of(facts), facts.incident
    rows = [("Loss before the spike", number(seen.pre_loss), _trend_note(facts))]
    rows.append(("Peak loss", number(seen.peak_loss), f"step {seen.peak_step:,}"))
    if seen.non_finite_steps:
        steps = plural(seen.non_finite_steps, "step")
        rows.append(("Loss not finite", steps, "in the copied samples"))
    if seen.later_step is not None:
        after = plural(seen.later_step - incident.peak_step, "step")
        trend = "" if seen.later_trend is None else f"; trend there {number(seen.later_trend)}"
        where = f"step {seen.later_step:,}, {after} after the peak{trend}"
        rows.append(("Loss later", number(seen.later_loss), where))
    elif facts.followed_to is not None:
        where = f"step {facts.followed_to:,} or the end of the run; this is written again then"
        rows.append(("Loss later", NOT_YET, where))
    if seen.grad_norm_signal is not None:
        name = word(seen.grad_norm_signal)
        peak = seen.grad_norm_peak
        value = "not finite" if peak is None else number(peak)
        rows.append((f"Peak {name}", value, "global L2 before clipping"))
    table = Table(("", "value", "where"), tuple(rows), frozenset({1}))
    return (table, Picture(_caption(facts))) if facts.curves else (table,)


def _caption(facts: PostMortem) -> str:
    norm = any(s in curve.values for curve in facts.curves for s in GRAD_NORMS)
    what = "Loss and gradient norm" if norm else "Loss"
    words = [f"{what} around step {facts.incident.onset_step:,}."]
    if (trend := facts.incident.trend) is not None:
        words.append(
            f"The band is the trend before the spike, extrapolated, ± {trend.band:g} {SIGMA}."
        )
    if any(curve.kept_to is not None for curve in facts.curves):
        words.append("Steps that a rollback undid are drawn apart.")
    return " ".join(words)


def _trend_note(facts: PostMortem) -> str:
    trend = facts.incident.trend
    return (
        "" if trend is None else f"trend at step {trend.step:,}, {SIGMA} {number(trend.scale, 2)}"
    )


def _evidence(facts: PostMortem) -> tuple[Block, ...]:
    said, table = _evidence_said(facts), _signals(facts)
    return (*([Paragraph(" ".join(said))] if said else []), *([table] if table.rows else []))


def _evidence_said(facts: PostMortem) -> list[str]:
    incident, lead = facts.incident, lead_of(facts)
    said = []
    if incident.onset_batches is not None:
        said.append(f"The step of the onset trained on {batches_phrase(incident.onset_batches)}.")
    if incident.recurred_batches is not None:
        said.append(f"It came back at {batches_phrase(incident.recurred_batches)}.")
    if lead is not None:
        said.append(_lead_sentence(lead.signal, lead.step, lead.steps, rose(incident)))
    if incident.dropped:
        said.append("The agent kept the onset's update out of the weights.")
    if incident.stuck:
        said.append("It was stuck: update after update was dropped, the weights stood still.")
    if incident.apart:
        said.append("Ranks of the job did not hold the same weights, which updates keep equal.")
    return said


def _signals(facts: PostMortem) -> Table:
    """What each signal that left its trend did, the first to move first."""
    incident, columns = facts.incident, 4 if facts.peaks else 3
    names = sorted(
        {*incident.worst_z, *incident.first_moves},
        key=lambda name: (incident.first_moves.get(name, 2**60), name != Signal.LOSS, name),
    )
    header = ("signal", "first moved", "largest deviation", "largest value")[:columns]
    rows = tuple(_signal_row(facts, name)[:columns] for name in names)
    return Table(header, rows, frozenset({1, 2, 3}))


def _lead_sentence(signal: str, step: int, steps: int | None, loss_rose: bool) -> str:
    if steps is None and loss_rose:
        return f"{word(signal)} moved first, at step {step:,}; the loss rose later."
    if steps is None:
        return f"{word(signal)} moved first, at step {step:,}; the loss itself never moved."
    if steps == 0:
        return f"The first signal to move was the loss, at step {step:,}."
    return f"{word(signal)} moved first, at step {step:,}, {plural(steps, 'step')} before the loss."


def _signal_row(facts: PostMortem, name: str) -> tuple[str, ...]:
    incident = facts.incident
    step, z = incident.first_moves.get(name), incident.worst_z.get(name)
    return (
        word(name),
        "" if step is None else f"step {step:,}",
        "" if z is None else deviations(z),
        number(facts.peaks[name]) if name in facts.peaks else "",
    )


def _classification(facts: PostMortem) -> tuple[Block, ...]:
    incident = facts.incident
    final = Paragraph(
        f"{word(incident.kind).capitalize()}, with a confidence of {incident.confidence:.0%}: "
        f"{_reason_of_kind(facts).rstrip('.')}."
    )
    if not facts.revisions:
        return (final,)
    rows = tuple(
        (f"{r.step:,}", time_of(r.at), word(r.kind), f"{r.confidence:.0%}", r.reason)
        for r in _telling(facts)
    )
    left_out = max(facts.revision_count, len(facts.revisions)) - len(rows)
    table = Table(
        ("step", "time", "classified as", "confidence", "because"), rows, frozenset({0, 3})
    )
    if not left_out:
        return (final, table)
    return (final, table, Paragraph(f"{plural(left_out, 'revision')} in between left out."))


def _reason_of_kind(facts: PostMortem) -> str:
    """The last reason for the kind itself, from before a command changed what there was to see;
    what closed the incident stands in the outcome."""
    incident, end = facts.incident, facts.incident.closed_step
    cures = [c for c in facts.commands if c.state in EXECUTED and verb_of(c.action) in CURES]
    done = min((c.finished_at for c in cures if c.finished_at is not None), default=None)
    said = [
        r
        for r in facts.revisions
        if r.kind is incident.kind and r.step != end and (done is None or r.at < done)
    ]
    return said[-1].reason if said else incident.reason


def _telling(facts: PostMortem) -> list[RevisionFact]:
    """Every change of kind, the first and the last, and of the rest as many as fit."""
    revisions = facts.revisions
    if len(revisions) <= MOST_REVISIONS:
        return list(revisions)
    last = len(revisions) - 1
    changes = [i for i in range(1, last) if revisions[i].kind != revisions[i - 1].kind]
    changes = changes[: MOST_REVISIONS - 2]
    spare = MOST_REVISIONS - 2 - len(changes)
    spread = [round((k + 1) * last / (spare + 1)) for k in range(spare)]
    return [revisions[i] for i in sorted({0, last, *changes, *spread})]


def _outcome(facts: PostMortem) -> str:
    incident = facts.incident
    closed = "" if incident.closed_step is None else f"Closed at step {incident.closed_step:,}: "
    return f"{_OUTCOMES[incident.outcome]} {closed}{incident.reason.rstrip('.')}."


def _judgements(facts: PostMortem) -> tuple[Block, ...]:
    said = tuple(
        f"{command.id} ({word(verb_of(command.action))}): {command.judgement}"
        for command in facts.commands
        if command.judgement
    )
    return (Bullets(said),) if said else ()


def _cost(facts: PostMortem) -> tuple[Block, ...]:
    spent = spent_by(facts)
    rows = [
        ("Steps trained again", count(spent.steps)),
        ("Time lost to them", duration(spent.again_s)),
        ("Updates dropped", count(spent.dropped)),
        *([("Updates that rounded to nothing", count(spent.stalled))] if spent.stalled else []),
        ("Steps in damage, not trained again", count(spent.in_damage)),
        ("Steps lost in all", count(spent.steps_lost)),
        ("Time of all these", duration(spent.seconds)),
        ("Tokens of all these", "unknown" if spent.tokens is None else large(spent.tokens)),
    ]
    if spent.money is not None:
        rows.append(("Money", f"{spent.money:,.2f} {facts.currency}"))
    rows.append(("Batches skipped", count(spent.batches_skipped)))
    rows.append(("Steps from onset to close", count(spent.steps_off_trend)))
    return (Table(("", "amount"), tuple(rows), frozenset({1})), Paragraph(_reckoned(facts)))


def _reckoned(facts: PostMortem) -> str:
    words = "A step counts once: trained again, dropped, stalled, or spent in damage up to its end."
    if facts.step_time_s is None:
        return f"{words} How long a step takes is not known."
    pace = number(facts.step_time_s, 3)
    return (
        f"{words} Steps that did not measure their time count {pace} s, the median before the "
        "onset."
    )


def _followups(facts: PostMortem) -> tuple[Block, ...]:
    items = followups_of(facts)
    return (Bullets(items),) if items else (Paragraph("Nothing on record asks for any."),)
