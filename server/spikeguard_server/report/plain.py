"""A post-mortem as JSON: the facts and the figures derived from them, for other programs."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any

from spikeguard_protocol import Signal
from spikeguard_protocol.encoding import to_json
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.cost import spent_by
from spikeguard_server.report.facts import PostMortem, RecordedCurve
from spikeguard_server.report.followups import followups_of
from spikeguard_server.report.page import happened
from spikeguard_server.report.plot_choice import kept_indices
from spikeguard_server.report.symptoms import peaks_of, symptoms_of

SCHEMA = 1
POINTS = 600  # of a curve
SIGNALS = (Signal.LOSS, Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP, Signal.UPDATE_NORM)
_LEFT_OUT = {"run", "run_id", "attempt_id", "expires_in_s"}


def json_of(facts: PostMortem, title: str) -> str:
    """One JSON object, indented for people who look; `title` of its document."""
    body = {
        "schema": SCHEMA,
        "id": facts.id,
        "project": facts.run.project,
        "run": facts.run.name,
        "title": title,
        "what_happened": happened(facts),
        "opened_at": facts.opened_at,
        "closed_at": facts.closed_at,
        "written_at": facts.written_at,
        "incident": facts.incident,
        "symptoms": symptoms_of(facts),
        "evidence": {"precursors": facts.precursors, "peaks": peaks_of(facts)},
        "revisions": facts.revisions,
        "revision_count": facts.revision_count,
        "commands": [_command(command) for command in facts.commands],
        "cost": {**asdict(spent_by(facts)), "currency": facts.currency},
        "notes": facts.notes,
        "attempts": facts.attempts,
        "follow_ups": followups_of(facts),
        "curves": [_thinned(curve) for curve in facts.curves],
    }
    text = json.dumps(
        to_json(body), allow_nan=False, indent=1, ensure_ascii=False, default=datetime.isoformat
    )
    return text + "\n"


def _command(command: CommandRow) -> dict[str, Any]:
    body = {f.name: getattr(command, f.name) for f in fields(command) if f.name not in _LEFT_OUT}
    return {"id": str(command.id), "verb": command.verb, **body}


def _thinned(curve: RecordedCurve) -> RecordedCurve:
    kept = kept_indices(curve.values.get(Signal.LOSS, curve.steps), POINTS)
    columns = {s.value: curve.values[s] for s in SIGNALS if s in curve.values}
    values = {name: tuple(column[i] for i in kept) for name, column in columns.items()}
    return replace(curve, steps=tuple(curve.steps[i] for i in kept), values=values)
