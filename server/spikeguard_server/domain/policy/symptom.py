"""What an incident shows: which signal moved first, and what kind of damage is seen.

Invariants: read from the record alone; every view (message, page, dashboard, terminal, post-mortem)
asks here, so that no two of them name another signal or another symptom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from spikeguard_protocol import Signal
from spikeguard_server.domain.lifecycle.damage import non_finite, rose
from spikeguard_server.domain.lifecycle.incident import Incident


class Symptom(StrEnum):
    """What stands in the title of an incident, the gravest first."""

    RANKS_APART = "ranks_apart"
    UPDATES_DROPPED = "updates_dropped"
    NON_FINITE_LOSS = "non_finite_loss"
    NON_FINITE_GRADIENT = "non_finite_gradient"
    NAMED_SIGNAL = "named_signal"
    SPIKE = "spike"


@dataclass(frozen=True, slots=True)
class FirstMove:
    """The first signal to move, and the step at which it did."""

    signal: str
    step: int


def first_move_of(incident: Incident) -> FirstMove:
    """The first to move; at one step the loss comes first: a step has it before its gradient."""
    moves = incident.first_moves or {incident.signal: incident.onset_step}
    signal = min(moves, key=lambda name: (moves[name], name != Signal.LOSS))
    return FirstMove(signal, moves[signal])


def symptom_of(incident: Incident) -> Symptom:
    """A gradient that is not finite beside a loss that rose is a spike like any other."""
    if incident.apart:
        return Symptom.RANKS_APART
    if incident.stuck:
        return Symptom.UPDATES_DROPPED
    if loss_not_finite(incident):
        return Symptom.NON_FINITE_LOSS
    if non_finite(incident) and not rose(incident):
        return Symptom.NON_FINITE_GRADIENT
    return Symptom.NAMED_SIGNAL if alone_moved(incident) else Symptom.SPIKE


def alone_moved(incident: Incident) -> bool:
    """Whether a signal that the policy names moved, and the loss did not."""
    return incident.of_named_signal and not rose(incident) and not non_finite(incident)


def loss_not_finite(incident: Incident) -> bool:
    """Whether the loss that moved is, or was, NaN or infinite."""
    if incident.peak_loss is None and incident.signal == Signal.LOSS:
        return True
    seen = (incident.worst_z.get(Signal.LOSS), incident.peak_loss, incident.excess)
    return not all(math.isfinite(value) for value in seen if value is not None)
