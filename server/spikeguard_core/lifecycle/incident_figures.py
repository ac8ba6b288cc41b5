"""Figures of a closed incident: how long it took, and what it cost.

`jobs/postmortems.py` finds them; docs/alerts.md says what each means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PERSON: Final = "person"
POLICY: Final = "policy"


@dataclass(frozen=True, slots=True)
class IncidentFigures:
    """Figures of one closed incident; None = not known, or nothing of the kind happened."""

    detection_steps: int
    decision_s: float | None
    decided_by: str | None  # PERSON or POLICY
    recovery_s: float | None
    outcome: str | None  # of a recovery
    lost_steps: int
    lost_s: float | None
