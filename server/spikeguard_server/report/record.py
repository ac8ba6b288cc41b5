"""The record of a post-mortem: commands with who decided them, the timeline, the attempts."""

from __future__ import annotations

from datetime import datetime

from spikeguard_core.lifecycle.command_life import EXECUTED, TAKEN_BACK
from spikeguard_protocol import CommandState, ScaleLr
from spikeguard_protocol.phrases import action_phrase, ended_phrase, response_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow, ResponseRow
from spikeguard_server.report.document import Block, Bullets, Links, Table
from spikeguard_server.report.facts import AttemptFact, PostMortem
from spikeguard_server.report.wording import ENDINGS, count, plural, time_of

MOST_TURNS = 16  # of the timeline on the page


def command_blocks(facts: PostMortem) -> tuple[Block, ...]:
    """Every command with who decided it and when."""
    if not facts.commands:
        return ()
    rows = tuple(
        (
            str(command.id),
            action_phrase(command.action),
            COMMAND_STATE_WORDS[command.state],
            decider(command),
            time_of(command.decided_at),
            time_of(command.finished_at),
            _step(command.applied_step),
        )
        for command in facts.commands
    )
    header = ("command", "order", "state", "decided by", "decided", "ended", "at step")
    return (Table(header, rows, frozenset({6})),)


def decider(command: CommandRow) -> str:
    """Who decided on it; empty where nobody had to."""
    if command.automatic:
        return command.decided_by or f"policy {command.policy_version}"
    return command.decided_by or ("" if command.state in TAKEN_BACK else "nobody")


def how_it_ended(command: CommandRow) -> str:
    """What became of it and why, in sentences; of what was carried out or healed, not why: the
    incident's own outcome says it."""
    why = command.result or command.end_reason
    known = command.state in EXECUTED or command.state is CommandState.WITHDRAWN_HEALED
    return ended_phrase(COMMAND_STATE_WORDS[command.state], None if known else why)


def timeline_of(facts: PostMortem) -> Table:
    """What turned the incident, by the second."""
    entries = sorted(_turns(facts), key=lambda entry: entry[0])
    if len(entries) > MOST_TURNS:
        half = MOST_TURNS // 2
        left = f"{len(entries) - MOST_TURNS} more, which the audit lists"
        middle = (entries[half][0], "", left)
        entries = [*entries[:half], middle, *entries[-half:]]
    rows = tuple((f"{at:%m-%d %H:%M:%S}", step, what) for at, step, what in entries)
    return Table(("UTC", "step", "what"), rows, frozenset({1}))


def _turns(facts: PostMortem) -> list[tuple[datetime, str, str]]:
    """Opened, decided, carried out, closed; and who took it."""
    incident = facts.incident
    found: list[tuple[datetime, str, str]] = [
        (facts.opened_at, f"{incident.detected_step:,}", "incident opened"),
        (facts.closed_at, _step(incident.closed_step), f"closed: {ENDINGS[incident.outcome]}"),
    ]
    found += [(r.at, "", _responded(r)) for r in facts.responses if r.text is None]
    found += _restarts(facts)
    for act in facts.own_acts:
        said = own_rule_sentence(act)
        found.append((act.finished_at or act.proposed_at, _step(act.applied_step), said))
    for command in facts.asked:
        verb = action_phrase(command.action, brief=True)
        found.append((command.proposed_at, "", f"proposed: {verb}"))
        if command.decided_at is not None:
            verdict = "rejected" if command.state.value == "rejected" else "approved"
            by = f"{verdict} by {decider(command)}"
            found.append((command.decided_at, _step(command.decided_step), by))
        if command.finished_at is not None and command.state.value != "rejected":
            done = command.state.value in ("applied", "judged")
            end = "carried out" if done else COMMAND_STATE_WORDS[command.state]
            found.append((command.finished_at, _step(command.applied_step), end))
    return found


def own_rule_sentence(command: CommandRow) -> str:
    """What the job did by its emergency rule."""
    action, first = command.action, command.applied_step or 0
    assert isinstance(action, ScaleLr)
    return (
        f"The job's emergency rule multiplied the learning rate by {action.factor:g} after step "
        f"{first:,}, for {count(action.steps)} steps, up to step {first + action.steps:,}."
    )


def _restarts(facts: PostMortem) -> list[tuple[datetime, str, str]]:
    """The attempts that ended or began while it was open."""
    found: list[tuple[datetime, str, str]] = []
    for one in facts.attempts:
        if one.ended_at is not None and facts.opened_at < one.ended_at < facts.closed_at:
            why = f": {one.end_reason}" if one.end_reason else ""
            found.append((one.ended_at, "", f"attempt {one.number} ended{why}"))
        if facts.opened_at < one.started_at < facts.closed_at:
            mine = (c for c in facts.curves if c.attempt_number == one.number and c.steps)
            after = next((curve.steps[0] - 1 for curve in mine), None)
            found.append((one.started_at, _step(after), f"attempt {one.number} began"))
    return found


def responses_of(facts: PostMortem) -> tuple[Block, ...]:
    """Comments, as they were written."""
    said = tuple(f"{time_of(r.at)} {_responded(r)}" for r in facts.responses if r.text)
    return (Bullets(said),) if said else ()


def links_of(facts: PostMortem) -> tuple[Block, ...]:
    """Where the run stands in the job's own trackers; of the newest attempt that said so."""
    links = next((a.links for a in reversed(facts.attempts) if a.links), {})
    if not links:
        return ("No tracker's address was told.",)
    return (Links(tuple(links.items())),)


def _responded(response: ResponseRow) -> str:
    return response_phrase(response.action, response.person, response.assignee, response.text)


def _step(step: int | None) -> str:
    return "" if step is None else f"{step:,}"


def attempts_table(attempts: tuple[AttemptFact, ...]) -> Table:
    rows = tuple(
        (
            f"{a.number} ({a.id})",
            time_of(a.started_at),
            time_of(a.ended_at) or ("still running" if a is attempts[-1] else "no end was told"),
            a.end_reason or "",
            plural(a.world_size, "rank"),
            a.agent_version,
        )
        for a in attempts
    )
    return Table(("attempt", "started", "ended", "why", "size", "agent"), rows)
