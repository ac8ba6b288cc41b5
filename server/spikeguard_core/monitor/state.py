"""What the monitor of one run remembers, as plain dataclasses: the types of their fields say how it
is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from spikeguard_core.detection.loss_test import LossTest
from spikeguard_core.detection.norms import LEADING, Leading, leading_of
from spikeguard_core.detection.own_signals import OwnChoice, OwnSignal, own_signals_of
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.diagnosis.evidence import Traces
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

    choice: DetectorChoice = field(default_factory=DetectorChoice)
    test: LossTest = field(default_factory=LossTest)
    leading: dict[str, Leading] = field(
        default_factory=lambda: {name: leading_of(name) for name in LEADING}
    )
    episode: Episode | None = None
    newest_step: int | None = None
    judged_step: int | None = None  # the newest whose loss was judged
    attentive_until: int | None = None
    drops: int = 0  # dropped updates in a row
    skipped: SkippedRows = field(default_factory=SkippedRows)
    traces: Traces = field(default_factory=Traces)  # newest rows, for the cause of what may come
    first_judged: int | None = None  # step of the first loss that could be judged
    own: dict[str, OwnSignal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own = own_signals_of(self.choice.own, self.own)

    @property
    def settings(self) -> DetectionSettings:
        return self.choice.settings

    @property
    def frozen_by(self) -> Episode | None:
        """The incident whose samples no baseline learns from; None where there is none."""
        episode = self.episode
        return None if episode is None or episode.calmed or episode.levelled else episode

    def settings_of(self, name: str) -> DetectionSettings:
        """The constants that a leading signal is judged by."""
        own = self.choice.precursors.get(name)
        return self.settings if own is None else replace(self.settings, precursor_z=own)

    def beside_loss(self) -> Iterable[tuple[str, Leading | OwnSignal]]:
        """The signals beside the loss, with their names."""
        return chain[tuple[str, Leading | OwnSignal]](self.leading.items(), self.own.items())

    def signal_of(self, name: str) -> Leading | OwnSignal | None:
        """A signal beside the loss; what the policy names comes first."""
        return self.own.get(name) or self.leading.get(name)
