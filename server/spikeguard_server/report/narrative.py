"""What happened and what was done, in sentences; and the lines above them."""

from __future__ import annotations

from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.damage import rose
from spikeguard_core.policy.finding import loss_not_finite
from spikeguard_protocol import Outcome, Rollback
from spikeguard_protocol.phrases import action_phrase, duration_phrase, paragraphs
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.causes import CAUSES, cause_sentence
from spikeguard_server.report.cost import lost_words, spent_by
from spikeguard_server.report.document import Block, Bullets
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.heading import beginning_of, return_of
from spikeguard_server.report.record import decider, own_rule_sentence
from spikeguard_server.report.symptoms import symptoms_of
from spikeguard_server.report.wording import (
    ENDINGS,
    minute_of,
    off_trend,
    plural,
    time_of,
    word,
)

LASTING_PART = DetectionSettings().lasting_part  # of the level: damage below it counts as none
BACK = frozenset({Outcome.HEALED, Outcome.RECOVERED})  # on its trend
OUTCOMES: dict[Outcome | None, str] = {
    Outcome.HEALED: "{} by itself",
    Outcome.RECOVERED: "{} after a command or a restart",
    Outcome.LEVEL_ACCEPTED: "The loss settled at a new level, which became the baseline",
    Outcome.OUTLIER: "One batch stood out; the model did not move",
    Outcome.WITHDRAWN: "The evidence on which it was opened did not hold",
    Outcome.RUN_ENDED: "The run ended before it was settled",
    None: "It has no outcome on record",
}


def header_of(facts: PostMortem) -> tuple[tuple[str, str], ...]:
    """Run, times, size, kind, who decided."""
    incident = facts.incident
    open_s = (facts.closed_at - facts.opened_at).total_seconds()
    kind = f"{word(incident.kind)}, {ENDINGS[incident.outcome]}"
    sizes = [f"attempt {a.number}, {plural(a.world_size, 'rank')}" for a in facts.attempts]
    people = dict.fromkeys(decider(c) for c in facts.acting if c.decided_at is not None)
    rows = [
        ("Run", f"{facts.run.name} in project {facts.run.project}"),
        ("Open", f"{time_of(facts.opened_at)} UTC, for {duration_phrase(open_s)}"),
        ("Kind", kind),
        ("Job", "; ".join(sizes[-2:])),
        ("Decided by", ", ".join(people) or _undecided(facts)),
    ]
    return tuple((what, value) for what, value in rows if value)


def _undecided(facts: PostMortem) -> str:
    asked = facts.asked
    return f"nobody ({COMMAND_STATE_WORDS[asked[-1].state]})" if asked else "nobody had to"


def happened(facts: PostMortem) -> tuple[str, str, str, str]:
    """The incident in four sentences."""
    did = " ".join([_decided(facts), *_own_acts(facts)])
    came_to = f"{ending_of(facts)}. Lost: {lost_words(facts, spent_by(facts))}."
    return (_seen(facts), cause_sentence(facts), did, came_to)


def _seen(facts: PostMortem) -> str:
    incident, again = facts.incident, return_of(facts.incident)
    peak = f"peak at step {incident.peak_step:,}, " if rose(incident) else ""
    seen = (
        f"{beginning_of(incident)}: onset at step {incident.onset_step:,}, {peak}detected at step "
        f"{incident.detected_step:,} ({minute_of(facts.opened_at)} UTC)."
    )
    return f"{seen} {again}." if again else seen


def _own_acts(facts: PostMortem) -> list[str]:
    return [own_rule_sentence(act) for act in facts.own_acts]


def _decided(facts: PostMortem) -> str:
    done = [c for c in facts.asked if c.state in EXECUTED]
    if done:
        return _carried_out(done)
    if facts.asked:
        last = facts.asked[-1]
        what = action_phrase(last.action, brief=True)
        return (
            f"Proposed was to {what}; nothing was carried out: {COMMAND_STATE_WORDS[last.state]}."
        )
    return "Nobody ordered anything."


def _carried_out(done: list[CommandRow]) -> str:
    first, waited, at = done[0], "", ""
    if first.decided_at is not None and not first.automatic:
        waited_s = (first.decided_at - first.proposed_at).total_seconds()
        waited = f" after {duration_phrase(waited_s)}"
    if first.applied_step is not None:
        at = f"; carried out at step {first.applied_step:,}"
    more = f"; {plural(len(done) - 1, 'more command')} followed" if len(done) > 1 else ""
    what = action_phrase(first.action, brief=True)
    return f"Approved by {decider(first)}{waited}: {what}{at}{more}."


def ending_of(facts: PostMortem) -> str:
    """How it ended, held against where the loss was later: of what is closed as back on its trend
    and lies above it for good, that is said instead."""
    outcome, seen = facts.incident.outcome, symptoms_of(facts)
    calm = not rose(facts.incident) and not loss_not_finite(facts.incident)
    back = "What had moved came back" if calm else "The loss came back"
    flat = "; the loss did not rise" if calm and outcome in BACK else ""
    said = f"{OUTCOMES[outcome].format(back)}{flat}"
    later = seen.later_above
    if later is None:
        return said
    where = f"steps {seen.later_first:,} to {seen.later_step:,} lie {off_trend(later)}"
    trend = facts.incident.trend
    least = LASTING_PART * abs(trend.level) if trend else 0.0
    if outcome in BACK and later.loss - later.error > least:
        return f"It was closed as {ENDINGS[outcome]}, but {where}"
    fell = outcome in BACK and rose(facts.incident) and not facts.rollbacks
    level = seen.level_from if fell else None
    level = level if later.loss <= later.error else None
    since = "" if level is None else f", level with its trend from step {level:,} on"
    return f"{said}{since}: {where}"


def what_was_done(facts: PostMortem) -> tuple[Block, ...]:
    """Every command that would change the training, with its reason; who agreed and why."""
    items = [*_own_acts(facts), *map(_told, facts.asked)]
    return (Bullets(tuple(items)),) if items else ()


def _told(command: CommandRow) -> str:
    """Without the paragraph on the cause, which has a section of its own."""
    what, parts = action_phrase(command.action), paragraphs(command.reason)
    why = " ".join([part for part in parts if not part.startswith(CAUSES)] or parts)
    ended = f" ({command.end_reason.rstrip('.')})" if command.end_reason else ""
    said = [
        f"{what[:1].upper()}{what[1:]}: {COMMAND_STATE_WORDS[command.state]}{ended}. Why: {why}"
    ]
    if command.decision_reason:
        said.append(f"{decider(command)}: {command.decision_reason.rstrip('.')}.")
    if command.result:
        said.append(f"The agent reported: {command.result.rstrip('.')}.")
    return " ".join(said)


def outcome_of(facts: PostMortem) -> str:
    """How it ended, and what was done to the loss by what was done, where that was measured."""
    incident = facts.incident
    closed = "" if incident.closed_step is None else f"Closed at step {incident.closed_step:,}: "
    said = [f"{ending_of(facts)}. {closed}{incident.reason.rstrip('.')}."]
    for command in (c for c in facts.asked if c.state in EXECUTED):
        worked = command.effect if command.effect_known else command.judgement
        if worked:
            said.append(f"Command {command.id}{_undid(command)}: {worked.rstrip('.')}.")
    return " ".join(said)


def _undid(command: CommandRow) -> str:
    """How many steps a rollback undid; nothing of any other command."""
    action, at = command.action, command.applied_step
    if not isinstance(action, Rollback) or at is None:
        return ""
    return f" ({plural(max(0, at - action.step), 'step')} undone)"
