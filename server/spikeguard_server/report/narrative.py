"""What happened and what was done, in sentences; and the lines above them."""

from __future__ import annotations

from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.damage import rose
from spikeguard_protocol import Outcome, Rollback
from spikeguard_protocol.phrases import (
    action_phrase,
    duration_phrase,
    ended_phrase,
    paragraphs,
)
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.causes import CAUSES, cause_sentence
from spikeguard_server.report.document import Block, Bullets
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.heading import beginning_of, return_of
from spikeguard_server.report.record import decider, how_it_ended, own_rule_sentence
from spikeguard_server.report.symptoms import branches_of, symptoms_of
from spikeguard_server.report.wording import (
    ENDINGS,
    capital,
    minute_of,
    off_trend,
    plural,
    time_of,
    word,
)

LASTING_PART = DetectionSettings().lasting_part  # of the level: damage below it counts as none
BACK = frozenset({Outcome.HEALED, Outcome.RECOVERED})  # on its trend


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
    """The incident in four sentences: what was seen, the cause, what was done, how it ended."""
    did = " ".join([_decided(facts), *_own_acts(facts)])
    return (_seen(facts), cause_sentence(facts), did, f"{_ended(facts)}.")


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
        return f"Proposed was to {what}. {ended_phrase(COMMAND_STATE_WORDS[last.state], None)}"
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


def _ended(facts: PostMortem) -> str:
    """How it ended; of what is closed as back on its trend and lies above it for good, that too."""
    outcome, trend = facts.incident.outcome, facts.incident.trend
    later, said = symptoms_of(facts).later_above, f"It was closed: {ENDINGS[outcome]}"
    if outcome not in BACK or trend is None or later is None:
        return said
    stays = later.loss - later.error > LASTING_PART * abs(trend.level)
    return f"{said}, but the loss stays above its trend" if stays else said


def what_was_done(facts: PostMortem) -> tuple[Block, ...]:
    """Every command that would change the training, with its reason; who agreed and why."""
    items = [*_own_acts(facts), *map(_told, facts.asked)]
    return (Bullets(tuple(items)),) if items else ()


def _told(command: CommandRow) -> str:
    """Without the paragraph on the cause, which has a section of its own."""
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
    if (later := seen.later_above) is not None:
        fell = incident.outcome in BACK and rose(incident) and len(branches_of(facts)) < 2
        if fell and seen.level_from is not None and later.loss <= later.error:
            said.append(f"The loss is level with its trend from step {seen.level_from:,} on.")
        steps = f"Steps {seen.later_first:,} to {seen.later_step:,}"
        said.append(f"{steps} lie {off_trend(later)}.")
    done = [command for command in facts.asked if command.state in EXECUTED]
    for command in done:
        told = None if command is done[-1] else command.judgement
        worked = command.effect if command.effect_known else told
        if worked:
            said.append(f"Command {command.id}{_undid(command)}: {worked.rstrip('.')}.")
    return " ".join(said)


def _undid(command: CommandRow) -> str:
    """How many steps a rollback undid; nothing of any other command."""
    action, at = command.action, command.applied_step
    if not isinstance(action, Rollback) or at is None:
        return ""
    return f" ({plural(max(0, at - action.step), 'step')} undone)"
