"""A post-mortem's page: what happened, why, what was done, how it ended, what to do next. And the
appendix: what the page rests on, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from statistics import median

from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.incident import rose
from spikeguard_protocol import CommandState, OptionalSignal, Rollback, Signal
from spikeguard_protocol.phrases import (
    action_phrase,
    cause_phrase,
    duration_phrase,
    paragraphs,
    response_phrase,
    sure_phrase,
)
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS, SPEAKS_OF
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.causes import CAUSES, cause_sentence, followups_of, root_cause_of
from spikeguard_server.report.document import Section, Table
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.figures import (
    BACK,
    Peak,
    cost_blocks,
    open_curves,
    peaks_of,
    symptoms_of,
    values_before,
)
from spikeguard_server.report.wording import (
    ENDINGS,
    beginning_of,
    capital,
    decider,
    decision_of,
    how_it_ended,
    number,
    off_trend,
    own_rule_sentence,
    peak_of,
    plural,
    return_of,
    step_of,
    time_of,
    word,
)

LASTING_PART = DetectionSettings().lasting_part  # of the level: damage below it counts as none
MOST_TURNS = 16  # of the timeline
LEAST_SHOWN = 0.01  # confidence of a cause
ALWAYS_SHOWN = {Signal.LOSS, Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP}
COUNTED = {Signal.UPDATE_DROPPED, OptionalSignal.STEP_SKIPPED}  # among the cost, step by step
DEVIATES = 3.0  # a signal whose largest deviation is below it, and that never moved, has no row
CALM_ROWS = 20  # before the onset, that tell what was usual
HOLE = 5.0  # times the usual distance of two samples
Turn = tuple[datetime, str, str]  # when, at which step, what


def page_sections(facts: PostMortem) -> list[Section]:
    """Its sections."""
    followups = followups_of(facts) or "Nothing on record asks for a follow-up."
    links = next((a.links for a in reversed(facts.attempts) if a.links), {})
    return [
        Section("What happened", (" ".join(happened(facts)),)),
        Section("Root cause", root_cause_of(facts), drawn=bool(facts.curves)),
        Section("What was done, and why", (tuple(map(_told, facts.asked)),)),
        Section("Outcome", (outcome_of(facts),)),
        Section("Cost", cost_blocks(facts), beside=True),
        Section("Timeline", (timeline_of(facts),), beside=True),
        Section("Follow-ups", (followups,), beside=True),
        Section("Links", (tuple(links.items()),), beside=True),
    ]


def header_of(facts: PostMortem) -> tuple[tuple[str, str], ...]:
    """Run, times, kind, size, who decided."""
    open_s = (facts.closed_at - facts.opened_at).total_seconds()
    sizes = [f"attempt {a.number}, {plural(a.world_size, 'rank')}" for a in facts.attempts]
    people = dict.fromkeys(decider(c) for c in facts.acting if c.decided_at is not None)
    rows = [
        ("Run", f"{facts.run.name} in project {facts.run.project}"),
        ("Open", f"{time_of(facts.opened_at)} UTC, for {duration_phrase(open_s)}"),
        ("Kind", word(facts.incident.kind)),
        ("Job", "; ".join(sizes[-2:])),
        ("Decided by", ", ".join(people) or ("nobody" if facts.asked else "nobody had to")),
    ]
    return tuple((what, value) for what, value in rows if value)


def happened(facts: PostMortem) -> tuple[str, str, str, str]:
    """The incident in four parts: what was seen, the cause, what was done, how it ended."""
    acts = [*map(own_rule_sentence, facts.own_acts)]
    acts += [f"{capital(what)} after step {step}." for _, step, what in _starts(facts) if step]
    did = " ".join([_decided(facts), *acts])
    return (_seen(facts), cause_sentence(facts), did, _ended(facts))


def _seen(facts: PostMortem) -> str:
    incident, again = facts.incident, return_of(facts.incident)
    peak = f"{peak_of(incident)}, " if rose(incident) else ""
    seen = (
        f"{beginning_of(incident)}: onset at step {incident.onset_step:,}, {peak}detected at step "
        f"{incident.detected_step:,} ({facts.opened_at:%H:%M} UTC)."
    )
    return f"{seen} {again}." if again else seen


def _decided(facts: PostMortem) -> str:
    """The first command that was carried out; where there is none, the last that was decided."""
    done = [c for c in facts.asked if c.state in EXECUTED]
    one = next(
        iter(done or [c for c in facts.asked[::-1] if c.decided_at] or facts.asked[-1:]), None
    )
    if one is None:
        return "Nobody ordered anything."
    what, decision = action_phrase(one.action, brief=True), capital(decision_of(one))
    if not decision:
        return f"Proposed was to {what}. {how_it_ended(one)}"
    if one.proposed_by is None and not one.automatic and one.decided_at is not None:
        waited_s = (one.decided_at - one.proposed_at).total_seconds()
        decision += f" after {duration_phrase(waited_s)}"
    if not done:
        rest = "" if one.state is CommandState.REJECTED else f" {how_it_ended(one)}"
        return f"{decision}: {what}.{rest}"
    at = "" if one.applied_step is None else f"; carried out at step {one.applied_step:,}"
    more = f"; {plural(len(done) - 1, 'more command')} followed" if len(done) > 1 else ""
    return f"{decision}: {what}{at}{more}."


def _ended(facts: PostMortem) -> str:
    """How it ended; of what is closed as back on its trend and lies above it for good, that too."""
    outcome, trend = facts.incident.outcome, facts.incident.trend
    later, stays = symptoms_of(facts).later_above, ""
    if outcome in BACK and trend is not None and later is not None:
        above = later.least > LASTING_PART * abs(trend.level)
        stays = ", but the loss stays above its trend" if above else ""
    return f"It was closed: {ENDINGS[outcome]}{stays}."


def _told(command: CommandRow) -> str:
    """What would change the training, with its reason, without the paragraph on the cause, which
    has a section of its own; who agreed and why."""
    parts = paragraphs(command.reason)
    why = " ".join([part for part in parts if not part.startswith(CAUSES)] or parts)
    said = [f"{capital(action_phrase(command.action))}. {how_it_ended(command)} Why: {why}"]
    if command.decision_reason:
        said.append(f"{decider(command)}: {command.decision_reason.rstrip('.')}.")
    return " ".join(said)


def outcome_of(facts: PostMortem) -> str:
    """Where it closed, where the loss lay later, and what was done to it by what was done, where
    that was measured; of a command that another one followed, what that one was for."""
    incident, seen = facts.incident, symptoms_of(facts)
    closed = "" if incident.closed_step is None else f"Closed at step {incident.closed_step:,}: "
    said = [capital(f"{closed}{incident.reason.rstrip('.')}.")]
    if facts.followed_to is not None:
        said.append(
            "Where the loss goes from there is not yet known: this is written again at step "
            f"{facts.followed_to:,} or at the end of the run."
        )
    if (later := seen.later_above) is not None:
        steps = f"Steps {seen.later_first:,} to {seen.later_step:,}"
        said.append(f"{steps} lie {off_trend(later)}.")
    done = [command for command in facts.asked if command.state in EXECUTED]
    for command in done:
        told = None if command is done[-1] else command.judgement
        worked = command.effect if command.effect_known else told
        if worked:
            action, at, undid = command.action, command.applied_step, ""
            if isinstance(action, Rollback) and at is not None:
                undid = f" ({plural(max(0, at - action.step), 'step')} undone)"
            said.append(f"Command {command.id}{undid}: {worked.rstrip('.')}.")
    return " ".join(said)


def timeline_of(facts: PostMortem) -> Table:
    """What turned the incident, by the second."""
    entries = sorted(_turns(facts), key=lambda entry: entry[0])
    if len(entries) > MOST_TURNS:
        half = MOST_TURNS // 2
        left = f"{len(entries) - MOST_TURNS} more, which the audit lists"
        entries = [*entries[:half], (entries[half][0], "", left), *entries[-half:]]
    rows = tuple((f"{at:%m-%d %H:%M:%S}", step, what) for at, step, what in entries)
    return Table(("UTC", "step", "what"), rows, (1,))


def _turns(facts: PostMortem) -> Iterator[Turn]:
    """Opened, decided, carried out, closed; and who took it."""
    incident = facts.incident
    yield facts.opened_at, step_of(incident.detected_step), "incident opened"
    yield facts.closed_at, step_of(incident.closed_step), f"closed: {ENDINGS[incident.outcome]}"
    for r in facts.responses:
        if r.text is None:
            yield r.at, "", response_phrase(r.action, r.person, r.assignee, r.text)
    for act in facts.own_acts:
        said = f"{action_phrase(act.action)}, by the job's emergency rule"
        yield act.finished_at or act.proposed_at, step_of(act.applied_step), said
    for one in facts.attempts:
        if one.ended_at is not None and facts.opened_at < one.ended_at < facts.closed_at:
            why = f": {one.end_reason}" if one.end_reason else ""
            yield one.ended_at, "", f"attempt {one.number} ended{why}"
    yield from _starts(facts)
    for command in facts.asked:
        verb, decision = action_phrase(command.action, brief=True), decision_of(command)
        if command.proposed_by is not None:
            yield command.proposed_at, step_of(command.decided_step), f"{decision}: {verb}"
        else:
            yield command.proposed_at, "", f"proposed: {verb}"
            if command.decided_at is not None:
                yield command.decided_at, step_of(command.decided_step), decision
        if command.finished_at is not None and command.state is not CommandState.REJECTED:
            done = command.state in EXECUTED
            end = "carried out" if done else COMMAND_STATE_WORDS[command.state]
            yield command.finished_at, step_of(command.applied_step), end


def _starts(facts: PostMortem) -> Iterator[Turn]:
    """The attempts that began while it was open, with the step that each went on from."""
    for one in facts.attempts:
        if facts.opened_at < one.started_at < facts.closed_at:
            mine = (c for c in facts.curves if c.attempt_number == one.number and c.steps)
            after = next((curve.steps[0] - 1 for curve in mine), None)
            yield one.started_at, step_of(after), f"attempt {one.number} began"


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
