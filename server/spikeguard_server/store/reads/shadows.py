"""Decisions of shadow mode and what happened instead, for the scorecard.

Law: reads only; the domain judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sql

from spikeguard_protocol import CommandState, IncidentState, Outcome
from spikeguard_server.domain.policy.shadow import ShadowDecision
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.tables.core import commands, incidents, runs
from spikeguard_server.store.tables.notices import shadow_decisions

_S, _C, _I = shadow_decisions.c, commands.c, incidents.c


@dataclass(frozen=True, slots=True)
class Shown:
    """A decision with the row that it was read from."""

    decision: ShadowDecision
    row: Row


def read_shadows(connection: sql.Connection, project: str, limit: int = 500) -> Sequence[Shown]:
    """The newest decisions of a project's shadow."""
    query = (
        sql.select(
            shadow_decisions, runs.c.project, runs.c.name.label("run"), _C.state,
            _C.decided_step, _C.decided_by, _I.outcome, _I.state.label("incident_state"),
        )
        .join(runs, runs.c.run_id == _S.run_id)
        .join(commands, (_C.run_id == _S.run_id) & (_C.incident == _S.incident)
              & (_C.number == _S.command))
        .join(incidents, (_I.run_id == _S.run_id) & (_I.number == _S.incident))
        .where(runs.c.project == project)
        .order_by(_S.at.desc())
        .limit(limit)
    )  # fmt: skip
    return [Shown(_decision(row), row) for row in connection.execute(query)]


def _decision(row: Row) -> ShadowDecision:
    closed = row.incident_state == IncidentState.CLOSED.value
    return ShadowDecision(
        step=row.step,
        cost_steps=row.cost_steps,
        state=CommandState(row.state),
        decided_step=row.decided_step,
        outcome=Outcome(row.outcome) if closed and row.outcome is not None else None,
    )
