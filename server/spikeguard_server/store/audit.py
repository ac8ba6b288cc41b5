"""The record of every change of state: who, what, before and after, why. Append-only.

Written in the transaction of the change itself, under the run's lock. The database numbers an entry
without holes and dates it, whatever is sent here. What people are to be told of it is added
to their channels' conversations in the same breath.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

import sqlalchemy as sql
from psycopg.types.json import Jsonb

from spikeguard_core.diagnosis.change_effect import Changed
from spikeguard_core.notification.topics import topic_of
from spikeguard_protocol import RUN_ITSELF
from spikeguard_server.identity.actors import Actor, ActorKind
from spikeguard_server.store.conversations import tell
from spikeguard_server.store.engine import Statement, write
from spikeguard_server.store.tables import core as tables

MAX_REASON = 500  # characters that a person gives for a change
SERVER = Actor("server", ActorKind.SERVER)  # where no person and no policy acted
_FLEET_LOCK = 0x4155444954  # "AUDIT"
_COLUMNS = tuple(c.name for c in tables.audit.c if c.name not in ("number", "at"))
_APPEND = f"""
INSERT INTO audit (number, at, {", ".join(_COLUMNS)})
VALUES (0, now(), {", ".join(f"%({name})s" for name in _COLUMNS)})
"""  # a trigger sets the first two


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
    changes: Sequence[Changed] = (),
    told: bool = True,
) -> None:
    """Add an entry. `run_id` is `tables.FLEET` for what belongs to no run; `actor` is an `Actor`
    wherever it is known what kind it is. `subject` is for people; programs find an entry by run,
    `incident` and `command`, or by `project` where it belongs to no run. `told`: people are, where
    their channels ask for it."""
    identity: dict[str, str | int | None] = {}
    if isinstance(actor, Actor):
        identity = {
            "actor_kind": actor.kind.value, "token": actor.token_id, "session": actor.session_id,
            "known_by": None if actor.known_by is None else actor.known_by.value,
        }  # fmt: skip
    entry = {
        **dict.fromkeys(_COLUMNS), **identity, "run_id": run_id, "actor": actor,
        "action": action, "subject": subject, "project": project, "incident": incident,
        "command": command, "before": before, "after": after,
        "reason": reason,
        "changes": Jsonb(list(map(asdict, changes))),
    }  # fmt: skip
    statements: list[Statement] = [(_APPEND, entry)]
    if run_id == tables.FLEET:
        statements.insert(0, ("SELECT pg_advisory_xact_lock(%s)", (_FLEET_LOCK,)))
    # Whoever ordered something of the run itself follows it.
    topic = None if incident == RUN_ITSELF else topic_of(action, incident, command)
    if told and topic is not None and run_id != tables.FLEET:
        statements.append(tell(run_id, incident or 0, topic))
    write(connection, *statements)
