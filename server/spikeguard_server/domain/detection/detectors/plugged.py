"""Lets a detector other than the default judge the loss inside the monitor.

Invariants: constant memory; the rows of an open incident never reach the detector. Rows that were
calm are kept, so that another detector, chosen later, begins with what this one has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spikeguard_protocol import BatchRange
from spikeguard_server.domain.detection.baseline import gap_of
from spikeguard_server.domain.detection.detectors.contract import Detector, Values, Verdict
from spikeguard_server.domain.detection.outliers import Suspect
from spikeguard_server.domain.detection.own_signals import OwnChoice
from spikeguard_server.domain.detection.settings import DetectionSettings
from spikeguard_server.domain.events import Trend

RECENT_ROWS = 40  # rows that are looked back at when an incident opens
KEPT = 128  # calm rows


@dataclass(frozen=True, slots=True)
class Unread:
    """The state of a detector whose class is not known here yet."""

    form: Any


@dataclass(frozen=True, slots=True)
class Plugin:
    """A detector that was chosen, with all its settings."""

    name: str
    kind: type[Detector]
    values: Values


@dataclass(frozen=True, slots=True)
class DetectorChoice:
    """What judges a run: the constants of detection, and the detector where it is not the default.

    The constants count with any detector for what comes after the onset.
    """

    settings: DetectionSettings = field(default_factory=DetectionSettings)
    plugin: Plugin | None = None
    precursors: Mapping[str, float] = field(default_factory=dict)  # of leading signals: threshold
    own: Mapping[str, OwnChoice] = field(default_factory=dict)  # signals of the user's own


@dataclass(slots=True)
class Plugged:
    """The test of the loss by `inner`."""

    name: str
    version: int
    inner: Detector
    values: dict[str, float]
    rows: list[tuple[int, float]] = field(default_factory=list)  # newest finite rows
    calm: list[tuple[int, float]] = field(default_factory=list)  # newest that were calm
    held: list[Suspect] = field(default_factory=list)  # far off, not yet confirmed
    outlier: Suspect | None = None  # set with the verdict OUTLIER
    last_z: float = 0.0

    @classmethod
    def of(cls, plugin: Plugin, known: Sequence[tuple[int, float]]) -> Plugged:
        """A new one, which has learnt the calm rows that are `known`."""
        found = cls(plugin.name, plugin.kind.version, plugin.kind(), dict(plugin.values))
        for step, value in known:
            found.look(step, value, None, DetectionSettings())
        found.clear()
        return found

    def look(
        self,
        step: int,
        value: float,
        batches: BatchRange | None,
        settings: DetectionSettings,  # noqa: ARG002 - of the default detector
    ) -> tuple[Verdict, float]:
        """Judge one finite row of the loss. Returns verdict and z."""
        self.rows.append((step, value))
        del self.rows[:-RECENT_ROWS]
        verdict, z = self.inner.look(step, value, self.values)
        self.last_z = z
        if verdict is Verdict.HELD:
            self.held.append(Suspect(step, value, z, batches))
            del self.held[:-RECENT_ROWS]
        elif verdict is not Verdict.SPIKE:
            self._calm_again(step, value, verdict)
        return verdict, z

    def _calm_again(self, step: int, value: float, verdict: Verdict) -> None:
        if verdict is Verdict.OUTLIER and self.held:
            self.outlier = self.held[-1]
        self.held.clear()
        self.calm.append((step, value))
        del self.calm[:-KEPT]

    def onset(self, row: Suspect) -> Suspect:
        """The first row of the spike that `row` confirmed."""
        return self.held[0] if self.held else row

    def clear(self) -> None:
        self.held.clear()
        self.outlier, self.last_z = None, 0.0

    @property
    def knows(self) -> bool:
        """Whether rows can be judged."""
        return bool(self.calm) and self.inner.band(self.calm[-1][0], self.values) is not None

    @property
    def gap(self) -> float:
        """Median distance of rows, in steps; 1 where it is not known."""
        return gap_of([step for step, _ in self.calm])

    def trend(self, step: int, ahead: int) -> Trend | None:  # noqa: ARG002 - as `TrendTest`
        """Where the loss is expected from `step` on."""
        return self.inner.band(step, self.values)

    def known(self) -> list[tuple[int, float]]:
        """The newest calm rows."""
        return list(self.calm)

    def restart(self) -> None:
        """Forget every row."""
        self.rows, self.calm = [], []
        self.inner = type(self.inner)()
        self.clear()

    def drop_waiting(self) -> None:
        """Nothing waits beside `held`, which `clear` forgets."""

    def cut(self, step: int, settings: DetectionSettings) -> None:  # noqa: ARG002 - as `TrendTest`
        """Forget every row at `step` or later: the run went back."""
        self.calm = [row for row in self.calm if row[0] < step]
        self.inner.cut(step)

    def settle(self, step: int, level: float, settings: DetectionSettings) -> None:  # noqa: ARG002
        """Go on at `level`, as noisy as before."""
        self.inner.settle(step, level)
