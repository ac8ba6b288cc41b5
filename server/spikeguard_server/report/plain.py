"""A post-mortem as JSON: the facts and the figures derived from them, for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from typing import Any

from spikeguard_protocol import BatchRange, RunId, Signal
from spikeguard_protocol.encoding import float_to_json
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.facts import PostMortem, RecordedCurve
from spikeguard_server.report.followups import followups_of
from spikeguard_server.report.narrative import happened
from spikeguard_server.report.plot_choice import kept_indices
from spikeguard_server.report.symptoms import lead_of, peaks_of, spent_by, symptoms_of

SCHEMA = 1
POINTS = 600  # of a curve
SIGNALS = (Signal.LOSS, Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP, Signal.UPDATE_NORM)


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
        "evidence": {
            "lead": lead_of(facts),
            "precursors": facts.precursors,
            "peaks": peaks_of(facts),
        },
        "revisions": facts.revisions,
        "revision_count": max(facts.revision_count, len(facts.revisions)),
        "commands": [_command(command) for command in facts.commands],
        "cost": {**asdict(spent_by(facts)), "currency": facts.currency},
        "notes": list(facts.notes),
        "attempts": facts.attempts,
        "follow_ups": followups_of(facts),
        "curves": [_curve(curve) for curve in facts.curves],
    }
    plain = postmortem_json(body)
    return json.dumps(plain, allow_nan=False, indent=1, ensure_ascii=False) + "\n"


def postmortem_json(value: Any) -> Any:
    """Plain JSON values for facts and figures."""
    if isinstance(value, float):
        return float_to_json(value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, BatchRange):
        return [value.first, value.end]
    if isinstance(value, RunId):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: postmortem_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): postmortem_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [postmortem_json(item) for item in value]
    return value


def _command(command: CommandRow) -> dict[str, Any]:
    body = {f.name: getattr(command, f.name) for f in fields(command) if f.name not in _LEFT_OUT}
    return {"id": str(command.id), "verb": command.verb, **body}


_LEFT_OUT = {"run", "run_id", "attempt_id", "expires_in_s"}


def _curve(curve: RecordedCurve) -> dict[str, Any]:
    loss = curve.values.get(Signal.LOSS, ())
    kept = kept_indices(loss, POINTS) if loss else list(range(min(POINTS, len(curve.steps))))
    return {
        "attempt": curve.segment.attempt,
        "segment": curve.segment.number,
        "reason": curve.reason,
        "kept_to": curve.kept_to,
        "steps": [curve.steps[i] for i in kept],
        "values": {
            signal: [curve.values[signal][i] for i in kept]
            for signal in SIGNALS
            if signal in curve.values
        },
    }
