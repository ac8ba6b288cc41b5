"""The settings of detection by name: what a user sets in the policy is read here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spikeguard_core.detection.norms import LEADING
from spikeguard_core.detection.own_signals import MOST_OWN, Direction, Opens, OwnChoice
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.setting_fields import SettingError, read_settings, setting, settings_of
from spikeguard_protocol import Signal
from spikeguard_protocol.identity import NAME_PATTERN

USUAL = DetectionSettings()
MOST_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class SignalSettings:
    """One signal: a leading one has a `precursor_threshold` alone."""

    direction: Direction | None = setting(None, "which way it has to move; needed without a limit")
    above: float | None = setting(
        None, "beyond this value it is away, in the signal's own unit", -math.inf
    )
    below: float | None = setting(None, "the same on the other side", -math.inf)
    rows: int = setting(2, "rows in a row beyond a limit that it takes", 1, MOST_ROWS, "rows")
    opens: Opens = setting(Opens.PRECURSOR, "what it opens when it is away")
    precursor_threshold: float | None = setting(
        None, "distance from its baseline at which it is away; unset: that of all", 2.0, 1_000.0,
        "deviations",
    )  # fmt: skip

    @property
    def own(self) -> OwnChoice:
        """How it is judged."""
        return OwnChoice(self.direction, self.opens, self.above, self.below, None, self.rows)


@dataclass(frozen=True, slots=True)
class Detection:
    """Thresholds and rows that a user may change."""

    threshold: float = setting(
        USUAL.suspect_z,
        "distance above the level that is a jump; the rows that confirm it and rows that stand out "
        "alone keep their proportion to it (4.4 to 6, 8 to 6)", 2.0, 1_000.0, "deviations",
    )  # fmt: skip
    confirm_rows: int = setting(
        USUAL.confirm_rows, "rows in a row that make a jump an incident", 1, 20, "rows"
    )
    warm_up_rows: int = setting(USUAL.watchable_after, "until the first judgement", 8, 128, "rows")
    lift_threshold: float = setting(
        USUAL.lift_z,
        "distance of the median of 8 rows above the 32 rows before them that is an incident: more "
        "is less sensitive", 1.0, 1_000_000.0, "deviations",
    )  # fmt: skip
    slow_rise: float = setting(
        USUAL.slow_part,
        "how far the smoothed loss rises above its own best until a slow rise is an incident",
        0.005, 1_000_000.0, "part of the loss",
    )  # fmt: skip
    band: float = setting(
        USUAL.band_z,
        "half width of the band about the trend: an incident is over when the loss is back in it",
        1.0, 100.0, "deviations",
    )  # fmt: skip
    precursor_threshold: float = setting(
        USUAL.precursor_z,
        "distance at which a leading signal (norms of gradient, update, weights, second moment) is "
        "a precursor; `[detection.signals.grad_norm]` sets it for one of them", 2.0, 1_000.0,
        "deviations",
    )  # fmt: skip
    signals: Mapping[str, SignalSettings] = setting(dict, "by name of a signal")


def choose(plain: Mapping[str, Any], path: str = "") -> DetectorChoice:
    """What `plain` chooses of the settings of `Detection`; raises `SettingError`. `path` stands
    before the name of a field in an error."""
    read = read_settings(Detection, plain, path)
    _check_signals(read.signals, plain.get("signals", {}), f"{path}signals")
    part = read.threshold / USUAL.suspect_z
    settings = replace(
        USUAL,
        suspect_z=read.threshold,
        confirm_z=USUAL.confirm_z * part,
        run_z=USUAL.run_z * part,
        outlier_z=USUAL.outlier_z * part,
        confirm_rows=read.confirm_rows,
        watchable_after=read.warm_up_rows,
        lift_z=read.lift_threshold,
        long_lift_z=read.lift_threshold * USUAL.long_lift_z / USUAL.lift_z,
        slow_part=read.slow_rise,
        band_z=read.band,
        precursor_z=read.precursor_threshold,
    )
    thresholds = {
        name: one.precursor_threshold
        for name, one in read.signals.items()
        if one.precursor_threshold is not None
    }
    own = {name: one.own for name, one in read.signals.items() if name not in LEADING}
    return DetectorChoice(settings, thresholds, own)


def _check_signals(
    signals: Mapping[str, SignalSettings], plain: Mapping[str, Any], path: str
) -> None:
    for name, one in signals.items():
        where = f"{path}.{name!s:.60}"
        known = {"precursor_threshold"} if name in LEADING else set(settings_of(SignalSettings))
        if not plain[name] or not set(plain[name]) <= known:
            takes = ", ".join(sorted(known))
            raise SettingError(where, f"takes a table of {takes}", f"Got {plain[name]!r:.60}")
        if name == Signal.LOSS:
            raise SettingError(where, "is judged always", "Its settings: threshold, …")
        if name in LEADING:
            continue
        if not NAME_PATTERN.fullmatch(name):
            limit = "is no name: 1 to 64 of letters, digits, `.`, `_`, `-`"
            raise SettingError(where, limit, "Name a signal as guard.log does")
        if one.direction is None and one.above is None and one.below is None:
            raise SettingError(
                f"{where}.direction",
                f"is one of {', '.join(Direction)}: which way it has to move, where it has no "
                "limit `above` or `below`",
                "Got None",
            )
    if sum(name not in LEADING for name in signals) > MOST_OWN:
        raise SettingError(path, f"takes at most {MOST_OWN} of your own", "Name fewer")
