"""What may have started the spike, for a reader.

Law: the ranking as it was when the incident closed; a cause that nothing speaks for is not named.
"""

from __future__ import annotations

from spikeguard_protocol.phrases import cause_phrase
from spikeguard_server.domain.lifecycle.incident import Incident
from spikeguard_server.domain.suspicion import Suspicion, worth_showing
from spikeguard_server.report.document import Block, Paragraph, Table


def causes_of(incident: Incident) -> tuple[Block, ...]:
    """The likely causes with what speaks for each, and the layer that moved first."""
    rows = tuple(_row(one) for one in worth_showing(incident.causes))
    table = Table(("cause", "confidence", "because"), rows, frozenset({1}))
    first = incident.first_layer
    if first is None:
        return (table,)
    return (table, Paragraph(f"The first layer to move: {first.sentence}."))


def _row(one: Suspicion) -> tuple[str, str, str]:
    because = "; ".join(one.reasons) or "cannot be ruled out"
    return cause_phrase(one.cause), f"{one.confidence:.0%}", because
