"""Single rows that stand out: outlier batches, and noise that only looks like them.

Law: sequential and pure per row, with a memory of a few signs; it opens nothing itself. A batch of
odd data raises the loss and hardly ever lowers it, so rows that stand out below are the control:
noise that throws rows as far down as up is heavy-tailed, and a row far up is then no event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from spikeguard_protocol import BatchRange
from spikeguard_server.domain.detection.baseline import median
from spikeguard_server.domain.detection.robust_lines import NORMAL_MAD
from spikeguard_server.domain.detection.settings import DetectionSettings

NEAR = 0.5  # part of a row's deviation from which another one stands beside it
KEPT = 16  # newest lone rows whose side is remembered
FEW_BELOW = 0.25  # share of them below the line beyond which the noise has heavy tails
USUAL = 6  # of them above the line: outlier batches are usual in this run
MIDDLE = 64  # rows before one, whose middle half it is then judged by


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row that may be the onset of a spike, or stand alone."""

    step: int
    value: float
    z: float
    batches: BatchRange | None


@dataclass(slots=True)
class Lone:
    """The row that may stand alone, and on which side the ones before it did."""

    suspect: Suspect | None = None  # the row before, if far off; z in narrow scales
    alike: int = 0  # rows running that are about as far off as it, itself among them
    above: list[bool] = field(default_factory=list)  # newest rows that stood out alone

    def look(self, row: Suspect, settings: DetectionSettings) -> Suspect | None:
        """Take the next row, its z in narrow scales; the row before, if it stood out alone."""
        before, alone = self.suspect, self.alike == 1
        stays = before is not None and _part(row.z, before.z) > NEAR
        again = before is not None and stays and _part(before.z, row.z) > NEAR
        far = abs(row.z) >= settings.lone_z
        self.suspect = row if far else None
        self.alike = (self.alike + 1 if again else 1) if far else 0
        return before if alone and not stays else None

    def is_event(self, row: Suspect, before: Sequence[float], settings: DetectionSettings) -> bool:
        """Whether a row that stood out alone is an outlier batch; it is remembered either way.

        `before`: the calm rows before it. Where rows often stand out, and seldom but above, one
        has to clear the middle of the noise only, not its tail as well.
        """
        below = len(self.above) - sum(self.above)
        heavy = below > max(1.0, FEW_BELOW * len(self.above))
        usual = len(self.above) - below >= USUAL
        self.above = [*self.above, row.z > 0.0][-KEPT:]
        if heavy or row.z <= 0.0:
            return False
        limit = settings.outlier_z
        return row.z >= limit or (usual and middle_z(row.value, before) >= limit)

    def clear(self) -> None:
        """Forget the row before; what the noise is like stays known."""
        self.suspect, self.alike = None, 0


def middle_z(value: float, before: Sequence[float]) -> float:
    """Deviations of the middle half of the rows before, from their median; 0 if they are alike."""
    centre = median(before)
    scale = NORMAL_MAD * median([abs(row - centre) for row in before])
    return (value - centre) / scale if scale > 0.0 else 0.0


def _part(z: float, whole: float) -> float:
    """`z` as a part of another deviation; negative on the other side."""
    return z / whole if whole else inf
