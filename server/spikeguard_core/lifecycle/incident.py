"""An incident as policy and report see it: the folded record of its events, and what it says about
the damage: where it began, how far it reaches. A step is a step of the segment of the newest onset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from spikeguard_core.diagnosis.cause.layers import FirstLayer
from spikeguard_core.diagnosis.evidence import REPLICAS_APART, rise_of
from spikeguard_core.diagnosis.forecast import told_height
from spikeguard_core.events import Trend
from spikeguard_core.suspicion import Ranking, Suspicion
from spikeguard_protocol import BatchRange, Cause, IncidentState, Kind, Outcome, SegmentId, Signal

LOOKBACK_STEPS = 20  # a signal that moved earlier than this before the onset is another story
FEW_STEPS = 20  # from the cause to the peak, of damage that few batches did
STANDS_OUT = 4 / 3  # half widths of the band above the trend at which a loss still stands out
FAR_BELOW = 25.0  # times that, of a loss that exploded downwards
HARDER_PART = 1 / 3  # of the rise: of harder data 0.4 to 0.5 was left when it settled
AFTERMATH_STEPS = 500  # after the peak: what a spike left behind is judged by then
LASTING_CAUSES = frozenset({Cause.WEIGHT_CORRUPTION, Cause.STALE_SECOND_MOMENT})
SURE_CAUSE = 0.8  # from here on it is taken for certain: `benchmarks.causes` had all of 59 right
FATAL = (Signal.LOSS, Signal.GRAD_NORM, Signal.GRAD_NORM_AT_STEP, Signal.UPDATE_DROPPED)


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


def aftermath_of(onset_step: int) -> int:
    """Steps after its peak at which a spike is judged: a trend tells half as far ahead as the run
    had come."""
    return min(AFTERMATH_STEPS, max(100, onset_step // 2))


def cause_step(incident: Incident) -> int:
    """The earliest step at which any signal moved for this spike.

    Ranks that have parted did so since the last comparison, however far back that lies.
    """
    onset, parted = incident.newest_onset_step, incident.apart_since
    first = onset if parted is None else min(onset, parted)
    return first if incident.recurred_step is not None else min(first, began_step(incident))


def began_step(incident: Incident) -> int:
    """The earliest step at which any signal moved before it came back."""
    onset = incident.onset_step
    early = [s for s in incident.first_moves.values() if onset - LOOKBACK_STEPS <= s <= onset]
    return min([onset, *early])


def rise_batches(incident: Incident) -> BatchRange | None:
    """What the steps from its onset to its peak before any command trained on."""
    batches, first = incident.onset_batches, incident.first_peak_step
    peak = incident.peak_step if first is None else first
    return batches and rise_of(batches, peak - incident.onset_step)


def lasting_cause(causes: Ranking) -> Suspicion | None:
    """The cause, where it is sure and of a kind whose damage training does not heal."""
    likely = next(iter(causes), None)
    if likely is None or likely.cause not in LASTING_CAUSES or likely.confidence < SURE_CAUSE:
        return None
    return likely


def few_batches(incident: Incident) -> bool:
    """Whether the damage looks as if a few batches had done it.

    A loss that settled, or broke into the non-finite, within a few steps of the cause. After a
    recurrence the peak is the first spike's, so the newest anomalous step stands for it.
    """
    if incident.kind is not Kind.LINGERING and not had_non_finite(incident):
        return False
    end = incident.peak_step if incident.recurred_step is None else incident.newest_onset_step
    return end - cause_step(incident) <= FEW_STEPS


def optimizer_suspect(incident: Incident) -> bool:
    """Whether Adam's second moment moved before the loss did, or going back failed twice."""
    moved = incident.first_moves.get(Signal.ADAM_V_NORM)
    loss_moved = incident.first_moves.get(Signal.LOSS, incident.onset_step)
    return incident.recurrences >= 2 or (moved is not None and moved < loss_moved)


def had_non_finite(incident: Incident) -> bool:
    """Whether the loss or its gradient is, or was, NaN or infinite."""
    worst = [incident.worst_z.get(signal, 0.0) for signal in FATAL]
    excess = 0.0 if incident.excess is None else incident.excess
    return not all(map(math.isfinite, [*worst, excess]))


def rose(incident: Incident) -> bool:
    """Whether the loss itself rose, or exploded downwards: its finite peak is far off the trend."""
    if incident.peak_loss is None or not math.isfinite(incident.peak_loss):
        return False
    if incident.trend is None:
        return incident.signal == Signal.LOSS
    return stands_out(incident, incident.peak_loss - incident.trend.at(incident.peak_step))


def lastingly_higher(incident: Incident) -> bool:
    """Whether the loss settled no lower than `HARDER_PART` as high as it rose: what raised it goes
    on, as where the data has become harder and the model learns it."""
    trend = incident.trend
    if incident.kind is not Kind.LINGERING or trend is None:
        return False
    if incident.excess is None or incident.peak_loss is None:
        return False
    return incident.excess >= (incident.peak_loss - trend.at(incident.peak_step)) * HARDER_PART


def stands_out(incident: Incident, excess: float | None) -> bool:
    """Whether a loss `excess` nats above the trend is still far out; unknown counts as yes."""
    trend = incident.trend
    if excess is None or trend is None or not math.isfinite(excess):
        return True
    least = STANDS_OUT * trend.band * trend.scale
    return excess > least or -excess > FAR_BELOW * least


def steps_behind(incident: Incident) -> int | None:
    """Steps ago, to two digits, that the trend was where the loss is now: what leaving it up costs.
    None where the trend does not fall or the loss does not lie above it."""
    trend, excess = incident.trend, incident.excess
    if trend is None or excess is None or not 0.0 < excess < math.inf or trend.slope >= 0.0:
        return None
    here, folds = incident.newest_step + 1, excess / (-trend.slope * (max(trend.step, 0) + 1))
    return int(float(f"{here * -math.expm1(-folds):.2g}"))
