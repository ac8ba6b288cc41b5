"""What happened and what was done, in sentences; and the lines above them."""

from __future__ import annotations

from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.damage import rose
from spikeguard_core.policy.finding import loss_not_finite
from spikeguard_protocol import CommandState, Outcome, Verb, verb_of
from spikeguard_protocol.phrases import action_phrase, paragraphs
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.causes import CAUSES, because_of
from spikeguard_server.report.cost_table import lost_words
from spikeguard_server.report.document import Block, Bullets
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.heading import beginning_of, return_of
from spikeguard_server.report.record import own_rule_sentence
from spikeguard_server.report.symptoms import spent_by, symptoms_of
from spikeguard_server.report.wording import (
    ENDINGS,
    duration,
    minute_of,
    off_trend,
    plural,
    time_of,
    word,
)

MOST_REASON = 420  # characters of a command's reason on the page
QUIET_VERBS = frozenset({Verb.WATCH, Verb.CHECKPOINT_NOW})  # that change nothing of the training
LASTING_PART = DetectionSettings().lasting_part  # of the level: damage below it counts as none
BACK = frozenset({Outcome.HEALED, Outcome.RECOVERED})  # on its trend
OUTCOMES: dict[Outcome | None, str] = {
    Outcome.HEALED: "The loss came back to its trend by itself",
    Outcome.RECOVERED: "The loss came back to its trend after that",
    Outcome.LEVEL_ACCEPTED: "The loss stayed above its trend; the new level became the baseline",
    Outcome.OUTLIER: "One batch stood out; the model did not move",
    Outcome.WITHDRAWN: "The evidence on which it was opened did not hold",
    Outcome.RUN_ENDED: "The run ended before it was settled",
    None: "It has no outcome on record",
}


def header_of(facts: PostMortem) -> tuple[tuple[str, str], ...]:
    """Run, times, size, kind, who decided."""
    incident = facts.incident
    open_s = (facts.closed_at - facts.opened_at).total_seconds()
    lasted = duration(open_s) if open_s else "less than a second"
    kind = f"{word(incident.kind)}, {ENDINGS[incident.outcome]}"
    sizes = [f"attempt {a.number}, {plural(a.world_size, 'rank')}" for a in facts.attempts]
    people = dict.fromkeys(p for c in facts.commands for p in _people(c))
    rows = [
        ("Run", f"{facts.run.name} in project {facts.run.project}"),
        ("Open", f"{time_of(facts.opened_at)} UTC, for {lasted}"),
        ("Kind", kind),
        ("Job", "; ".join(sizes[-2:])),
        ("Decided by", ", ".join(people) or _undecided(facts)),
    ]
    return tuple((what, value) for what, value in rows if value)


def _undecided(facts: PostMortem) -> str:
    asked = [c for c in acting(facts) if c.state is not CommandState.SUPERSEDED]
    return f"nobody ({COMMAND_STATE_WORDS[asked[-1].state]})" if asked else "nobody had to"


def _people(command: CommandRow) -> list[str]:
    if verb_of(command.action) in QUIET_VERBS:
        return []
    if command.automatic:
        return [f"policy {command.policy_version}"]
    return [command.decided_by] if command.decided_by else []


def happened(facts: PostMortem) -> tuple[str, str, str, str]:
    """The incident in four sentences."""
    return (_seen(facts), because_of(facts), _did(facts), _came_to(facts))


def _seen(facts: PostMortem) -> str:
    incident, again = facts.incident, return_of(facts.incident)
    peak = f"peak at step {incident.peak_step:,}, " if rose(incident) else ""
    seen = (
        f"{beginning_of(incident)}: onset at step {incident.onset_step:,}, {peak}detected at step "
        f"{incident.detected_step:,} ({minute_of(facts.opened_at)} UTC)."
    )
    return f"{seen} {again}." if again else seen


def acting(facts: PostMortem) -> list[CommandRow]:
    """Commands that change the training, oldest first."""
    return [c for c in facts.commands if verb_of(c.action) not in QUIET_VERBS]


def _did(facts: PostMortem) -> str:
    return " ".join([_decided(facts), *_own_acts(facts)])


def _own_acts(facts: PostMortem) -> list[str]:
    return [own_rule_sentence(act, facts.newest_step) for act in facts.own_acts]


def _decided(facts: PostMortem) -> str:
    known = acting(facts)
    done = [c for c in known if c.state in EXECUTED]
    if done:
        return _carried_out(done)
    asked = [c for c in known if c.state is not CommandState.SUPERSEDED]
    if asked:
        last = asked[-1]
        what = action_phrase(last.action, brief=True)
        return (
            f"Proposed was to {what}; nothing was carried out: {COMMAND_STATE_WORDS[last.state]}."
        )
    return "Nobody ordered anything."


