"""The settings of detection by name: what a user sets in the policy is checked here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from spikeguard_core.detection.norms import LEADING
from spikeguard_core.detection.own_signals import MOST_OWN, Direction, Opens, OwnChoice
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.setting_fields import PolicyError
from spikeguard_protocol import Signal
from spikeguard_protocol.identity import NAME_PATTERN


@dataclass(frozen=True, slots=True)
class Setting:
    """One number that a user may change."""

    name: str
    default: float
    least: float
    most: float
    unit: str
    meaning: str
    whole: bool = False  # takes whole numbers only


USUAL = DetectionSettings()
THRESHOLD = Setting(
    "threshold", USUAL.suspect_z, 2.0, 1_000.0, "deviations",
    "distance above the level that is a jump; the rows that confirm it and rows that stand out "
    "alone keep their proportion to it (4.4 to 6, 8 to 6)",
)  # fmt: skip
CONFIRM = Setting(
    "confirm_rows", USUAL.confirm_rows, 1, 20, "rows",
    "rows in a row that make a jump an incident", whole=True,
)  # fmt: skip
WARM_UP = Setting(
    "warm_up_rows", USUAL.watchable_after, 8, 128, "rows", "until the first judgement", whole=True
)
LIFT = Setting(
    "lift_threshold", USUAL.lift_z, 1.0, 1_000_000.0, "deviations",
    "distance of the median of 8 rows above the 32 rows before them that is an incident: more is "
    "less sensitive",
)  # fmt: skip
SLOW = Setting(
    "slow_rise", USUAL.slow_part, 0.005, 1_000_000.0, "part of the loss",
    "how far the smoothed loss rises above its own best until a slow rise is an incident",
)  # fmt: skip
BAND = Setting(
    "band", USUAL.band_z, 1.0, 100.0, "deviations",
    "half width of the band about the trend: an incident is over when the loss is back in it",
)  # fmt: skip
PRECURSOR = Setting(
    "precursor_threshold", USUAL.precursor_z, 2.0, 1_000.0, "deviations",
    "distance at which a leading signal (norms of gradient, update, weights, second moment) is a "
    "precursor; `[detection.signals.grad_norm]` sets it for one of them",
)  # fmt: skip
SETTINGS = (THRESHOLD, CONFIRM, WARM_UP, LIFT, SLOW, BAND, PRECURSOR)
Word = TypeVar("Word", bound=StrEnum)
DIRECTION, OPENS, ABOVE, BELOW, ROWS = "direction", "opens", "above", "below", "rows"
MOST_ROWS = 10_000


def choose(plain: Mapping[str, Any], path: str = "") -> DetectorChoice:
    """What `plain` chooses: any of `SETTINGS`, and `signals`; raises `PolicyError`.

    `path` stands before the name of a field in an error. `signals` holds a table for each leading
    signal that has a `precursor_threshold` of its own, and for each signal of the user's own.
    """
    given = {key: value for key, value in plain.items() if key != "signals"}
    values = _checked(given, path)
    part = values[THRESHOLD.name] / USUAL.suspect_z
    settings = replace(
        USUAL,
        suspect_z=values[THRESHOLD.name],
        confirm_z=USUAL.confirm_z * part,
        run_z=USUAL.run_z * part,
        outlier_z=USUAL.outlier_z * part,
        confirm_rows=int(values[CONFIRM.name]),
        watchable_after=int(values[WARM_UP.name]),
        lift_z=values[LIFT.name],
        long_lift_z=values[LIFT.name] * USUAL.long_lift_z / USUAL.lift_z,
        slow_part=values[SLOW.name],
        band_z=values[BAND.name],
        precursor_z=values[PRECURSOR.name],
    )
    signals = plain.get("signals", {})
    return DetectorChoice(settings, _precursors(signals, path), _own_choices(signals, path))


def _precursors(signals: Any, path: str) -> dict[str, float]:
    """Thresholds of the signals that have one of their own."""
    if not isinstance(signals, Mapping):
        raise PolicyError(f"{path}signals", "takes a table of signals", f"Got {signals!r:.60}")
    found = dict[str, float]()
    for name, given in signals.items():
        where = f"{path}signals.{name!s:.60}"
        known = {PRECURSOR.name}
        if name not in LEADING:
            known |= {DIRECTION, OPENS, ABOVE, BELOW, ROWS}
        if not isinstance(given, Mapping) or not given or not set(given) <= known:
            takes = ", ".join(sorted(known))
            raise PolicyError(where, f"takes a table of {takes}", f"Got {given!r:.60}")
        if PRECURSOR.name in given:
            found[name] = _value(PRECURSOR, given[PRECURSOR.name], f"{where}.")
    return found


def _own_choices(signals: Mapping[str, Any], path: str) -> dict[str, OwnChoice]:
    """How each signal of the user's own is judged."""
    own = {name: given for name, given in signals.items() if name not in LEADING}
    for name in own:
        where = f"{path}signals.{name!s:.60}"
        if name == Signal.LOSS:
            raise PolicyError(where, "is judged always", f"Its settings: {THRESHOLD.name}, …")
        if not NAME_PATTERN.fullmatch(str(name)):
            limit = "is no name: 1 to 64 of letters, digits, `.`, `_`, `-`"
            raise PolicyError(where, limit, "Name a signal as guard.log does")
    if len(own) > MOST_OWN:
        raise PolicyError(f"{path}signals", f"takes at most {MOST_OWN} of your own", "Name fewer")
    return {name: _own_choice(given, f"{path}signals.{name}") for name, given in own.items()}


