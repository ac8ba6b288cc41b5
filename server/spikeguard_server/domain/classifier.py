"""What kind an open incident is, how surely, and why, from its course so far.

Law: a pure function of the episode. Confidence is the probability that the kind is right at the
end; reasons are sentences with numbers for a person.

A healing excess falls somewhere between a power of the time since its last rise and an exponential
of it. Both are measured between two medians, and compared with what would bring the loss back by
the horizon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from spikeguard_protocol import Kind
from spikeguard_server.domain.baseline import median
from spikeguard_server.domain.detection_settings import DetectionSettings
from spikeguard_server.domain.episode import Episode
from spikeguard_server.domain.events import Judgement
from spikeguard_server.domain.line import NORMAL_MAD

POWER_SPREAD = 0.3  # how much the power of a real decay wanders
BUMP_SPREAD = 0.15  # how much a median of a real decay wanders, as a part of itself
HOPE = 0.3  # in deviations: most real spikes heal
GOAL = 1.0  # deviations above trend that count as back
TURN = 0.62  # confidence that it takes to change one's mind
SLIGHT = 0.15  # an excess below this part of the loss leaves time to wait
CLIMB_ROWS = 60  # a real spike may climb this long before its peak


@dataclass(frozen=True, slots=True)
class Decay:
    """How the excess fell since its last rise, between an early and a late median."""

    excess: float  # late median
    fall: float  # logarithm of early over late
    error: float  # of the fall
    early_at: float  # rows since the last rise
    late_at: float
    left: float  # logarithm of how far the late median is above what counts as back
    until: float  # rows since the last rise at the horizon
    hope: float  # deviations that experience adds to the evidence

    @property
    def power(self) -> float:
        """excess ~ rows ** -power"""
        return self.fall / math.log(self.late_at / self.early_at)

    @property
    def rate(self) -> float:
        """excess ~ exp(-rate * rows)"""
        return self.fall / (self.late_at - self.early_at)

    @property
    def heals(self) -> float:
        """Probability that it is back by the horizon."""
        span, room = self.late_at / self.early_at, max(2.0, self.until / self.late_at)
        power = self._chance(math.log(span), math.log(room), POWER_SPREAD)
        rows = self.late_at - self.early_at
        rate = self._chance(rows, max(self.until - self.late_at, rows), POWER_SPREAD / self.late_at)
        return 0.4 * power + 0.6 * rate

    def _chance(self, span: float, room: float, spread: float) -> float:
        distance = self.fall / span - self.left / room
        return NormalDist().cdf(distance / math.hypot(self.error / span, spread) + self.hope)


def classify(episode: Episode, settings: DetectionSettings) -> Judgement:
    """Judge the course of `episode` up to its newest row."""
    if episode.nonfinite_run or episode.drops:
        return _nonfinite(episode, settings)
    if episode.trend is None or not episode.recent:
        return Judgement(Kind.RECOVERABLE, 0.5, "finite again; no baseline to compare with")
    if episode.calm_rows >= 3 and median(episode.recent[-16:]) <= settings.level_z * episode.scale:
        return _back(episode, settings)
    return _climbing(episode) or _course(episode, settings)


def hold(before: Judgement, now: Judgement) -> Judgement:
    """Keep the kind while the evidence for another one is no better than a guess."""
    if now.kind is before.kind or now.confidence >= TURN:
        return now
    return Judgement(before.kind, 0.5, now.reason)


def _nonfinite(episode: Episode, settings: DetectionSettings) -> Judgement:
    drops, run = episode.drops, episode.nonfinite_run
    if drops >= settings.drop_limit:
        return Judgement(Kind.DIVERGENT, 0.95, f"{drops} updates in a row had to be dropped")
    if drops:
        reason = f"{drops} non-finite updates kept out of the weights"
        return Judgement(Kind.RECOVERABLE, 0.8, reason)
    sure = min(0.99, 1.0 - 0.4 * 0.4 ** (run - 1))
    reason = f"not finite for {run} rows" if run > 1 else "a value is not finite"
    return Judgement(Kind.DIVERGENT, sure, reason)


def _back(episode: Episode, settings: DetectionSettings) -> Judgement:
    calm = min(1.0, episode.calm_rows / episode.settle_rows(settings))
    reason = f"loss is back within {settings.band_z:g} deviations of trend"
    if episode.calm_rows > 1:
        reason += f" for {episode.calm_rows} rows"
    return Judgement(Kind.RECOVERABLE, 0.8 + 0.18 * calm, reason)


def _climbing(episode: Episode) -> Judgement | None:
    """Divergent if it still reaches new heights long after the onset."""
    if episode.since_peak > 10 or episode.rows < CLIMB_ROWS:
        return None
    sure = min(0.95, 0.5 + 0.45 * (episode.rows - CLIMB_ROWS) / 100)
    reason = f"{_above(episode.smooth)} and still climbing {episode.rows} rows after its onset"
    return Judgement(Kind.DIVERGENT, sure, reason)


def _course(episode: Episode, settings: DetectionSettings) -> Judgement:
    decay = measure_decay(episode, settings)
    cap = 0.5 + 0.5 * min(1.0, episode.since_peak / _patience(episode, settings))
    if decay is None:
        return _undecided(episode, cap)
    heals = decay.heals
    if heals >= 0.5:
        return Judgement(Kind.RECOVERABLE, max(0.5, min(0.95, heals)), _falling(episode, decay))
    sure = max(0.5, min(0.97, 1.0 - heals, cap))
    if _rising(decay):
        return Judgement(Kind.DIVERGENT, sure, f"{_above(decay.excess)} and rising")
    spread = NORMAL_MAD * median([abs(e - decay.excess) for e in episode.recent[-48:]])
    if episode.rises >= 3 and spread > 5 * episode.scale:
        reason = f"{_above(decay.excess)}, oscillating by {spread:.2g} without settling"
        return Judgement(Kind.DIVERGENT, sure, reason)
    return Judgement(Kind.LINGERING, sure, _too_slow(episode, decay))


def measure_decay(episode: Episode, settings: DetectionSettings) -> Decay | None:
    """The decay since the last rise; None while there are too few rows to see one."""
    since = episode.since_turn
    if since < 12:
        return None
    width = min(32, since // 4)
    recent = episode.recent[-since:]
    earlier = max(0, len(recent) - since + since // 2 - width)
    late, early = median(recent[-width:]), median(recent[earlier : earlier + width])
    late_at = since - width / 2
    early_at = since - len(recent) + earlier + width / 2
    if late_at <= early_at:  # the run went back: only rows since then are left
        return None
    early_at, late_at = max(early_at, 1.0), max(late_at, early_at + 1.0)
    floor = episode.scale / 2
    late, early = max(late, floor), max(early, floor)
    noise = 1.6 * episode.scale / math.sqrt(width)
    return Decay(
        excess=late,
        fall=math.log(early / late),
        error=math.hypot(noise / late, noise / early, BUMP_SPREAD),
        early_at=early_at,
        late_at=late_at,
        left=math.log(max(late / (GOAL * episode.scale), 1.0)),
        until=episode.horizon(settings) + since - episode.since_peak,
        hope=_hope(episode),
    )


def _undecided(episode: Episode, cap: float) -> Judgement:
    reason = f"{_above(episode.smooth)}, {episode.since_turn} rows after its last rise"
    if episode.since_peak < 150:
        return Judgement(Kind.RECOVERABLE, 0.55, reason)
    kind = Kind.DIVERGENT if episode.rises >= 3 else Kind.LINGERING
    return Judgement(kind, min(0.6, cap), reason)


def _rising(decay: Decay) -> bool:
    return decay.fall < -2 * decay.error


def _patience(episode: Episode, settings: DetectionSettings) -> float:
    """Rows after the peak from which a verdict may be sure: more, the less damage there is."""
    slight = max(0.0, 1.0 - _damage(episode) / SLIGHT)
    return max(60.0, episode.horizon(settings) / 5) * (1.0 + 4.0 * slight)


def _damage(episode: Episode) -> float:
    """Excess as a part of the loss before the spike."""
    level = abs(episode.trend.level) if episode.trend else 0.0
    return episode.smooth / max(level, 1e-9)


def _hope(episode: Episode) -> float:
    """Most real spikes heal, but none that was seen still had a third of its loss to heal late."""
    grave = min(1.0, max(0.0, _damage(episode) / SLIGHT - 1.0) / 1.5)
    return HOPE - grave * min(1.0, episode.since_peak / 50)


def _above(excess: float) -> str:
    return f"loss is {excess:.2g} above trend"


def _falling(episode: Episode, decay: Decay) -> str:
    if decay.fall <= decay.error / 2:
        return f"{_above(decay.excess)}, too early to say more"
    slope = decay.rate * decay.excess / episode.gap
    rows = decay.left / decay.rate
    return (
        f"{_above(decay.excess)} and falling {slope:.2g} a step: "
        f"expected back in {rows * episode.gap:.0f} steps"
    )


def _too_slow(episode: Episode, decay: Decay) -> str:
    if decay.fall < decay.error:
        return f"{_above(decay.excess)} and has stopped falling"
    slope = decay.rate * decay.excess / episode.gap
    return f"{_above(decay.excess)} and falling only {slope:.2g} a step, ever slower"
