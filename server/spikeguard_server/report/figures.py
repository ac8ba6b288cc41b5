"""An incident in figures: times to detect, decide and recover, and what was lost.

Detection takes the steps from the onset to the one at which the incident opened. A decision takes
from the first proposal to the first approval or rejection, whoever gave it, of what changes the
training: watching asks nobody. A recovery lasts until the close, of an incident that ended with the
loss back on its trend. What is lost is what the post-mortem states. docs/alerts.md says what each
means.
"""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard_server.report.cost import spent_by
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.narrative import BACK


@dataclass(frozen=True, slots=True)
class IncidentFigures:
    """Figures of one closed incident; None = not known, or nothing of the kind happened."""

    detection_steps: int
    decision_s: float | None
    decided_by: str | None  # person or policy
    recovery_s: float | None
    outcome: str | None  # of a recovery
    lost_steps: int
    lost_s: float | None


def figures_of(facts: PostMortem) -> IncidentFigures:
    """The figures of an incident."""
    incident, spent, asked = facts.incident, spent_by(facts), facts.acting
    decided = min(((c.decided_at, c.automatic) for c in asked if c.decided_at), default=None)
    proposed_at = min((c.proposed_at for c in asked), default=facts.opened_at)
    recovered = incident.outcome if incident.outcome in BACK else None
    open_s = (facts.closed_at - facts.opened_at).total_seconds()
    return IncidentFigures(
        detection_steps=max(0, incident.detected_step - incident.onset_step),
        decision_s=max(0.0, (decided[0] - proposed_at).total_seconds()) if decided else None,
        decided_by=("policy" if decided[1] else "person") if decided else None,
        recovery_s=open_s if recovered else None,
        outcome=recovered.value if recovered else None,
        lost_steps=spent.steps_lost,
        lost_s=spent.seconds,
    )
