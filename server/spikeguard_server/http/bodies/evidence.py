"""Bodies about an incident's evidence: norms by layer, and the content of its batches."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from spikeguard_core.diagnosis.batch_evidence import contrast, onset_batch, worst_sequence
from spikeguard_core.diagnosis.cause.layers import LayerRow
from spikeguard_core.diagnosis.layer_map import layer_map
from spikeguard_protocol import BatchDetail
from spikeguard_server.entities import IncidentRow
from spikeguard_server.http.bodies.run_shapes import Number, SegmentRef, Shape


class LayerMapBody(Shape):
    """Norms by layer as a map: each against its own usual norm, many layers as few rows."""

    rows: list[str] = Field(description="a layer, a block or some blocks, in the model's order")
    ratios: list[list[Number | None]] = Field(description="by row, as long as `steps`")
    layers: int = Field(description="that the rows stand for")
    first_row: int | None = Field(description="of the layer that moved first; null: none did")
    sentence: str = Field(description="which layer moved first, without its full stop")


class LayersBody(Shape):
    """Norms by layer at the steps that were told, of the segment in which the spike began."""

    signal: str
    onset_step: int
    segment: SegmentRef
    layers: list[str]
    steps: list[int]
    norms: list[list[Number | None]] = Field(description="by step, as long as `layers`")
    map: LayerMapBody | None = Field(description="the same to look at; null: nothing was told")


class TokenHistogramBody(Shape):
    """The tokens of a batch beside those of the batches before, in shares of 1."""

    counted: int = Field(description="tokens of this batch on this rank")
    before: int = Field(description="batches that it is compared with")
    before_last: int = Field(description="the last step of these")
    bins: list[Number] = Field(
        description="by how common a token was before: 0 those that did not occur then, 1 the "
        "commonest, 2 the next two, 3 the next four, ..."
    )
    bins_before: list[Number] = Field(description="the same of the batches before")
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


def layers_body(row: IncidentRow, signal: str, found: Sequence[LayerRow]) -> LayersBody:
    """Norms by layer as a table; a layer that a step did not tell of has no norm there."""
    names = list(dict.fromkeys(name for told in found for name in told.norms))
    return LayersBody(
        signal=signal,
        onset_step=row.incident.onset_step,
        segment=SegmentRef.model_validate(row.incident.segment),
        layers=names,
        steps=[told.step for told in found],
        norms=[[told.norms.get(name) for name in names] for told in found],
        map=_layer_map(row, found),
    )


def _layer_map(row: IncidentRow, found: Sequence[LayerRow]) -> LayerMapBody | None:
    shown = layer_map(found, row.incident.onset_step, first=row.incident.first_layer)
    if shown is None:
        return None
    return LayerMapBody(
        rows=list(shown.rows),
        ratios=[list(ratios) for ratios in shown.ratios],
        layers=shown.layers,
        first_row=shown.first_row,
        sentence=shown.sentence,
    )


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
