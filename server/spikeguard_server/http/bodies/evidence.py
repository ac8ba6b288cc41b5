"""Bodies about an incident's evidence: norms by layer, and the content of its batches."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from spikeguard_core.diagnosis.batch_evidence import contrast, onset_batch, worst_sequence
from spikeguard_protocol import BatchDetail
from spikeguard_server.entities import IncidentRow
from spikeguard_server.http.bodies.run_shapes import Number, SegmentRef, Shape


class TokenHistogramBody(Shape):
    """The tokens of a batch beside those of the batches before, in shares of 1."""

    counted: int = Field(description="tokens of this batch on this rank")
    before: int = Field(description="batches that it is compared with")
    before_last: int = Field(description="the last step of these")
    bins: list[Number] = Field(
        description="by how common a token was before: 0 those that did not occur then, 1 the "
        "commonest, 2 the next two, 3 the next four, ..."
    )
    ids: list[int] = Field(description="tokens that stand out, the most first")
    shares: list[Number] = Field(description="of each in this batch")
    shares_before: list[Number]
    texts: list[str] = Field(description="of each; empty where the job tells no text")


class BatchDetailBody(Shape):
    """What lay in the batch of one step on one rank."""

    step: int
    rank: int
    position: int = Field(description="in the data order")
    names: list[str] = Field(description="of documents, as the job's `name_batch` says")
    names_cut: int = Field(description="names that are missing here, or were shortened")
    sequences: int
    worst: int | None = Field(description="index of the sequence that stands out")
    sequence_loss: Number | None = Field(
        description="its loss, nats per token; null: the loop shows none, and the worst is the one "
        "with the rarest tokens"
    )
    snippet: str | None = Field(description="its beginning; null: the job tells no text")
    histogram: TokenHistogramBody | None


class BatchEvidence(Shape):
    """What lay in the batches near an onset, as far as the agent told of it."""

    onset_step: int
    segment: SegmentRef
    shown: int | None = Field(
        description="which of `batches` to look at first; null: there are none"
    )
    worst: str | None = Field(description="of that one the sequence that stands out, a sentence")
    contrast: str | None = Field(description="of that one how its tokens differ, a sentence")
    batches: list[BatchDetailBody] = Field(description="by step and rank")


def batch_evidence(row: IncidentRow, found: Sequence[BatchDetail]) -> BatchEvidence:
    """What lay in the batches near an onset, and which of them to look at first."""
    shown = onset_batch(found, row.incident.onset_step)
    return BatchEvidence(
        onset_step=row.incident.onset_step,
        segment=SegmentRef.model_validate(row.incident.segment),
        shown=None if shown is None else found.index(shown),
        worst=None if shown is None else worst_sequence(shown),
        contrast=None if shown is None else contrast(shown.histogram),
        batches=[BatchDetailBody.model_validate(detail) for detail in found],
    )
