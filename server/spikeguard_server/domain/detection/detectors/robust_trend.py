"""The default detector, by the contract: a robust line through the newest calm rows.

The monitor calls `TrendTest` itself, because that also takes many rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

from spikeguard_server.domain.detection.baseline import Baseline
from spikeguard_server.domain.detection.detectors.contract import Setting, Values, Verdict
from spikeguard_server.domain.detection.settings import DetectionSettings
from spikeguard_server.domain.detection.signal_detector import TrendTest
from spikeguard_server.domain.events import Trend

USUAL = DetectionSettings()
SETTINGS = (
    Setting(
        "threshold", USUAL.suspect_z, 2.0, 1_000.0, "robust deviations",
        "distance above the trend that is a jump; confirming rows and rows that stand out alone "
        "keep their proportion to it (4 to 6, 8 to 6)",
    ),
    Setting(
        "confirm_rows", USUAL.confirm_rows, 1, 20, "rows",
        "rows in a row that make a jump an incident, the first at the threshold, the others at "
        "two thirds of it", whole=True,
    ),
    Setting(
        "warm_up_rows", USUAL.watchable_after, 16, 128, "rows", "until the first judgement",
        whole=True,
    ),
    Setting(
        "lift_limit", USUAL.drift_limit, 4.0, 1_000_000.0, "robust deviations times rows",
        "cumulated excess over one deviation that makes a slow rise an incident, after 20 rows: "
        "more is less sensitive",
    ),
)  # fmt: skip


def detection_settings(values: Values, usual: DetectionSettings = USUAL) -> DetectionSettings:
    """All constants of the test where a user set `values`; the defaults change no bit of it."""
    return _settings_of(tuple(sorted(values.items())), usual)


@lru_cache(maxsize=64)
def _settings_of(
    values: tuple[tuple[str, float], ...], usual: DetectionSettings
) -> DetectionSettings:
    given: Mapping[str, float] = dict(values)
    part = given["threshold"] / USUAL.suspect_z
    return replace(
        usual,
        suspect_z=USUAL.suspect_z * part,
        confirm_z=USUAL.confirm_z * part,
        warm_z=USUAL.warm_z * part,
        lone_z=USUAL.lone_z * part,
        outlier_z=USUAL.outlier_z * part,
        record_z=USUAL.record_z * part,
        record_part=USUAL.record_part * part,
        confirm_rows=int(given["confirm_rows"]),
        watchable_after=int(given["warm_up_rows"]),
        drift_limit=given["lift_limit"],
    )


def _test() -> TrendTest:
    return TrendTest(Baseline(falling=True))


@dataclass(slots=True)
class RobustTrend:
    """Jumps, slow lifts and outlier batches of a loss, against a line in log(step + 1)."""

    version: ClassVar[int] = 2
    settings: ClassVar[tuple[Setting, ...]] = SETTINGS
    test: TrendTest = field(default_factory=_test)

    def look(self, step: int, value: float, settings: Values) -> tuple[Verdict, float]:
        if not math.isfinite(value):
            return Verdict.SPIKE, math.inf
        verdict, z = self.test.look(step, value, None, detection_settings(settings))
        if verdict is Verdict.SPIKE:
            self.test.drop_waiting()
            self.test.clear()
        return verdict, z

    def band(self, step: int, settings: Values) -> Trend | None:  # noqa: ARG002 - the contract's
        return self.test.trend(step, 1)

    def cut(self, step: int) -> None:
        self.test.clear()
        self.test.cut(step, USUAL)

    def settle(self, step: int, level: float) -> None:
        self.test.clear()
        self.test.settle(step, level, USUAL)
