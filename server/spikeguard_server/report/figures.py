"""An incident in figures: times to detect, decide and recover, and what was lost and saved.

Detection lasts from the onset to the step at which the incident opened. A decision takes from the
first proposal to the first approval or rejection, whoever gave it, of what changes the training:
watching asks nobody. A recovery lasts from the onset
to the close, of an incident that ended with the loss back on its trend. What is lost is what the
post-mortem states. Saved are the steps that lie between the newest checkpoint on disk from before
the onset, from which a job is restarted by hand, and a later target that a rollback went back to.

Invariants: pure. Where no checkpoint on disk is known, nothing counts as saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.lifecycle.incident_figures import PERSON, POLICY, IncidentFigures
from spikeguard_core.policy.cost import money_of
from spikeguard_protocol import Outcome, Rollback, SegmentPoint, Signal
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.narrative import acting
from spikeguard_server.report.symptoms import spent_by

RECOVERED: Final = frozenset({Outcome.HEALED, Outcome.RECOVERED})


def figures_of(facts: PostMortem, on_disk: Sequence[SegmentPoint]) -> IncidentFigures:
    """The figures of an incident; `on_disk`: checkpoints that the present weights descend from."""
    incident, spent = facts.incident, spent_by(facts)
    detection_s, decision = _detection_s(facts), _first_decision(acting(facts))
    recovered = incident.outcome in RECOVERED
    open_s = (facts.closed_at - facts.opened_at).total_seconds() + (detection_s or 0.0)
    saved = _saved_steps(facts, on_disk)
    saved_s = None if facts.step_time_s is None else saved * facts.step_time_s
    return IncidentFigures(
        detection_steps=max(0, incident.detected_step - incident.onset_step),
        detection_s=detection_s,
        decision_s=decision[0] if decision else None,
        decided_by=decision[1] if decision else None,
        recovery_steps=spent.steps_off_trend if recovered else None,
        recovery_s=open_s if recovered else None,
        outcome=incident.outcome.value if recovered and incident.outcome else None,
        lost_steps=spent.steps_lost,
        lost_s=spent.seconds,
        lost_money=spent.money,
        saved_steps=saved,
        saved_s=saved_s,
        saved_money=None if saved_s is None else money_of(saved_s, facts.price_per_hour),
        currency=facts.currency,
    )


def _detection_s(facts: PostMortem) -> float | None:
    """What the steps from the onset to the detection took; the pace where one did not measure."""
    incident = facts.incident
    steps = range(incident.onset_step + 1, incident.detected_step + 1)
    took = {
        step: value
        for curve in facts.curves
        if curve.segment == incident.segment
        for step, value in zip(curve.steps, curve.values.get(Signal.STEP_TIME, ()), strict=False)
        if value is not None and math.isfinite(value)
    }
    if facts.step_time_s is None and any(step not in took for step in steps):
        return None
    return sum(took.get(step, facts.step_time_s or 0.0) for step in steps)


def _first_decision(commands: Iterable[CommandRow]) -> tuple[float, str] | None:
    """Seconds from the first proposal to the first decision, and who decided."""
    known = list(commands)
    decided = [(c.decided_at, c.automatic) for c in known if c.decided_at is not None]
    if not decided:
        return None
    at, automatic = min(decided)
    proposed_at = min(c.proposed_at for c in known)
    return max(0.0, (at - proposed_at).total_seconds()), POLICY if automatic else PERSON


def _saved_steps(facts: PostMortem, on_disk: Sequence[SegmentPoint]) -> int:
    onset = facts.incident.onset_step
    newest = max((point.step for point in on_disk if point.step < onset), default=None)
    if newest is None:
        return 0
    return sum(
        max(0, command.action.step - newest)
        for command in facts.commands
        if isinstance(command.action, Rollback) and command.state in EXECUTED
    )
