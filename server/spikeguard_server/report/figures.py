"""An incident in figures: times to detect, decide and recover, and what was lost.

Detection takes the steps from the onset to the one at which the incident opened. A decision takes
from the first proposal to the first approval or rejection, whoever gave it, of what changes the
training: watching asks nobody. A recovery lasts until the close, of an incident that ended with the
loss back on its trend. What is lost is what the post-mortem states. docs/alerts.md says what each
means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spikeguard_protocol import Outcome
from spikeguard_server.entities import CommandRow
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.narrative import acting
from spikeguard_server.report.symptoms import spent_by

RECOVERED: Final = frozenset({Outcome.HEALED, Outcome.RECOVERED})


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
    incident, spent = facts.incident, spent_by(facts)
    decision = _first_decision(acting(facts))
    recovered = incident.outcome in RECOVERED
    open_s = (facts.closed_at - facts.opened_at).total_seconds()
    return IncidentFigures(
        detection_steps=max(0, incident.detected_step - incident.onset_step),
        decision_s=decision[0] if decision else None,
        decided_by=decision[1] if decision else None,
        recovery_s=open_s if recovered else None,
        outcome=incident.outcome.value if recovered and incident.outcome else None,
        lost_steps=spent.steps_lost,
        lost_s=spent.seconds,
    )


def _first_decision(commands: Iterable[CommandRow]) -> tuple[float, str] | None:
    """Seconds from the first proposal to the first decision, and who decided."""
    known = list(commands)
    decided = [(c.decided_at, c.automatic) for c in known if c.decided_at is not None]
    if not decided:
        return None
    at, automatic = min(decided)
    proposed_at = min(c.proposed_at for c in known)
    return max(0.0, (at - proposed_at).total_seconds()), "policy" if automatic else "person"
