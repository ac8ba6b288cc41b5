"""What kind an open incident is, how surely, and why, from its course so far.

Law: a pure function of the episode. Confidence is the probability that the kind is right at the
end; reasons are sentences with numbers for a person.
"""

from __future__ import annotations

import math

from spikeguard_protocol import Kind
from spikeguard_server.domain.baseline import NORMAL_MAD, median
from spikeguard_server.domain.detection_settings import DetectionSettings
from spikeguard_server.domain.episode import Episode
from spikeguard_server.domain.events import Judgement


def classify(episode: Episode, settings: DetectionSettings) -> Judgement:
    """Judge the course of `episode` up to its newest row."""
    if episode.nonfinite_run or episode.drops:
        return _nonfinite(episode, settings)
    if episode.trend is None or not episode.recent:
        return Judgement(Kind.RECOVERABLE, 0.5, "finite again; no baseline to compare with")
    return _course(episode, settings)


def _nonfinite(episode: Episode, settings: DetectionSettings) -> Judgement:
    if episode.drops:
        if episode.drops >= settings.drop_limit:
            return Judgement(
                Kind.DIVERGENT, 0.95, f"{episode.drops} updates in a row had to be dropped"
            )
        return Judgement(
            Kind.RECOVERABLE, 0.8, f"{episode.drops} non-finite updates kept out of the weights"
        )
    run = episode.nonfinite_run
    return Judgement(
        Kind.DIVERGENT,
        1.0 - 0.4 * 0.4 ** (run - 1) if run < 8 else 0.99,
        f"not finite for {run} rows" if run > 1 else "loss is not finite",
    )


def _course(episode: Episode, settings: DetectionSettings) -> Judgement:
    excess, slope = episode.smooth, _slope(episode)
    error = episode.scale * 3.0 / max(4, min(len(episode.recent), 32)) ** 1.5 * 2
    back = settings.band_z * episode.scale * 0.5
    since, horizon = episode.since_peak, episode.horizon(settings)
    share = since / horizon
    if episode.calm_rows >= 3 or excess <= back:
        calm = min(1.0, episode.calm_rows / episode.settle_rows(settings))
        return Judgement(
            Kind.RECOVERABLE,
            0.85 + 0.13 * calm,
            f"loss is back within {settings.band_z:g} deviations of trend "
            f"for {episode.calm_rows} rows",
        )
    if slope > 2 * error and since <= 8 and episode.rows > 40:
        sure = min(0.95, 0.5 + 0.3 * (episode.rows - 40) / 100)
        return Judgement(Kind.DIVERGENT, sure, f"{_above(excess)} and still climbing")
    if slope < -2 * error:
        rows = -excess / slope
        if since + rows < horizon:
            return Judgement(
                Kind.RECOVERABLE,
                min(0.95, 0.6 + 0.3 * (1 - excess / max(episode.peak_excess, excess))),
                f"{_above(excess)} and falling {-slope / episode.gap:.2g} a step: "
                f"expected back in {rows * episode.gap:.0f} steps",
            )
    return _not_falling(episode, excess, slope, error, share)


def _not_falling(
    episode: Episode, excess: float, slope: float, error: float, share: float
) -> Judgement:
    since = episode.since_peak
    if since < 16:
        return Judgement(Kind.RECOVERABLE, 0.55, f"{_above(excess)}, {since} rows after its peak")
    sure = min(0.97, 0.5 + 0.25 * min(1.0, since / 50) + 0.25 * share)
    if slope > 2 * error and excess > 2 * episode.low:
        return Judgement(
            Kind.DIVERGENT, sure, f"{_above(excess)} and climbing {slope / episode.gap:.2g} a step"
        )
    spread = NORMAL_MAD * median([abs(value - excess) for value in episode.recent[-32:]])
    if spread > 6 * episode.scale and since > 32:
        return Judgement(
            Kind.DIVERGENT, sure, f"{_above(excess)} and oscillating by {spread:.2g} nats"
        )
    return Judgement(Kind.LINGERING, sure, f"{_above(excess)} and has stopped falling")


def _above(excess: float) -> str:
    return f"loss is {excess:.2g} above trend"


def _slope(episode: Episode) -> float:
    """Change of the excess a row, by the medians of both halves of what is recent."""
    recent = episode.recent[-min(32, max(8, episode.since_peak)) :]
    middle = len(recent) // 2
    if middle < 2:
        return 0.0
    change = (median(recent[-middle:]) - median(recent[:middle])) / (len(recent) - middle)
    return change if math.isfinite(change) else 0.0