def _own_choice(given: Mapping[str, Any], where: str) -> OwnChoice:
    opens = _word(given.get(OPENS, Opens.PRECURSOR.value), Opens, f"{where}.{OPENS}", _OPENED)
    limits = {
        name: _limit(given[name], f"{where}.{name}") for name in (ABOVE, BELOW) if name in given
    }
    direction = None
    if DIRECTION in given or not limits:
        direction = _word(given.get(DIRECTION), Direction, f"{where}.{DIRECTION}", _ALWAYS)
    rows = given.get(ROWS, 2)
    if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= MOST_ROWS:
        raise PolicyError(
            f"{where}.{ROWS}", f"takes a whole number from 1 to {MOST_ROWS}", f"Got {rows!r:.60}"
        )
    return OwnChoice(direction, opens, limits.get(ABOVE), limits.get(BELOW), None, rows)


def _limit(value: Any, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise PolicyError(
            where, "takes a finite number, in the signal's own unit", f"Got {value!r:.60}"
        )
    return float(value)


_ALWAYS = (
    "which way a signal of your own has to move, where it has no limit `above` or `below` "
    "(leading signals, " + ", ".join(LEADING) + ", have none)"
)
_OPENED = "what it opens where it leaves its baseline"


def _word(given: Any, words: type[Word], where: str, meaning: str) -> Word:
    try:
        return words(str(given))
    except ValueError:
        known = ", ".join(words)
        raise PolicyError(where, f"is one of {known}: {meaning}", f"Got {given!r:.60}") from None


def _checked(given: Mapping[str, Any], path: str) -> dict[str, float]:
    """Every setting: as it was `given`, or its default."""
    known = {one.name: one for one in SETTINGS}
    for key in given:
        if key not in known:
            raise PolicyError(
                f"{path}{key!s:.60}", "is no setting of detection", f"Known: {', '.join(known)}"
            )
    return {key: _value(one, given.get(key, one.default), path) for key, one in known.items()}


def _value(setting: Setting, value: Any, path: str) -> float:
    kind = "whole number" if setting.whole else "number"
    limit = f"takes a {kind} from {setting.least:g} to {setting.most:g} ({setting.unit})"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = number and math.isfinite(value) and setting.least <= value <= setting.most
    if not fits or (setting.whole and value != int(value)):
        raise PolicyError(
            f"{path}{setting.name}", limit, f"Got {value!r:.60}; the default is {setting.default:g}"
        )
    return float(value)
