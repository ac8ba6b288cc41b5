"""The page of a post-mortem: what happened, why, what was done, how it ended, what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.incident import rose
from spikeguard_protocol import CommandState, Rollback
from spikeguard_protocol.phrases import action_phrase, duration_phrase, paragraphs, response_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.causes import CAUSES, cause_sentence, root_cause_of
from spikeguard_server.report.cost import BACK, cost_blocks
from spikeguard_server.report.document import Section, Table
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.followups import followups_of
from spikeguard_server.report.heading import beginning_of, peak_of, return_of
from spikeguard_server.report.symptoms import symptoms_of
from spikeguard_server.report.wording import (
    ENDINGS,
    capital,
    decider,
    decision_of,
    how_it_ended,
    off_trend,
    own_rule_sentence,
    plural,
    step_of,
    time_of,
    word,
)

LASTING_PART = DetectionSettings().lasting_part  # of the level: damage below it counts as none
MOST_TURNS = 16  # of the timeline
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
