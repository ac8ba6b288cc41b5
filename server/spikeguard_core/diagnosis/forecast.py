"""How much of a spike's damage will be left at its horizon.

A pure function of the episode. A healing excess falls as a power of the rows since its last rise (a
stretched tail: real ones fall by powers of 0.5 to 2). The power that was measured between an early
and a late mean is weighed against what such spikes usually do; what is left at the horizon follows
from it, and the noise, and how far the trend itself can be trusted there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spikeguard_core.detection.noise import median
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.diagnosis.incident_tracker import LASTS, Episode
from spikeguard_core.events import Trend

FEWEST = 6  # rows since the last rise that a course can be seen in
WIDEST = 96  # rows of the newest mean
CLIP = 3.0  # scales around the median beyond which a row counts no more
NORMAL_95 = 1.96
INERTIA = 1.5  # how much less sure a mean is than if rows were independent
USUAL_POWER, USUAL_SPREAD = 1.25, 0.45  # of the fall of such excesses, before anything was seen
STEEPENS = 0.3  # by how much the power still to come exceeds the one that was measured
WANDER = 0.4  # how much the power of one excess changes as it falls
BUMP = 0.15  # how much a mean of it wanders, as a part of itself
DOUBT, DESCENT_DOUBT = 0.12, 0.4  # of the trend: a part of a scale, a part of its own descent;
KIND_DOUBT = 0.2  # the kind is judged with less: more takes small lasting damage for healed
TOLD_DOUBT = 0.25  # of a height, from which on it is told what of it is sure
PLATEAU_ROWS = 36.0  # for about so long a real spike may stay up before it falls
PLACES = (-1.75, -1.15, -0.67, -0.32, 0.0, 0.32, 0.67, 1.15, 1.75)  # in deviations of the power


@dataclass(frozen=True, slots=True)
class Outlook:
    """The course of an excess and what is expected of it."""

    excess: float  # mean of the newest rows, nats
    width: int  # how many they are
    doubt: float  # half width of its 95 % interval
    tolerance: float  # damage of this size or less counts as none, nats
    fall: float  # logarithm of the early mean over the late one
    error: float  # of the fall
    lasting: float  # probability that more than the tolerance is left at the horizon
    present: float  # probability that it is more than the tolerance now

    @property
    def rising(self) -> bool:
        return self.fall < -2.0 * self.error


def tolerance_of(episode: Episode, settings: DetectionSettings) -> float:
    """The least damage that a run of this noise shows within the horizon's steps, nats."""
    level = abs(episode.trend.level) if episode.trend else math.inf
    rows = max(float(settings.settle_rows_sparse), settings.horizon_steps / episode.gap)
    return max(settings.lasting_part * level, settings.lasting_z * episode.scale / math.sqrt(rows))


def look_ahead(episode: Episode, settings: DetectionSettings) -> Outlook | None:
    """The outlook at the newest row; None while there are too few to see a course."""
    since = episode.since_turn
    recent = episode.recent[-since:] if since else []
    width = min(WIDEST, since // 3)
    wide = min(width, len(recent) - width)
    if since < FEWEST or wide < 2 or episode.trend is None:
        return None
    begin = min(max(0, len(recent) - since + since // 2 - wide), len(recent) - width - wide)
    late = clipped_mean(recent[-width:], episode.scale)
    early = clipped_mean(recent[begin : begin + wide], episode.scale)
    late_at, early_at = since - width / 2, since - len(recent) + begin + wide / 2
    noise = INERTIA * episode.scale / math.sqrt(width), INERTIA * episode.scale / math.sqrt(wide)
    sizes = max(late, noise[0]), max(early, noise[1])  # below its noise an excess has no size
    fall = math.log(sizes[1]) - math.log(sizes[0])
    error = math.hypot(noise[0] / sizes[0], noise[1] / sizes[1], BUMP)
    span = math.log(late_at / max(early_at, 1.0))
    # What was measured and what is usual, each by its precision.
    usual, seen = USUAL_SPREAD**-2, 1.0 / ((error / span) ** 2 + WANDER**2)
    power = (usual * USUAL_POWER + seen * (fall / span + STEEPENS)) / (usual + seen)
    spread = (usual + seen) ** -0.5
    end = 0.9 * episode.horizon(settings) + since - episode.since_peak
    room = math.log(max(end, late_at) / late_at)
    tolerance = tolerance_of(episode, settings)
    doubt = doubt_of(episode.trend, episode.newest_step, KIND_DOUBT)
    parts = [math.exp(-max(0.0, power + spread * place) * room) for place in PLACES]
    chances = [_chance(late * part - tolerance, noise[0] * part, doubt) for part in parts]
    lasting = sum(w * chance for w, chance in zip(_WEIGHTS, chances, strict=True))
    present = _chance(late - tolerance, noise[0], doubt)
    half = NORMAL_95 * math.hypot(noise[0], doubt_of(episode.trend, episode.newest_step))
    return Outlook(late, width, half, tolerance, fall, error, lasting, present)


_PDF = [math.exp(-place * place / 2.0) for place in PLACES]
_WEIGHTS = [weight / sum(_PDF) for weight in _PDF]


def clipped_mean(values: Sequence[float], scale: float) -> float:
    """Without letting single rows decide."""
    middle, most = median(values), CLIP * scale
    return float(np.array(values).clip(middle - most, middle + most).mean())


def doubt_of(trend: Trend, step: int, of_descent: float = DESCENT_DOUBT) -> float:
    """Standard error of the trend, extrapolated to `step`, nats."""
    descent = abs(trend.level - trend.at(step))
    return math.hypot(DOUBT * trend.scale, of_descent * descent)


def told_height(excess: float, trend: Trend, step: int) -> str:
    """`0.34 (at least 0.1) above trend`: how far off a loss lies at `step`."""
    return off_trend(excess, NORMAL_95 * doubt_of(trend, step))


def off_trend(excess: float, doubt: float) -> str:
    """An excess in words, and what of it is sure where that is much less. Calm curves fall below
    their trend more often than they stay above it, so that no upper bound of a damage is known."""
    if excess <= 0.0 or doubt < TOLD_DOUBT * excess:
        return f"{nats(abs(excess))} {'above' if excess > 0 else 'below'} trend"
    sure = f"at least {nats(excess - doubt)}" if excess > doubt else "perhaps none"
    return f"{nats(excess)} ({sure}) above trend"


def nats(value: float) -> str:
    """Two digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _chance(above: float, *deviations: float) -> float:
    return 0.5 * math.erfc(-above / max(math.hypot(*deviations), 1e-300) / math.sqrt(2.0))


def trust(rows: float) -> float:
    """How far a prediction is believed, `rows` after the last rise: a spike may stay up a while.

    At first it is a guess whether it heals.
    """
    return max(LASTS, -math.expm1(-((rows / PLATEAU_ROWS) ** 2)))
