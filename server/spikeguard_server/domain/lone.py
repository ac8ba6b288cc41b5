"""Rows that stand out alone: the outlier batches among them, and the noise that only looks so.

Law: sequential and pure per row, with a memory of a few signs; it opens nothing itself. A batch of
odd data raises the loss and hardly ever lowers it, so rows that stand out below are the control:
noise that throws rows as far down as up is heavy-tailed, and a row far up is then no event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from spikeguard_protocol import BatchRange
from spikeguard_server.domain.detection_settings import DetectionSettings

NEAR = 0.5  # part of a row's deviation from which another one stands beside it
KEPT = 16  # newest lone rows whose side is remembered
FEW_BELOW = 0.25  # share of them below the line beyond which the noise has heavy tails


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

    def is_event(self, row: Suspect, settings: DetectionSettings) -> bool:
        """Whether a row that stood out alone is an outlier batch; it is remembered either way."""
        below = len(self.above) - sum(self.above)
        heavy = below > max(1.0, FEW_BELOW * len(self.above))
        self.above = [*self.above, row.z > 0.0][-KEPT:]
        return row.z >= settings.outlier_z and not heavy

    def clear(self) -> None:
        """Forget the row before; what the noise is like stays known."""
        self.suspect, self.alike = None, 0


def _part(z: float, whole: float) -> float:
    """`z` as a part of another deviation; negative on the other side."""
    return z / whole if whole else inf
