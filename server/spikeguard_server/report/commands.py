"""What was ordered, by whom, and what became of it, in sentences."""

from __future__ import annotations

from spikeguard_core.lifecycle.command_life import EXECUTED, TAKEN_BACK
from spikeguard_protocol import CommandState, ScaleLr
from spikeguard_protocol.phrases import ended_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow


def decider(command: CommandRow) -> str:
    """Who decided on it; empty where nobody had to."""
    if command.automatic:
        return command.decided_by or f"policy {command.policy_version}"
    return command.decided_by or ("" if command.state in TAKEN_BACK else "nobody")


def decision_of(command: CommandRow) -> str:
    """`ordered by Ada`, `approved by policy 2`, `rejected by Ada`; empty: nobody decided."""
    if command.decided_at is None:
        return ""
    yes = "ordered" if command.proposed_by is not None else "approved"
    return f"{'rejected' if command.state is CommandState.REJECTED else yes} by {decider(command)}"


def how_it_ended(command: CommandRow) -> str:
    """What became of it and why, in sentences; of what was carried out or healed, not why: the
    incident's own outcome says it."""
    why = command.result or command.end_reason
    known = command.state in EXECUTED or command.state is CommandState.WITHDRAWN_HEALED
    return ended_phrase(COMMAND_STATE_WORDS[command.state], None if known else why)


def own_rule_sentence(command: CommandRow) -> str:
    """What the job did by its emergency rule."""
    action, first = command.action, command.applied_step or 0
    assert isinstance(action, ScaleLr)
    return (
        f"The job's emergency rule multiplied the learning rate by {action.factor:g} after step "
        f"{first:,}, for {action.steps:,} steps, up to step {first + action.steps:,}."
    )
