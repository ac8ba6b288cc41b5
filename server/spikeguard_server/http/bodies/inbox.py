"""Bodies about the inbox: everything that waits for people, most urgent first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import sqlalchemy as sql
from pydantic import Field

from spikeguard_protocol import CommandId, IncidentId, RunId, Waits
from spikeguard_protocol.phrases import order_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.access.person_names import same_name
from spikeguard_server.http.bodies.incident_shapes import (
    CommandBody,
    IncidentBody,
)
from spikeguard_server.http.bodies.incidents import command_body, incident_bodies
from spikeguard_server.http.bodies.run_commands import RunCommandBody, run_command_body
from spikeguard_server.http.bodies.run_shapes import Shape
from spikeguard_server.store.reads.costs import read_pace
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.reads.inbox import (
    Switch,
    failed_commands,
    incidents_of,
    incidents_to_decide,
    incidents_to_look_at,
    read_switches,
)
from spikeguard_server.store.reads.incidents import read_commands
from spikeguard_server.store.reads.run_commands import failed_run_commands

MAX_ITEMS: Final = 200  # of each kind


class InboxItem(Shape):
    """One thing that waits. An incident stands in the inbox once, for what presses most."""

    waits: Waits
    title: str = Field(description="what is asked of somebody, in a line")
    project: str
    since: datetime | None
    by: str | None = Field(description="who threw the switch, or ordered it")
    reason: str | None = Field(description="of a switch, or of an order of a run itself")
    incident: IncidentBody | None = Field(description="with its proposal, cost and deadline")
    command: CommandBody | None = Field(description="that came to nothing")
    order: RunCommandBody | None = Field(default=None, description="of a run itself")


class InboxBody(Shape):
    """Everything that waits for people in the projects that the token may see."""

    person: str | None = Field(description="whose it is; null: the token names nobody")
    items: list[InboxItem]
    more: bool = Field(description="whether there is more of a kind than `limit`")


@dataclass(frozen=True, slots=True)
class InboxRequest:
    """Whose inbox, of which project (None: every one), how long at most."""

    person: str | None
    project: str | None
    limit: int


def inbox_body(connection: sql.Connection, asked: InboxRequest) -> InboxBody:
    """What waits now."""
    one_more = asked.limit + 1
    deciding = incidents_to_decide(connection, asked.project, one_more)
    failed = failed_commands(connection, asked.project, one_more)
    not_done = failed_run_commands(connection, asked.project, one_more)
    looks = incidents_to_look_at(connection, asked.project, asked.person, one_more)
    switches = [s for s in read_switches(connection, asked.project) if s.halted]
    items = [
        *(_switch(switch) for switch in switches[: asked.limit]),
        *_proposals(connection, deciding[: asked.limit]),
        *_failures(connection, failed[: asked.limit]),
        *map(_failed_of_run, map(run_command_body, not_done[: asked.limit])),
    ]
    named = {item.incident.id for item in items if item.incident is not None}
    rest = [row for row in looks[: asked.limit] if _id(row) not in named]
    items += [_look(body, asked.person) for body in incident_bodies(connection, rest)]
    more = any(len(found) > asked.limit for found in (deciding, failed, not_done, looks, switches))
    return InboxBody(person=asked.person, items=items, more=more)


def _id(row: Row) -> str:
    return str(IncidentId(RunId(row.project, row.name), row.number))


def _switch(switch: Switch) -> InboxItem:
    return InboxItem(
        waits=Waits.SWITCH, project=switch.project, since=switch.at, by=switch.by,
        title=f"The kill switch of project {switch.project} is on: nothing can be approved",
        reason=switch.reason, incident=None, command=None,
    )  # fmt: skip


def _proposals(connection: sql.Connection, rows: Sequence[Row]) -> Iterator[InboxItem]:
    for incident in incident_bodies(connection, rows):
        proposal = incident.proposal
        if proposal is None:  # decided meanwhile
            continue
        yield InboxItem(
            waits=Waits.DECIDE, project=incident.project, since=proposal.proposed_at, by=None,
            title=f"{incident.id}: decide: {_order(proposal)}", reason=None, incident=incident,
            command=None,
        )  # fmt: skip


def _failed_of_run(command: RunCommandBody) -> InboxItem:
    does = order_phrase(command.verb, command.arguments, brief=True)
    said = f" ({command.result})" if command.result else ""
    return InboxItem(
        waits=Waits.FAILED, project=CommandId.parse(command.id).incident.run.project,
        title=f"{command.id}: {COMMAND_STATE_WORDS[command.state]}: {does}{said}",
        since=command.finished_at, by=command.proposed_by, reason=command.reason, incident=None,
        command=None, order=command,
    )  # fmt: skip


def _failures(
    connection: sql.Connection, names: Sequence[tuple[UUID, int, int]]
) -> Iterator[InboxItem]:
    keys = [(run_id, incident) for run_id, incident, _ in names]
    found, commands = incidents_of(connection, keys), read_commands(connection, keys)
    bodies = {body.id: body for body in incident_bodies(connection, list(found.values()))}
    for key, (_, _, number) in zip(keys, names, strict=True):
        facts = next(f for f in commands[key] if f.row.number == number)
        command = command_body(facts, read_pace(connection, found[key]))
        yield InboxItem(
            waits=Waits.FAILED, project=facts.row.project,
            title=f"{command.id}: {COMMAND_STATE_WORDS[command.state]}: {_order(command)}",
            since=command.finished_at or command.decided_at, by=None, reason=None,
            incident=bodies[command.incident], command=command,
        )  # fmt: skip


def _look(incident: IncidentBody, person: str | None) -> InboxItem:
    mine = person is not None and same_name(incident.assignee or "", person)
    asks = "yours" if mine else "nobody has it"
    return InboxItem(
        waits=Waits.ASSIGNED if mine else Waits.UNACKNOWLEDGED, project=incident.project,
        title=f"{incident.id}: {asks}: {incident.title}", since=incident.opened_at, by=None,
        reason=None, incident=incident, command=None,
    )  # fmt: skip


def _order(command: CommandBody) -> str:
    return order_phrase(command.verb, command.arguments, brief=True)
