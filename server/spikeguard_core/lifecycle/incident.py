"""An incident as policy and report see it: the folded record of its events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from spikeguard_core.diagnosis.cause.layers import FirstLayer
from spikeguard_core.diagnosis.evidence import REPLICAS_APART
from spikeguard_core.diagnosis.forecast import told_height
from spikeguard_core.events import Trend
from spikeguard_core.suspicion import Ranking
from spikeguard_protocol import BatchRange, IncidentState, Kind, Outcome, SegmentId, Signal


@dataclass(frozen=True, slots=True)
class Incident:
    """One spike, from onset to close."""

    number: int  # from 1, within the run
    state: IncidentState
    segment: SegmentId  # where the onset lies
    onset_step: int
    onset_batches: BatchRange | None
    detected_step: int
    peak_step: int
    newest_step: int  # the newest step that was judged
    kind: Kind
    confidence: float
    reason: str
    signal: str  # the first that moved
    pre_loss: float | None
    peak_loss: float | None
    excess: float | None  # loss above trend at `newest_step`, nats: `Episode.excess`
    trend: Trend | None
    dropped: bool  # the agent kept the onset's update out
    settled: bool  # the kind will not change without new evidence
    zero: bool = False  # losses of exactly 0 opened it, which some tools log for NaN
    recurrences: int = 0  # times it was there again after a command, or after a restart
    came_back: bool = False  # it had been gone before one of these
    first_peak_step: int | None = None  # of the rise before any command; None before one
    worst_z: Mapping[str, float] = field(default_factory=dict)
    first_moves: Mapping[str, int] = field(default_factory=dict)
    closed_step: int | None = None
    outcome: Outcome | None = None
    anomalous_step: int | None = None  # the newest step that still stood out
    recurred_segment: SegmentId | None = None  # where it came back the last time
    recurred_step: int | None = None  # the onset of that
    recurred_batches: BatchRange | None = None
    causes: Ranking = ()  # what may have started it, the likeliest first
    first_layer: FirstLayer | None = None  # that moved, where norms by layer are sent

    @property
    def stuck(self) -> bool:
        """Whether so many updates in a row were dropped that the weights stood still."""
        return Signal.UPDATE_DROPPED in self.worst_z

    @property
    def height(self) -> str | None:
        """`excess` in words; None where it is not known."""
        if self.excess is None or not math.isfinite(self.excess) or self.trend is None:
            return None
        return told_height(self.excess, self.trend, self.newest_step)

    @property
    def apart(self) -> bool:
        """Whether ranks were found that no longer held the weights of the others."""
        return REPLICAS_APART in self.worst_z

    @property
    def apart_since(self) -> int | None:
        """The first step whose update may have parted the ranks; None once they are equal again."""
        return self.first_moves.get(REPLICAS_APART)

    @property
    def newest_segment(self) -> SegmentId:
        """Where it began, or began anew."""
        return self.recurred_segment or self.segment

    @property
    def newest_onset_step(self) -> int:
        """The step at which it began, or began anew."""
        return self.onset_step if self.recurred_step is None else self.recurred_step

    @property
    def newest_onset_batches(self) -> BatchRange | None:
        """What that step consumed."""
        return self.recurred_batches if self.came_back else self.onset_batches
