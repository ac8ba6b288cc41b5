"""What may have started the spike, for a reader.

Law: the ranking as it was when the incident closed; a cause that nothing speaks for is not named.
"""

from __future__ import annotations

from spikeguard_protocol import Cause
from spikeguard_server.domain.cause.suspicion import Suspicion, worth_showing
from spikeguard_server.domain.incident import Incident
from spikeguard_server.report.document import Block, Paragraph, Table

TITLES: dict[Cause, str] = {
    Cause.BAD_BATCH: "Bad data batch",
    Cause.RARE_TOKENS: "Rare tokens",
    Cause.STALE_SECOND_MOMENT: "Adam's second moment too small",
    Cause.LR_TOO_HIGH: "Learning rate too high",
    Cause.LAYER_FAULT: "Numeric fault in one layer",
    Cause.NON_FINITE_SOURCE: "A value that is not finite",
    Cause.WEIGHT_CORRUPTION: "Weights changed by no update, as by faulty hardware",
    Cause.LOSS_SCALE_OVERFLOW: "No fp16 loss scale fits",
    Cause.STALLED_WEIGHTS: "Updates that round to nothing",
    Cause.UNKNOWN: "Unknown",
}


def causes_of(incident: Incident) -> tuple[Block, ...]:
    """The likely causes with what speaks for each, and the layer that moved first."""
    rows = tuple(_row(one) for one in worth_showing(incident.causes))
    table = Table(("cause", "sure", "because"), rows, frozenset({1}))
    first = incident.first_layer
    if first is None:
        return (table,)
    return (table, Paragraph(f"The first layer to move: {first.sentence}."))


def _row(one: Suspicion) -> tuple[str, str, str]:
    because = "; ".join(one.reasons) or "cannot be ruled out"
    return TITLES[one.cause], f"{one.confidence:.0%}", because
