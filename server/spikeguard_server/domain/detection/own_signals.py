"""Signals of the user's own that the policy names: a baseline each, and a direction.

Invariants: judged as they are, not as logarithms, since they may be negative; row by row, with the
same bits however they arrive. Like a leading signal they are evidence; what else one of them opens
the policy says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from spikeguard_server.domain.detection.baseline import Baseline, Fit, abscissa
from spikeguard_server.domain.detection.precursors import Leading
from spikeguard_server.domain.detection.settings import DetectionSettings

MOST_OWN = 16  # of a run


class Direction(StrEnum):
    """Which way a signal has to move to stand out."""

    UP = "up"  # above its baseline
    DOWN = "down"  # below it
    BOTH = "both"  # either way


class Opens(StrEnum):
    """What a signal of the user's own opens where it leaves its baseline."""

    NOTHING = "nothing"  # it is evidence where an incident opens
    PRECURSOR = "precursor"  # as the norms do
    INCIDENT = "incident"  # by itself, however calm the loss is


@dataclass(frozen=True, slots=True)
class OwnChoice:
    """How the policy wants one of them judged."""

    direction: Direction
    opens: Opens = Opens.PRECURSOR


@dataclass(slots=True)
class OwnSignal:
    """What is known of one of them."""

    choice: OwnChoice
    newest: float | None = None  # value
    newest_z: float = 0.0
    moves: Leading = field(default_factory=lambda: Leading(Baseline(falling=False)))

    def look(self, step: int, value: float, frozen: bool, settings: DetectionSettings) -> float:
        """Judge one value, keep it if calm and not `frozen`.

        Returns how far it moved in its direction, in deviations; inf if it is not finite.
        """
        self.newest, self.newest_z = value, math.inf
        if math.isfinite(value):
            self.newest_z = self._look(step, value, frozen, settings)
        else:
            self.moves.judge(step, math.inf, settings)
        return self.newest_z

    @property
    def opens_incident(self) -> bool:
        """Whether the policy takes a move of it for an incident."""
        return self.choice.opens is Opens.INCIDENT

    def warns(self, z: float, settings: DetectionSettings) -> bool:
        """Whether this row opens anything."""
        return self.choice.opens is not Opens.NOTHING and self.moves.warns(z, settings)

    @property
    def away(self) -> bool:
        """Whether it is off its baseline."""
        return self.moves.moved_step is not None

    @property
    def reason(self) -> str:
        """Where it stands, in words that follow its name."""
        value, z = self.newest, self.newest_z
        if value is None or not math.isfinite(value):
            return "is not finite"
        side = {Direction.UP: "above", Direction.DOWN: "below", Direction.BOTH: "off"}
        return f"is {value:.4g}, {z:.1f} deviations {side[self.choice.direction]} its baseline"

    def begin_anew(self) -> None:
        """Learn the level that it is at now."""
        self.moves = Leading(Baseline(falling=False))

    def _look(self, step: int, value: float, frozen: bool, settings: DetectionSettings) -> float:
        baseline = self.moves.baseline
        if not frozen:
            baseline.restart_if_stale(step)
        rest, z, fit = None, 0.0, baseline.fit
        if fit is not None:
            rest = fit.rest(abscissa(step), value)
            place = fit.end if frozen else abscissa(step)  # a frozen baseline holds as it is
            z = _towards(self.choice.direction, _deviations(fit, place, rest, settings))
        self.moves.judge(step, z, settings)
        if z < settings.suspect_z and not frozen:
            baseline.admit(step, value, _of_any_size(settings), error=rest)
        return z


def own_signals_of(
    choices: Mapping[str, OwnChoice], known: Mapping[str, OwnSignal]
) -> dict[str, OwnSignal]:
    """One for each of `choices`, with what is `known` of it."""
    return {
        name: replace(known[name], choice=choice) if name in known else OwnSignal(choice)
        for name, choice in choices.items()
    }


def _towards(direction: Direction, z: float) -> float:
    if direction is Direction.BOTH:
        return abs(z)
    return z if direction is Direction.UP else -z


def _deviations(fit: Fit, place: float, rest: float, settings: DetectionSettings) -> float:
    """A flat signal has no scale of its own: the least is a part of its level."""
    least = settings.scale_floor * abs(fit.level)
    return fit.z(place, rest) * min(1.0, fit.scale / max(least, fit.scale))


@lru_cache(maxsize=16)
def _of_any_size(settings: DetectionSettings) -> DetectionSettings:
    """The floor of a norm's scale is one of logarithms; here it is a part of the level."""
    return replace(settings, scale_floor=0.0)
