"""Detectors by name: those that ship, and what is installed under the entry point group.

A package adds one by naming its class:

    [project.entry-points."spikeguard.detectors"]
    three_times = "my_package:ThreeTimes"

A detector needs nothing but the names below. What a user sets is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from spikeguard_protocol import OptionalSignal, Signal
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.domain.detection.detectors.contract import Detector, Setting, Values, Verdict
from spikeguard_server.domain.detection.detectors.plugged import DetectorChoice, Plugin
from spikeguard_server.domain.detection.detectors.robust_trend import (
    RobustTrend,
    detection_settings,
)
from spikeguard_server.domain.detection.detectors.textbook import Ewma, ZScore
from spikeguard_server.domain.detection.own_signals import MOST_OWN, Direction, Opens, OwnChoice
from spikeguard_server.domain.detection.precursors import LEADING
from spikeguard_server.domain.detection.settings import DetectionSettings
from spikeguard_server.domain.events import Trend
from spikeguard_server.domain.policy.settings import PolicyError

__all__ = [
    "Detector",
    "Setting",
    "Trend",
    "Values",
    "Verdict",
    "choose",
    "find",
    "installed_detectors",
]

GROUP = "spikeguard.detectors"
DEFAULT = "robust_trend"
SHIPPED: Mapping[str, type[Detector]] = {DEFAULT: RobustTrend, "zscore": ZScore, "ewma": Ewma}
USUAL = DetectionSettings()
BAND = Setting(
    "band", USUAL.band_z, 1.0, 100.0, "deviations",
    "half width of the band about the trend: an incident is over when the loss is back in it; a "
    "loss a third further out than it still stands out",
)  # fmt: skip
PRECURSOR = Setting(
    "precursor_threshold", USUAL.precursor_z, 2.0, 1_000.0, "robust deviations",
    "distance at which a leading signal (norms of gradient, update, weights, second moment) is a "
    "precursor; `[detection.signals.grad_norm]` sets it for one of them",
)  # fmt: skip
GENERAL = (BAND, PRECURSOR)
Word = TypeVar("Word", bound=StrEnum)
DIRECTION, OPENS = "direction", "opens"
_JUDGED = frozenset({Signal.LOSS.value, OptionalSignal.UNCHANGED_PARAMETERS.value})  # otherwise


@cache
def installed_detectors() -> Mapping[str, EntryPoint]:
    """What other packages add, by name; a name that ships goes first."""
    found = entry_points(group=GROUP)
    return {one.name: one for one in found if one.name not in SHIPPED}


def names() -> list[str]:
    """Every detector that can be chosen here."""
    return [*SHIPPED, *sorted(installed_detectors())]


def find(name: str, path: str = "detector") -> type[Detector]:
    """The detector called `name`; raises `PolicyError` about `path`."""
    if name in SHIPPED:
        return SHIPPED[name]
    if name not in installed_detectors():
        raise PolicyError(
            path, f"{name!r:.60} is no detector that is installed here",
            f"Known: {', '.join(names())}; pip install the package of another one",
        )  # fmt: skip
    return _loaded(name, path)


@cache
def _loaded(name: str, path: str) -> type[Detector]:
    entry = installed_detectors()[name]
    try:
        kind = entry.load()
    except Exception as error:
        raise PolicyError(
            path, f"{name} ({entry.value}) cannot be imported", f"{type(error).__name__}: {error}"
        ) from error
    missing = [part for part in ("look", "band", "cut", "settle", "settings", "version")
               if not hasattr(kind, part)]  # fmt: skip
    if missing or not is_dataclass(kind):
        lacks = ", ".join(missing) or "@dataclass, whose fields are its state"
        raise PolicyError(path, f"{name} ({entry.value}) is no detector", f"It lacks {lacks}")
    found = cast(type[Detector], kind)
    taken = [one.name for one in found.settings if one.name in {own.name for own in GENERAL}]
    if taken:
        raise PolicyError(path, f"{name} calls a setting {taken[0]}", "Rename it: that one is ours")
    return found


def settings_with(name: str, path: str = "detector") -> tuple[Setting, ...]:
    """Every setting that can be given with the detector called `name`."""
    return (*find(name, path).settings, *GENERAL)


def choose(plain: Mapping[str, Any], path: str = "") -> DetectorChoice:
    """What `plain` chooses: `detector`, any of its settings, and `signals`; raises `PolicyError`.

    `path` stands before the name of a field in an error. `signals` holds a table for each leading
    signal that has a `precursor_threshold` of its own, and for each signal of the user's own.
    """
    name = plain.get("detector", DEFAULT)
    if not isinstance(name, str):
        raise PolicyError(f"{path}detector", "takes a name", f"Known: {', '.join(names())}")
    kind = find(name, f"{path}detector")
    given = {key: value for key, value in plain.items() if key not in ("detector", "signals")}
    values = _checked(given, name, path)
    usual = replace(USUAL, band_z=values.pop("band"), precursor_z=values.pop("precursor_threshold"))
    signals = plain.get("signals", {})
    precursors, own = _precursors(signals, path), _own_choices(signals, path)
    if kind is RobustTrend:
        return DetectorChoice(detection_settings(values, usual), None, precursors, own)
    return DetectorChoice(usual, Plugin(name, kind, values), precursors, own)


def _precursors(signals: Any, path: str) -> dict[str, float]:
    """Thresholds of the signals that have one of their own."""
    if not isinstance(signals, Mapping):
        raise PolicyError(f"{path}signals", "takes a table of signals", f"Got {signals!r:.60}")
    found = dict[str, float]()
    for name, given in signals.items():
        where = f"{path}signals.{name!s:.60}"
        known = {PRECURSOR.name} if name in LEADING else {PRECURSOR.name, DIRECTION, OPENS}
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
        if name in _JUDGED:
            raise PolicyError(where, "is no leading signal", f"Known: {', '.join(LEADING)}")
        if not NAME_PATTERN.fullmatch(str(name)):
            limit = "is no name: 1 to 64 of letters, digits, `.`, `_`, `-`"
            raise PolicyError(where, limit, "Name a signal as guard.log does")
    if len(own) > MOST_OWN:
        raise PolicyError(f"{path}signals", f"takes at most {MOST_OWN} of your own", "Name fewer")
    return {name: _own_choice(given, f"{path}signals.{name}") for name, given in own.items()}


def _own_choice(given: Mapping[str, Any], where: str) -> OwnChoice:
    direction = _word(given.get(DIRECTION), Direction, f"{where}.{DIRECTION}", _ALWAYS)
    opens = given.get(OPENS, Opens.PRECURSOR.value)
    return OwnChoice(direction, _word(opens, Opens, f"{where}.{OPENS}", _OPENED))


_ALWAYS = (
    "which way a signal of your own has to move (leading signals, " + ", ".join(LEADING) + ", have "
    "none)"
)
_OPENED = "what it opens where it leaves its baseline"


def _word(given: Any, words: type[Word], where: str, meaning: str) -> Word:
    try:
        return words(str(given))
    except ValueError:
        known = ", ".join(words)
        raise PolicyError(where, f"is one of {known}: {meaning}", f"Got {given!r:.60}") from None


def _checked(given: Mapping[str, Any], name: str, path: str) -> dict[str, float]:
    """Every setting of the detector: as it was `given`, or its default."""
    known = {one.name: one for one in settings_with(name)}
    for key in given:
        if key not in known:
            raise PolicyError(
                f"{path}{key!s:.60}", f"is no setting of {name}", f"Known: {', '.join(known)}"
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
