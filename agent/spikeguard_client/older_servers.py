"""What answers of older servers leave out, and how it is read instead.

Invariants: a value here claims nothing that such a server did not say; it is the shape's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spikeguard_client.shapes import FirstMove, Remedy

Answer = Mapping[str, Any]


def _first_signal(incident: Answer) -> FirstMove:
    return {"signal": incident["signal"], "step": incident["onset_step"]}


def _title(incident: Answer) -> str:
    return f"{incident['kind'].replace('_', ' ')} spike"


def _summary(incident: Answer) -> str:
    return f"{incident['signal'].replace('_', ' ').capitalize()} left its baseline"


def _newest_step(incident: Answer) -> int:
    closed: int | None = incident["closed_step"]
    newest: int = incident["detected_step"] if closed is None else closed
    return newest


_RUN: Mapping[str, Callable[[Answer], Any]] = {"look_at_job": lambda _: None}
_INCIDENT: Mapping[str, Callable[[Answer], Any]] = {
    "first_signal": _first_signal,
    "symptom": lambda _: "spike",
    "title": _title,
    "summary": _summary,
    "loss_rose": lambda _: False,
    "newest_step": _newest_step,
    "stuck": lambda _: False,
    "apart": lambda _: False,
}
LATER: Mapping[str, Mapping[str, Callable[[Answer], Any]]] = {  # shape -> field -> its value
    "Run": _RUN,
    "RunDetail": _RUN,
    "Cost": {
        "currency": lambda _: None,
        "step_time_s": lambda _: None,
        "step_time_of": lambda _: 0,
        "waiting_steps": lambda _: None,
        "waiting_money": lambda _: None,
    },
    "Command": {
        "checks": lambda _: [],
        "approvals": lambda _: 1,
        "first_approved_at": lambda _: None,
        "first_approved_by": lambda _: None,
        "end_reason": lambda _: None,
    },
    "Trend": {"band": lambda _: 3.0},
    "Incident": _INCIDENT,
    "IncidentDetail": {
        **_INCIDENT,
        "remedy": lambda _: Remedy(
            diagnosis="unknown", known=False, title="not known", sentence="", follow_ups=[]
        ),
    },
}
