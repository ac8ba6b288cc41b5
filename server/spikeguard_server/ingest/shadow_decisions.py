"""What `auto` would have done, written down where the policy says `shadow`.

Law: changes nothing but its own record: the command waits for a person as ever.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sql

from spikeguard_protocol import verb_of
from spikeguard_server.domain.policy.approval import shadow_approval
from spikeguard_server.domain.policy.cost import cost_of
from spikeguard_server.domain.policy.settings import ApprovalMode, Policy
from spikeguard_server.domain.policy.situation import Situation
from spikeguard_server.store.commands import CommandRow
from spikeguard_server.store.runs import RunRow
from spikeguard_server.store.shadows import add_shadow, has_shadow, shadow_ages


def note_shadow(
    connection: sql.Connection,
    run: RunRow,
    command: CommandRow,
    situation: Situation,
    policy: Policy,
    now: datetime,
) -> None:
    """Write down that the policy would have approved `command` now, once."""
    verb = verb_of(command.action)
    if policy.approval_of(verb).mode is not ApprovalMode.SHADOW:
        return
    if has_shadow(connection, run.run_id, command.incident, command.number):
        return
    answer = shadow_approval(verb, policy, shadow_ages(connection, run.run_id, verb, now))
    if answer.allowed:
        add_shadow(
            connection, run.run_id, incident=command.incident, command=command.number, verb=verb,
            revision=command.revision, step=situation.step,
            cost_steps=cost_of(command.action, situation, policy).steps,
            policy=policy, reason=answer.reason, now=now,
        )  # fmt: skip
