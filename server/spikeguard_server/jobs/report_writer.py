"""Writes the post-mortems that are due.

Law: each is claimed before it is drawn, so that replicas share them; a claim that its replica did
not live to settle is free again after `CLAIM_S`. One that cannot be written is put off, for longer
each time, so that the others get their turn; each round writes one of each project, so that none
waits for all that another one has due.
"""

from __future__ import annotations

from functools import partial
from threading import Event
from time import monotonic
from typing import Final

import sqlalchemy as sql

from spikeguard_server.jobs.postmortem_facts import (
    checkpoints_before,
    postmortem_facts,
    with_followups,
)
from spikeguard_server.log_format import add_context
from spikeguard_server.report.figures import figures_of
from spikeguard_server.report.render import render_all
from spikeguard_server.retries import survive
from spikeguard_server.store.clock import database_now
from spikeguard_server.store.incident_figures import write_figures
from spikeguard_server.store.reports import (
    DueReport,
    claim_report,
    due_reports,
    postpone_report,
    settle_report,
    write_report,
)
from spikeguard_server.store.runs import lock_run

AT_ONCE: Final = 20  # projects of a round
PASS_S: Final = 5.0  # after so long the thread looks after its other work
CLAIM_S: Final = 300.0


def write_reports(engine: sql.Engine, stopping: Event | None = None) -> None:
    """Write what is due, round by round, for `PASS_S` or until `stopping`."""
    until, before = monotonic() + PASS_S, list[DueReport]()
    while (found := _round(engine)) and found != before:  # else they cannot even be claimed
        for due in found:
            if stopping is not None and stopping.is_set():
                return
            survive(partial(_claim, engine, due), f"post-mortem {due.run_id}#{due.incident}")
        if monotonic() > until:
            return
        before = found


def _round(engine: sql.Engine) -> list[DueReport]:
    with engine.connect() as connection:
        return due_reports(connection, AT_ONCE)


def _claim(engine: sql.Engine, due: DueReport) -> None:
    with engine.begin() as connection:
        claim = claim_report(connection, due, CLAIM_S)
    if claim is None:
        return  # another replica writes it
    try:
        _write(engine, claim)
    except Exception:
        with engine.begin() as connection:
            postpone_report(connection, claim)
        raise


def _write(engine: sql.Engine, claim: DueReport) -> None:
    """Write the post-mortem in every format.

    Drawing takes a second, so the facts are read under the lock and drawn outside it.
    """
    run_id, number = claim.run_id, claim.incident
    with engine.begin() as connection:
        run = lock_run(connection, run_id)
        if run is None:  # deleted meanwhile
            return
        add_context(run=str(run.id), incident=number)
        facts = with_followups(
            connection, run, postmortem_facts(connection, run, number, database_now(connection))
        )
        figures = figures_of(facts, checkpoints_before(connection, run, facts))
        write_figures(connection, run, number, figures, facts.written_at)
    documents = render_all(facts)
    with engine.begin() as connection:
        for form, body in documents.items():
            write_report(connection, run_id, number, form.value, body, facts.written_at)
        settle_report(connection, claim)