def _carried_out(done: list[CommandRow]) -> str:
    first = done[0]
    what = action_phrase(first.action, brief=True)
    at = (
        "" if first.applied_step is None else f"; it was carried out at step {first.applied_step:,}"
    )
    more = f", {plural(len(done) - 1, 'more command')} followed" if len(done) > 1 else ""
    said = f"{_decider(first)} approved to {what}"
    if first.decided_at is not None and not first.automatic:
        waited_s = (first.decided_at - first.proposed_at).total_seconds()
        said = f"{_decider(first)} took {duration(waited_s)} to approve this: {what}"
    return f"{said}{at}{more}."


def _decider(command: CommandRow) -> str:
    if command.automatic:
        return f"The policy ({command.policy_version})"
    return command.decided_by or "Somebody"


def _came_to(facts: PostMortem) -> str:
    return f"{ending_of(facts)}. Lost: {lost_words(facts, spent_by(facts))}."


def ending_of(facts: PostMortem) -> str:
    """How it ended, held against where the loss was later: of what is closed as back on its trend
    and lies above it for good, that is said instead."""
    outcome, seen = facts.incident.outcome, symptoms_of(facts)
    said = OUTCOMES[outcome]
    calm = not rose(facts.incident) and not loss_not_finite(facts.incident)
    if calm and outcome in BACK:
        how = "by itself" if outcome is Outcome.HEALED else "after that"
        said = f"What had moved came back {how}; the loss did not rise"
    if outcome is Outcome.RECOVERED and not acting(facts) and not facts.own_acts:
        said = "The loss came back to its trend once the run began again from an earlier step"
    later = seen.later_above
    if later is None:
        return said
    where = f"steps {seen.later_first:,} to {seen.later_step:,} lie {off_trend(later)}"
    trend = facts.incident.trend
    least = LASTING_PART * abs(trend.level) if trend else 0.0
    if outcome in BACK and later.loss - later.error > least:
        return f"It was closed as {ENDINGS[outcome]}, but {where}"
    if outcome is Outcome.LEVEL_ACCEPTED and later.loss <= later.error:
        said = "The loss settled at or above its trend; the new level became the baseline"
        return f"{said}: {where}"
    fell = outcome in BACK and rose(facts.incident) and not facts.rollbacks
    level = seen.level_from if fell else None
    level = level if later.loss <= later.error else None
    since = "" if level is None else f", level with it from step {level:,} on"
    return f"{said}{since}: {where}"


def what_was_done(facts: PostMortem) -> tuple[Block, ...]:
    """Every command that would change the training, with its reason; who agreed and why."""
    known = [c for c in acting(facts) if c.state is not CommandState.SUPERSEDED]
    own = _own_acts(facts)
    carried = [c for c in known if c.state in EXECUTED]
    rest = [c for c in known if c.state not in EXECUTED]
    told = [_told(c) for c in (*carried, *rest)[:3]]
    items, more = [*own, *told], len(known) - len(told)
    if more > 0:
        items.append(f"And {plural(more, 'more command')}, in the appendix.")
    return (Bullets(tuple(items)),) if items else ()


def _told(command: CommandRow) -> str:
    what = action_phrase(command.action)
    head = f"{what[:1].upper()}{what[1:]}: {COMMAND_STATE_WORDS[command.state]}."
    return f"{head} Why: {_reason(command)}{_consent(command)}"


def _reason(command: CommandRow) -> str:
    """Without the paragraph on the cause, which has a section of its own; of a long one the first
    sentences."""
    parts = paragraphs(command.reason)
    said = " ".join([part for part in parts if not part.startswith(CAUSES)] or parts)
    return said if len(said) <= MOST_REASON else _cut(said)


def _cut(text: str) -> str:
    """Whole sentences where there is an end of one, else whole words."""
    part = text[: MOST_REASON + 1]
    end = part.rfind(". ")
    return part[: end + 1] if end > 0 else f"{part.rpartition(' ')[0] or part} ..."


def _consent(command: CommandRow) -> str:
    """What who decided gave as reason, or said of it."""
    if not command.decision_reason or command.decided_by is None or command.automatic:
        return ""
    return f" {command.decided_by}: {command.decision_reason.rstrip('.')}."


def outcome_of(facts: PostMortem) -> str:
    """How it ended, and what was done to the loss by what was done, where that was measured."""
    incident = facts.incident
    closed = "" if incident.closed_step is None else f"Closed at step {incident.closed_step:,}: "
    said = [f"{ending_of(facts)}. {closed}{incident.reason.rstrip('.')}."]
    done = [c for c in acting(facts) if c.state in EXECUTED]
    for command in done:
        worked = command.effect if command.effect_known else command.judgement
        if worked:
            cost = "" if command.cost is None else f" ({plural(command.cost.steps, 'step')})"
            said.append(f"Command {command.id}{cost}: {worked.rstrip('.')}.")
    return " ".join(said)
