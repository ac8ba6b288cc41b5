"""The facts of a post-mortem, gathered from the database once its incident has closed.

Shapes rows into facts and writes nothing; it takes what is kept with the incident alone, so that it
can be written anew long after the samples are gone. `report` makes the documents.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

import sqlalchemy as sql

from spikeguard_core.diagnosis.batch_evidence import onset_batch
from spikeguard_core.diagnosis.lineage import Lineage
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import (
    BatchDetail,
    SegmentPoint,
)
from spikeguard_server.entities import IncidentRow
from spikeguard_server.report.facts import (
    AttemptFact,
    PostMortem,
    RecordedCurve,
)
from spikeguard_server.store.batches import read_batches
from spikeguard_server.store.commands import commands_of, own_rule_acts
from spikeguard_server.store.curves import Curves
from spikeguard_server.store.incidents import (
    attempts_by_number,
    find_incident,
    precursors_of,
    read_incident,
    revisions_of,
)
from spikeguard_server.store.notes import read_notes, with_effects
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.costs import read_step_time
from spikeguard_server.store.responses import read_responses
from spikeguard_server.store.runs import RunRow, SegmentRow, attempts_named
from spikeguard_server.store.samples import kept_curves
from spikeguard_server.store.situations import current_lineage

NOTED_STEPS = 500  # as long as a note keeps a slow rise from opening an incident


def postmortem_facts(
    connection: sql.Connection, run: RunRow, number: int, now: datetime
) -> PostMortem:
    """Everything known about closed incident `number` of `run`, by the policy in force at `now`."""
    attempts = attempts_by_number(connection, run.run_id)
    row = read_incident(connection, run.run_id, run.id, number)
    incident, after = row.incident, find_incident(connection, run.run_id, number + 1)
    policy = policy_of(connection, run.project, run.run_id, now)
    lineage = current_lineage(connection, run, attempts, incident.newest_segment)
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
        revision_count=row.revisions,
        commands=tuple(with_effects(connection, commands_of(connection, run.run_id, number))),
        own_acts=tuple(own_rule_acts(connection, run.run_id, incident.onset_step, row.closed_at)),
        next_onset=None if after is None else after.onset_step,
        responses=tuple(read_responses(connection, run.run_id, number)),
        precursors=tuple(precursors_of(connection, row)),
        attempts=tuple(map(_attempt, attempts_there)),
        batch=_batch(connection, row),
        step_time_s=pace_s,
        tokens_per_step=tokens,
        price_per_hour=policy.price_per_hour,
        currency=policy.currency,
        notes=tuple(_changes(connection, run, incident)),
    )


def _changes(connection: sql.Connection, run: RunRow, incident: Incident) -> list[str]:
    """What was noted of changes of the run from `NOTED_STEPS` before the onset to its newest step,
    oldest first."""
    rows = [
        row
        for row in read_notes(connection, run.run_id)[0]
        if incident.onset_step - NOTED_STEPS <= row.step <= incident.newest_step
    ]
    why = {row.number: f" ({row.reason})" if row.reason else "" for row in rows}
    return [
        f"{row.actor} noted a change after step {row.step:,}: {row.text}{why[row.number]}."
        for row in reversed(rows)
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


def _batch(connection: sql.Connection, row: IncidentRow) -> BatchDetail | None:
    """That of the onset, on the rank that it hurt most."""
    onset = row.incident.onset_step
    return onset_batch(read_batches(connection, row.run_id, row.place, onset), onset)


def _attempt(row: sql.Row[Any]) -> AttemptFact:
    return AttemptFact(**{f.name: row._mapping[f.name] for f in fields(AttemptFact)})
