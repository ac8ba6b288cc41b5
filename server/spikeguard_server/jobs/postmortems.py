"""Post-mortems, drawn when somebody asks for one, and the figures of incidents that closed.

Drawing takes half a second, and most post-mortems are read by nobody: one is drawn at any time from
what is kept with the incident alone, so also long after the samples are gone. `report` makes the
documents of the facts that are gathered here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Final

import sqlalchemy as sql

from spikeguard_core.diagnosis.evidence import onset_batch
from spikeguard_core.diagnosis.lineage import Lineage
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import IncidentId, RunId, SegmentPoint
from spikeguard_server.errors import NotFound
from spikeguard_server.report.facts import AttemptFact, PostMortem, RecordedCurve
from spikeguard_server.report.render import ReportFormat, render
from spikeguard_server.store.commands import commands_of, own_rule_acts
from spikeguard_server.store.curves import Curves
from spikeguard_server.store.engine import database_now, row_as
from spikeguard_server.store.incidents import (
    read_incident,
    read_responses,
    revisions_of,
    take_uncounted,
)
from spikeguard_server.store.notes import read_notes, with_effects
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.runs import (
    RunRow,
    SegmentRow,
    attempts_named,
    current_line,
    run_named,
    run_row,
    segments_of,
)
from spikeguard_server.store.samples import kept_curves, read_batches
from spikeguard_server.store.situations import read_step_time

NOTED_STEPS: Final = 500  # as long as a note keeps a slow rise from opening an incident
CountIncident = Callable[[PostMortem], None]
AT_ONCE: Final = 20  # incidents, after which the thread looks after its other work
KEPT: Final = 200  # documents in memory, of 50 to 100 kB, for whoever asks for them next
_log = logging.getLogger(__name__)


def count_closed(engine: sql.Engine, count: CountIncident) -> None:
    """Call `count` with incidents that closed, which no replica has counted."""
    with engine.begin() as connection:
        closed = take_uncounted(connection, AT_ONCE)
    for run_id, number in closed:
        try:
            with engine.connect() as connection:
                if (run := run_row(connection, run_id)) is not None:
                    count(postmortem_facts(connection, run, number, database_now(connection)))
        except Exception:  # they are marked as counted, so that nobody counts them twice
            _log.exception("the figures of %s#%d are left out of the metrics", run_id, number)


@lru_cache(maxsize=KEPT)
def draw_postmortem(
    engine: sql.Engine, run: RunId, number: int, form: ReportFormat, at: datetime, home: str = ""
) -> bytes:
    """The post-mortem as of when what it says changed last: neither the price nor the date changes
    with who asks when. With pictures it takes half a second of a core, as text a tenth of that."""
    snapshot = engine.connect().execution_options(isolation_level="REPEATABLE READ")
    with snapshot as connection:
        facts = postmortem_facts(connection, run_named(connection, run), number, at)
    return render(facts, form, home)


def postmortem_facts(
    connection: sql.Connection, run: RunRow, number: int, now: datetime
) -> PostMortem:
    """Everything known about closed incident `number` of `run`, by the policy in force at `now`."""
    row = read_incident(connection, IncidentId(run.id, number))
    incident, after = row.incident, None
    with suppress(NotFound):
        after = read_incident(connection, IncidentId(run.id, number + 1))
    policy, onset = policy_of(connection, run.project, run.run_id, now), incident.onset_step
    lineage = current_line(run, segments_of(connection, run.run_id), incident.newest_segment)
    curves = tuple(
        _curve(segment, kept, lineage)
        for segment, kept in kept_curves(connection, run.run_id, number)
    )
    took_part = {curve.attempt_number for curve in curves}
    pace_s = read_step_time(connection, row)
    attempts_there = attempts_named(connection, run.run_id, took_part)
    told = [row.tokens_per_step for row in attempts_there if row.tokens_per_step is not None]
    tokens = told[-1] if told else None  # as the newest said
    return PostMortem(
        run=run.id,
        incident=incident,
        opened_at=row.opened_at,
        closed_at=row.closed_at or now,
        written_at=now,
        curves=curves,
        followed_to=row.followed_to,
        revisions=tuple(revisions_of(connection, row)),
        commands=tuple(with_effects(connection, commands_of(connection, run.run_id, number))),
        own_acts=tuple(own_rule_acts(connection, run.run_id, incident.onset_step, row.closed_at)),
        next_onset=None if after is None else after.incident.onset_step,
        responses=tuple(read_responses(connection, run.run_id, number)),
        attempts=tuple(row_as(AttemptFact, attempt) for attempt in attempts_there),
        batch=onset_batch(read_batches(connection, row.run_id, row.place, onset), onset),
        step_time_s=pace_s,
        tokens_per_step=tokens,
        price_per_hour=policy.price_per_hour,
        currency=policy.currency,
        notes=tuple(_changes(connection, run, incident)),
    )


def _changes(connection: sql.Connection, run: RunRow, incident: Incident) -> list[str]:
    """What was noted of changes of the run from `NOTED_STEPS` before the onset to its newest step,
    oldest first."""
    return [
        f"{row.actor} noted a change after step {row.step:,}: {row.text}"
        + (f" ({row.reason})." if row.reason else ".")
        for row in reversed(read_notes(connection, run.run_id)[0])
        if incident.onset_step - NOTED_STEPS <= row.step <= incident.newest_step
    ]


def _curve(segment: SegmentRow, curves: Curves, lineage: Lineage) -> RecordedCurve:
    steps = curves.steps.tolist()
    kept = [step for step in steps if lineage.holds(SegmentPoint(segment.id, step))]
    return RecordedCurve(
        segment=segment.id,
        attempt_number=segment.attempt,
        reason=segment.reason,
        steps=tuple(steps),
        values={
            name: tuple(column.list())
            for name, column in sorted(curves.signals.items())
            if column.there.any()
        },
        kept_to=None if len(kept) == len(steps) else (kept[-1] if kept else steps[0] - 1),
    )
