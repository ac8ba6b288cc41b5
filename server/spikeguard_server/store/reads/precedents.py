"""Earlier incidents like one: closed ones of its project, of its kind and likeliest cause.

Law: reads only, and bounded: the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sql

from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.precedents import DONE, Precedent
from spikeguard_protocol import Outcome, Verb
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.tables.core import commands, incidents, runs

MAX_PRECEDENTS: Final = 200
_I, _R, _C = incidents.c, runs.c, commands.c


def read_precedents(connection: sql.Connection, incident: Row) -> Sequence[Precedent]:
    """The newest closed incidents like `incident` that began before it; none where its causes were
    never ranked."""
    if not incident.cause_names:
        return []
    newest = (
        sql.select(_I.run_id, _I.number, _I.outcome)
        .join(runs, _R.run_id == _I.run_id)
        .where(_R.project == incident.project, _I.outcome.is_not(None))
        .where(_I.kind == incident.kind, _I.cause_names[1] == incident.cause_names[0])
        .where(_I.opened_at < incident.opened_at)
        .order_by(_I.opened_at.desc(), _I.run_id, _I.number)
        .limit(MAX_PRECEDENTS)
    ).subquery()
    n = newest.c
    done = (
        sql.select(_C.verb)
        .where(_C.run_id == n.run_id, _C.incident == n.number)
        .where(_C.state.in_([state.value for state in EXECUTED]))
        .where(_C.verb.in_(sorted(verb.value for verb in DONE)))
        .order_by(_C.number.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = sql.select(n.outcome, done.label("verb"))
    return [_precedent(row) for row in connection.execute(query)]


def _precedent(row: Any) -> Precedent:
    verb = None if row.verb is None else Verb(row.verb)
    return Precedent(verb, Outcome(row.outcome))
