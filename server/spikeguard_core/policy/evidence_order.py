"""In which order to look at an incident's evidence, by its symptom and cause.

Law: data only, a row for every diagnosis; each holds every kind of evidence once. What the remedy's
checks ask about comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from spikeguard_core.policy.remedies import Diagnosis


class EvidencePart(StrEnum):
    """A kind of evidence that a page shows as one piece."""

    BATCH = "batch"  # documents, worst sequence, tokens
    LAYERS = "layers"  # which moved first
    SIGNALS = "signals"  # which left its band first: rate, norms, ranks


_DATA: Final = (EvidencePart.BATCH, EvidencePart.SIGNALS, EvidencePart.LAYERS)
_PLACE: Final = (EvidencePart.LAYERS, EvidencePart.SIGNALS, EvidencePart.BATCH)
_STATE: Final = (EvidencePart.SIGNALS, EvidencePart.LAYERS, EvidencePart.BATCH)
EVIDENCE_ORDER: Final[Mapping[Diagnosis, tuple[EvidencePart, ...]]] = {
    Diagnosis.BAD_BATCH: _DATA,
    Diagnosis.RARE_TOKENS: _DATA,
    Diagnosis.STALE_SECOND_MOMENT: _STATE,
    Diagnosis.LR_TOO_HIGH: _STATE,
    Diagnosis.LAYER_FAULT: _PLACE,
    Diagnosis.NON_FINITE_SOURCE: _PLACE,
    Diagnosis.WEIGHT_CORRUPTION: _PLACE,
    Diagnosis.LOSS_SCALE_OVERFLOW: _PLACE,
    Diagnosis.STALLED_WEIGHTS: _STATE,
    Diagnosis.REPLICAS_APART: _STATE,
    Diagnosis.UNKNOWN: _DATA,  # the commonest cause, and the soonest seen
}
