"""Post-mortems, drawn when somebody asks for one, and the figures of incidents that closed.

Drawing takes half a second, and most post-mortems are read by nobody: one is drawn at any time from
what is kept with the incident.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import RunId
from spikeguard_server.jobs.postmortem_facts import postmortem_facts
from spikeguard_server.report.cost import IncidentFigures, figures_of
from spikeguard_server.report.render import ReportFormat, render
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import take_uncounted
from spikeguard_server.store.runs import run_named, run_row

CountIncident = Callable[[str, IncidentFigures], None]  # of a project
AT_ONCE: Final = 20  # incidents, after which the thread looks after its other work
KEPT: Final = 200  # documents in memory, of 50 to 100 kB, for whoever asks for them next
_log = logging.getLogger(__name__)


def count_closed(engine: sql.Engine, count: CountIncident) -> None:
    """Call `count` with the figures of incidents that closed, which no replica has counted."""
    with engine.begin() as connection:
        closed = take_uncounted(connection, AT_ONCE)
    for run_id, number in closed:
        try:
            _count(engine, count, run_id, number)
        except Exception:  # they are marked as counted, so that nobody counts them twice
            _log.exception("the figures of %s#%d are left out of the metrics", run_id, number)


def _count(engine: sql.Engine, count: CountIncident, run_id: UUID, number: int) -> None:
    with engine.connect() as connection:
        run = run_row(connection, run_id)
        if run is not None:
            facts = postmortem_facts(connection, run, number, database_now(connection))
            count(run.project, figures_of(facts))


@lru_cache(maxsize=KEPT)
def draw_postmortem(
    engine: sql.Engine, run: RunId, number: int, form: ReportFormat, at: datetime
) -> bytes:
    """The post-mortem as of when what it says changed last: neither the price nor the date changes
    with who asks when. With pictures it takes half a second of a core, as text a tenth of that."""
    snapshot = engine.connect().execution_options(isolation_level="REPEATABLE READ")
    with snapshot as connection:
        facts = postmortem_facts(connection, run_named(connection, run), number, at)
    return render(facts, form)
