"""A detector of its own package: a spike is a loss of so many times the newest median."""

from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median
from typing import ClassVar

from spikeguard_server.detectors import Setting, Trend, Values, Verdict


@dataclass
class TimesMedian:
    version: ClassVar[int] = 1
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("factor", 1.2, 1.01, 100.0, "times the median", "loss that is a spike"),
        Setting("rows", 50, 8, 1_000, "rows", "newest calm rows that count", whole=True),
    )
    calm: list[tuple[int, float]] = field(default_factory=list)  # all fields are saved

    def look(self, step: int, value: float, settings: Values) -> tuple[Verdict, float]:
        band = self.band(step, settings)
        z = (value - band.level) / band.scale if band else 0.0
        if not isfinite(value) or (band and value > settings["factor"] * band.level):
            return Verdict.SPIKE, z if isfinite(value) else inf
        self.calm = [*self.calm, (step, value)][-int(settings["rows"]) :]
        return (Verdict.CALM if band else Verdict.UNKNOWN), z

    def band(self, step: int, settings: Values) -> Trend | None:
        if len(self.calm) < 8:
            return None
        level = median(value for _, value in self.calm)
        return Trend(step, level, 0.0, level * (settings["factor"] - 1.0) / 3.0)

    def cut(self, step: int) -> None:
        self.calm = [row for row in self.calm if row[0] < step]

    def settle(self, step: int, level: float) -> None:
        self.calm = [(step, level)] * len(self.calm)
