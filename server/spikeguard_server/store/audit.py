"""The record of every change of state: who, what, before and after, why. Append-only.

Law: written in the transaction of the change itself, under the run's lock. The database numbers an
entry without holes and dates it, whatever is sent here.
What people are to be told of it goes into the outbox in the same breath.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.audit.changes import FieldChange
from spikeguard_core.notification.topics import topic_of
from spikeguard_protocol import RUN_ITSELF
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.store.notices import add_notice
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables import core as tables

SERVER = Actor("server", ActorKind.SERVER)  # where no person and no policy acted
_FLEET_LOCK = 0x4155444954  # "AUDIT"


def append(
    connection: sql.Connection,
    run_id: UUID,
    *,
    actor: str,
    action: str,
    subject: str,
    project: str | None = None,
    incident: int | None = None,
    command: int | None = None,
    before: str | None = None,
    after: str | None = None,
    reason: str | None = None,
    changes: Sequence[FieldChange] = (),
) -> None:
    """Add an entry. `run_id` is `tables.FLEET` for what belongs to no run; `actor` is an `Actor`
    wherever it is known what kind it is. `subject` is for people; programs find an entry by run,
    `incident` and `command`, or by `project` where it belongs to no run."""
    identity: dict[str, str | int | None] = {}
    if isinstance(actor, Actor):
        identity = {
            "actor_kind": actor.kind.value, "token": actor.token_id, "session": actor.session_id,
            "known_by": None if actor.known_by is None else actor.known_by.value,
        }  # fmt: skip
    if run_id == tables.FLEET:
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_FLEET_LOCK)))
    connection.execute(
        sql.insert(tables.audit).values(
            run_id=run_id, number=0, at=sql.func.now(),  # the trigger sets both
            actor=storable(actor), action=action, subject=subject,
            project=project, incident=incident, command=command, before=before, after=after,
            reason=None if reason is None else storable(reason),
            changes=list(map(asdict, changes)), **identity,
        )
    )  # fmt: skip
    if run_id == tables.FLEET or incident == RUN_ITSELF:
        return  # whoever ordered something of the run itself follows it
    if (topic := topic_of(action, incident, command)) is not None:
        add_notice(connection, run_id, topic, incident, command)
