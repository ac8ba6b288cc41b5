"""Bodies about commands of a run itself, without an incident."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from spikeguard_core.lifecycle.command_life import IN_FLIGHT, WAITING
from spikeguard_protocol import CommandId, CommandState, IncidentId, RunId, Verb
from spikeguard_server.http.bodies.incidents import plain_arguments
from spikeguard_server.http.bodies.run_shapes import Shape
from spikeguard_server.store.reads.history import Row


class RunCommandBody(Shape):
    """A command of the run itself, from its order to its result."""

    id: str
    number: int
    verb: Verb
    arguments: dict[str, Any]
    state: CommandState
    revision: int
    reason: str
    proposed_by: str | None = Field(description="who ordered it")
    attempt: str | None
    expires_in_s: float | None
    expires_at_step: int | None
    proposed_at: datetime
    decided_at: datetime | None
    decided_by: str | None
    decision_reason: str | None
    delivered_at: datetime | None
    finished_at: datetime | None
    applied_step: int | None
    result: str | None
    end_reason: str | None = Field(description="why it ended without reaching the job")
    judgement: str | None


class RunCommandList(Shape):
    """Commands of the run itself, newest first."""

    items: list[RunCommandBody]
    next_cursor: str | None


_SAME = tuple(
    name for name in RunCommandBody.model_fields
    if name not in ("id", "arguments", "attempt", "expires_in_s")
)  # fmt: skip


def run_command_body(row: Row) -> RunCommandBody:
    """The command as it stands."""
    run = RunId(row.project, row.name)
    pending = CommandState(row.state) in WAITING | IN_FLIGHT
    return RunCommandBody(
        **{name: row._mapping[name] for name in _SAME},
        id=str(CommandId(IncidentId(run, row.incident), row.number)),
        arguments=plain_arguments(row.arguments),
        attempt=row.attempt_id,
        expires_in_s=max(0.0, row.expires_in_s) if pending else None,
    )
