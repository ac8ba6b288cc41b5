"""Post-mortems: what they say is settled when it is due, and drawn when somebody asks for it.

Settling counts the figures. Drawing takes half a second, and most post-mortems are read by nobody:
so only what somebody asks for is drawn, at any time, from what is kept with the incident.

What is due is settled under its run's lock, by whichever replica gets it first. One that cannot be
settled is put off, for longer each time, so that the others get their turn; each round settles one
of each project, so that none waits for all that another one has due.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, partial
from threading import Event
from time import monotonic
from typing import Final

import sqlalchemy as sql

from spikeguard_core.lifecycle.incident_figures import PERSON, POLICY, IncidentFigures
from spikeguard_protocol import RunId
from spikeguard_server.jobs.postmortem_facts import postmortem_facts
from spikeguard_server.log_format import add_context
from spikeguard_server.report.cost import spent_by
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.narrative import BACK
from spikeguard_server.report.render import ReportFormat, render
from spikeguard_server.retries import survive_each
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.reports import (
    DueReport,
    due_reports,
    postpone_report,
    settle_report,
    still_due,
)
from spikeguard_server.store.runs import lock_run, run_named

CountIncident = Callable[[str, IncidentFigures], None]  # of a project
AT_ONCE: Final = 20  # projects of a round
PASS_S: Final = 5.0  # after so long the thread looks after its other work
KEPT: Final = 200  # documents in memory, of 50 to 100 kB, for whoever asks for them next


def settle_postmortems(
    engine: sql.Engine, stopping: Event | None = None, count: CountIncident | None = None
) -> None:
    """Settle what is due, round by round, for `PASS_S` or until `stopping`. `count` is called with
    the figures of each incident that is settled for the first time."""
    until = monotonic() + PASS_S
    while (found := _round(engine)) and monotonic() <= until:
        survive_each(
            found,
            partial(_settle_or_postpone, engine, count),
            lambda due: f"post-mortem {due.run_id}#{due.incident}",
            stopping,
        )
        if stopping is not None and stopping.is_set():
            return


@lru_cache(maxsize=KEPT)
def draw_postmortem(
    engine: sql.Engine, run: RunId, number: int, form: ReportFormat, settled_at: datetime
) -> bytes:
    """The post-mortem as of when what it says was settled: neither the price nor the date changes
    with who asks when. With pictures it takes half a second of a core, as text a tenth of that."""
    snapshot = engine.connect().execution_options(isolation_level="REPEATABLE READ")
    with snapshot as connection:
        facts = postmortem_facts(connection, run_named(connection, run), number, settled_at)
    return render(facts, form)


def _round(engine: sql.Engine) -> list[DueReport]:
    with engine.connect() as connection:
        return due_reports(connection, AT_ONCE)


def _settle_or_postpone(engine: sql.Engine, count: CountIncident | None, due: DueReport) -> None:
    try:
        _settle(engine, count, due)
    except Exception:
        with engine.begin() as connection:
            postpone_report(connection, due)
        raise


def _settle(engine: sql.Engine, count: CountIncident | None, due: DueReport) -> None:
    with engine.begin() as connection:
        run = lock_run(connection, due.run_id)
        before = still_due(connection, due)
        if run is None or before is None:  # deleted, or settled by another replica
            return
        add_context(run=str(run.id), incident=due.incident)
        facts = postmortem_facts(connection, run, due.incident, database_now(connection))
        figures = _figures(facts) if before.reported_at is None else None
        settle_report(connection, due, facts.written_at)
    if count is not None and figures is not None:
        count(run.project, figures)


def _figures(facts: PostMortem) -> IncidentFigures:
    """How long it took to detect, decide and recover, and what was lost.

    A decision takes from the first proposal to the first approval or rejection, whoever gave it, of
    what changes the training: watching asks nobody. A recovery lasts until the close, of an
    incident that ended with the loss back on its trend.
    """
    incident, spent, asked = facts.incident, spent_by(facts), facts.acting
    decided = min(((c.decided_at, c.automatic) for c in asked if c.decided_at), default=None)
    proposed_at = min((c.proposed_at for c in asked), default=facts.opened_at)
    recovered = incident.outcome if incident.outcome in BACK else None
    open_s = (facts.closed_at - facts.opened_at).total_seconds()
    return IncidentFigures(
        detection_steps=max(0, incident.detected_step - incident.onset_step),
        decision_s=max(0.0, (decided[0] - proposed_at).total_seconds()) if decided else None,
        decided_by=(POLICY if decided[1] else PERSON) if decided else None,
        recovery_s=open_s if recovered else None,
        outcome=recovered.value if recovered else None,
        lost_steps=spent.steps_lost,
        lost_s=spent.seconds,
    )
