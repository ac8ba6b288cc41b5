"""The events that the monitor emits about a run, in order. Nothing here is ever revised, a
later event says it anew. At most one incident of a run is open at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from spikeguard_core.suspicion import Ranking
from spikeguard_protocol import BatchRange, Kind, Outcome


@dataclass(frozen=True, slots=True)
class Trend:
    """Where a signal was heading, straight in the logarithm of the step: at step s
    `level + slope * (step + 1) * log((s + 1) / (step + 1))`; a loss in nats, `band` in scales."""

    step: int  # the last step that shaped it
    level: float  # location at `step`, in the signal's unit
    slope: float  # change of location a step, at `step`; never rising for a loss
    scale: float  # robust standard deviation around the location
    band: float = 3.0  # half width of the band of usual values, in scales

    def at(self, step: int) -> float:
        """The extrapolated location at `step`."""
        start = max(self.step, 0) + 1
        return self.level + self.slope * start * math.log((max(step, 0) + 1) / start)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What kind an incident is held to be at one step, and why."""

    kind: Kind
    confidence: float  # probability that `kind` is right, in [0, 1]
    reason: str  # a sentence for a person: "loss is 0.31 above trend and falling"


@dataclass(frozen=True, slots=True)
class Precursor:
    """A leading signal left its baseline; the loss has not moved yet."""

    step: int
    signal: str
    value: float
    z: float  # robust standard deviations; inf for a non-finite value


@dataclass(frozen=True, slots=True)
class Opened:
    """An incident began."""

    step: int  # at which it was detected
    onset_step: int  # its first anomalous step
    onset_batches: BatchRange | None
    signal: str  # the first that moved
    z: float  # of that signal; inf for a non-finite value
    pre_loss: float | None  # trend of the loss just before the onset
    trend: Trend | None  # of the loss
    judgement: Judgement
    first_moves: Mapping[str, int] = field(
        default_factory=dict
    )  # signal -> its first anomalous step
    dropped: bool = False  # the agent kept the onset's update out of the weights
    causes: Ranking = ()  # what may have started it, as far as the evidence goes by then
    peak_step: int | None = None  # of `peak_loss`
    peak_loss: float | None = None  # highest finite loss so far; None when there was none
    excess: float | None = None  # `Episode.excess` at `step`, nats


@dataclass(frozen=True, slots=True)
class Revised:
    """The open incident was looked at again; sent whenever kind, reason or peak changed."""

    step: int
    judgement: Judgement
    peak_step: int
    peak_loss: float | None  # highest finite loss so far; None when there was none
    excess: float | None  # `Episode.excess` at `step`, nats
    worst_z: Mapping[str, float] = field(default_factory=dict)  # signal -> largest z so far
    settled: bool = False  # the horizon was reached: the kind will not change without new evidence
    causes: Ranking = ()
    apart_since: int | None = None  # first step whose update may have parted the ranks, if it did
    trend: Trend | None = None  # by which the loss is judged now


@dataclass(frozen=True, slots=True)
class Recurred:
    """After a command, or a restart from before it, the spike came back, or never left."""

    step: int
    onset_step: int
    onset_batches: BatchRange | None
    judgement: Judgement
    causes: Ranking = ()
    apart_since: int | None = None  # the same as of `Revised`
    excess: float | None = None  # the same
    stayed: bool = False  # it never left: `onset_step` is the one from before the command


@dataclass(frozen=True, slots=True)
class Closed:
    """The open incident is over."""

    step: int
    outcome: Outcome
    judgement: Judgement
    causes: Ranking = ()
    excess: float | None = None  # the same as of `Revised`


@dataclass(frozen=True, slots=True)
class LoneValue:
    """One value of a signal stood out, and the next was usual again. It opens nothing."""

    signal: str
    step: int
    value: float
    usual: float
    z: float


Event = Precursor | LoneValue | Opened | Revised | Recurred | Closed
