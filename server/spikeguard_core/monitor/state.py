"""The monitor's whole state, as plain dataclasses: the types of their fields say how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spikeguard_core.detection.loss_test import LossTest
from spikeguard_core.detection.norms import Leading, leading_of
from spikeguard_core.detection.own_signals import OwnChoice, OwnSignal, own_signals_of
from spikeguard_core.detection.sample import Sample
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.diagnosis.evidence import RANKS_LOST_STEP, Traces
from spikeguard_core.diagnosis.incident_tracker import Episode
from spikeguard_core.diagnosis.silent_failures import SkippedRows


@dataclass(frozen=True, slots=True)
class DetectorChoice:
    """What the policy says of detection: constants, and how single signals are judged."""

    settings: DetectionSettings = field(default_factory=DetectionSettings)
    precursors: Mapping[str, float] = field(default_factory=dict)  # leading signal -> threshold
    own: Mapping[str, OwnChoice] = field(default_factory=dict)  # signals of the user's own


@dataclass(slots=True)
class State:
    """Everything that a monitor remembers."""

    settings: DetectionSettings = field(default_factory=DetectionSettings)
    test: LossTest = field(default_factory=LossTest)
    precursors: dict[str, float] = field(default_factory=dict)  # signal -> threshold of its own
    leading: dict[str, Leading] = field(default_factory=dict)
    episode: Episode | None = None
    newest_step: int | None = None
    judged_step: int | None = None  # the newest whose loss was judged
    attentive_until: int | None = None
    drops: int = 0  # dropped updates in a row
    skipped: SkippedRows = field(default_factory=SkippedRows)
    traces: Traces = field(default_factory=Traces)  # newest rows, for the cause of what may come
    first_judged: int | None = None  # step of the first loss that could be judged
    own: dict[str, OwnSignal] = field(default_factory=lambda: own_signals_of({}, {}))

    @property
    def frozen_by(self) -> Episode | None:
        """The incident whose samples no baseline learns from; None where there is none."""
        episode = self.episode
        return None if episode is None or episode.calmed or episode.levelled else episode

    def settings_of(self, name: str) -> DetectionSettings:
        """The constants that a leading signal is judged by."""
        own = self.precursors.get(name)
        return self.settings if own is None else replace(self.settings, precursor_z=own)

    def choose(self, choice: DetectorChoice) -> None:
        """Judge by `choice` from the next row on; what is known of the run stays."""
        self.settings, self.precursors = choice.settings, dict(choice.precursors)
        self.own = own_signals_of(choice.own, self.own)

    def signal_of(self, name: str) -> Leading | OwnSignal | None:
        """A signal beside the loss; what the policy names comes first."""
        return self.own.get(name) or self.leading.get(name)

    def leading_of(self, name: str) -> Leading:
        """What is known of a leading signal; nothing yet, if it was never seen."""
        known = self.leading.get(name)
        if known is None:
            known = self.leading[name] = leading_of(name)
        return known


# Ranks that lost step with each other reduce nothing any more: from there on the loss is that of
# rank 0 alone, noisier by the square root of their number, and nothing known of the old one judges
# it.


def begins_alone(state: State, sample: Sample) -> bool:
    """Whether this sample is rank 0's alone, and the one before was not."""
    return sample.values.get(RANKS_LOST_STEP, 0.0) >= 1.0 and not _alone(state)


def _alone(state: State) -> bool:
    """Whether the newest sample was rank 0's."""
    marked = state.traces.of[RANKS_LOST_STEP].steps
    return bool(marked) and marked[-1] == state.newest_step
