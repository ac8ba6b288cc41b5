"""Two detectors from the textbook: a z-score over a rolling window, and one over an EWMA.

Both keep what is far off, or not finite, out of their own statistics, and judge a row by what was
known before it. A genuine shift of the level is therefore learnt only when the incident ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from spikeguard_server.domain.detection.baseline import median
from spikeguard_server.domain.detection.detectors.contract import Setting, Values, Verdict
from spikeguard_server.domain.detection.robust_lines import NORMAL_MAD
from spikeguard_server.domain.events import Trend

LEAST = 1e-12  # scale
THRESHOLD = Setting(
    "threshold", 6.0, 1.0, 1_000.0, "deviations", "distance above the centre that is an anomaly"
)
CONFIRM_ROWS = Setting(
    "confirm_rows", 1, 1, 20, "rows", "anomalies in a row that open an incident", whole=True
)
FLOOR = Setting(
    "floor", 0.002, 0.0, 1.0, "part of the centre",
    "least deviation: a flat signal has none of its own",
)  # fmt: skip


@dataclass(slots=True)
class Anomalies:
    """Rows above the threshold, in a row."""

    rows: int = 0

    def judge(self, z: float, settings: Values) -> Verdict:
        """What one more row amounts to that lies `z` deviations above the centre."""
        if z < settings[THRESHOLD.name]:
            self.rows = 0
            return Verdict.CALM
        self.rows += 1
        if self.rows < settings[CONFIRM_ROWS.name]:
            return Verdict.HELD
        self.rows = 0
        return Verdict.SPIKE


def deviation(value: float, centre: float, scale: float, settings: Values) -> float:
    """The distance of `value` above `centre`, in deviations; infinite if it is not finite."""
    if not math.isfinite(value):
        return math.inf
    return (value - centre) / floored(scale, centre, settings)


def floored(scale: float, centre: float, settings: Values) -> float:
    """`scale`, but no less than the least."""
    return max(scale, settings[FLOOR.name] * abs(centre), LEAST)


@dataclass(slots=True)
class ZScore:
    """z = (x - centre) / scale over the newest calm rows.

    The mean and the sample's standard deviation; with `median` = 1 the median and 1.4826 times the
    median absolute deviation (Hampel, JASA 69, 1974), which outliers in the window do not move.
    """

    version: ClassVar[int] = 1
    settings: ClassVar[tuple[Setting, ...]] = (
        THRESHOLD,
        Setting("window", 128, 4, 2_048, "rows", "newest calm rows that count", whole=True),
        Setting("warm_up_rows", 64, 2, 2_048, "rows", "until the first judgement", whole=True),
        CONFIRM_ROWS,
        Setting("median", 0, 0, 1, "0 or 1", "1: median and MAD, not mean and SD", whole=True),
        FLOOR,
    )
    rows: list[tuple[int, float]] = field(default_factory=list)
    anomalies: Anomalies = field(default_factory=Anomalies)

    def look(self, step: int, value: float, settings: Values) -> tuple[Verdict, float]:
        if (found := self._found(settings)) is None and math.isfinite(value):
            self.rows.append((step, value))
            return Verdict.UNKNOWN, 0.0
        centre, scale = found or (0.0, 0.0)
        z = deviation(value, centre, scale, settings)
        verdict = Verdict.SPIKE if z == math.inf else self.anomalies.judge(z, settings)
        if verdict is Verdict.CALM:
            self.rows.append((step, value))
            del self.rows[: -int(settings["window"])]
        return verdict, z

    def band(self, step: int, settings: Values) -> Trend | None:
        if (found := self._found(settings)) is None:
            return None
        return Trend(step, found[0], 0.0, floored(found[1], found[0], settings))

    def cut(self, step: int) -> None:
        self.rows = [row for row in self.rows if row[0] < step]
        self.anomalies = Anomalies()

    def settle(self, step: int, level: float) -> None:  # noqa: ARG002 - the contract's
        by = level - median([value for _, value in self.rows]) if self.rows else 0.0
        self.rows = [(at, value + by) for at, value in self.rows]
        self.anomalies = Anomalies()

    def _found(self, settings: Values) -> tuple[float, float] | None:
        """Centre and scale; None while there are too few rows."""
        least = min(settings["warm_up_rows"], settings["window"])
        if len(self.rows) < max(least, 2):
            return None
        values = [value for _, value in self.rows[-int(settings["window"]) :]]
        if settings["median"]:
            centre = median(values)
            return centre, NORMAL_MAD * median([abs(value - centre) for value in values])
        centre = math.fsum(values) / len(values)
        square = math.fsum((value - centre) * (value - centre) for value in values)
        return centre, math.sqrt(square / (len(values) - 1))


@dataclass(slots=True)
class Ewma:
    """z = (x - m) / sqrt(v) with an exponentially weighted mean m and variance v of calm rows.

    d = x - m;  m <- m + a d;  v <- (1 - a)(v + a d^2)   (Finch, "Incremental calculation of
    weighted mean and variance", 2009, section 9; the chart is Roberts', Technometrics 1, 1959).
    a = 1 - 2^(-1 / half_life), and 1 / n for the n-th row as long as that is more, which makes the
    first rows a plain mean instead of weighting the very first one for ever.
    """

    version: ClassVar[int] = 1
    settings: ClassVar[tuple[Setting, ...]] = (
        THRESHOLD,
        Setting("half_life", 32.0, 1.0, 10_000.0, "rows", "after which a row counts half"),
        Setting("warm_up_rows", 64, 2, 10_000, "rows", "until the first judgement", whole=True),
        CONFIRM_ROWS,
        FLOOR,
    )
    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    anomalies: Anomalies = field(default_factory=Anomalies)

    def look(self, step: int, value: float, settings: Values) -> tuple[Verdict, float]:  # noqa: ARG002
        z = deviation(value, self.mean, math.sqrt(self.variance), settings)
        if z == math.inf:
            return Verdict.SPIKE, z
        if self.count < settings["warm_up_rows"]:
            self._learn(value, settings)
            return Verdict.UNKNOWN, 0.0
        verdict = self.anomalies.judge(z, settings)
        if verdict is Verdict.CALM:
            self._learn(value, settings)
        return verdict, z

    def band(self, step: int, settings: Values) -> Trend | None:
        if self.count < settings["warm_up_rows"]:
            return None
        scale = floored(math.sqrt(self.variance), self.mean, settings)
        return Trend(step, self.mean, 0.0, scale)

    def cut(self, step: int) -> None:  # noqa: ARG002 - what entered an average stays in it
        self.anomalies = Anomalies()

    def settle(self, step: int, level: float) -> None:  # noqa: ARG002 - the contract's
        self.mean, self.anomalies = level, Anomalies()

    def _learn(self, value: float, settings: Values) -> None:
        self.count += 1
        part = max(-math.expm1(-math.log(2.0) / settings["half_life"]), 1.0 / self.count)
        away = value - self.mean
        self.mean += part * away
        self.variance = (1.0 - part) * (self.variance + part * away * away)
