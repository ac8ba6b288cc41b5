"""The kind of an open incident, with confidence and reason, from its samples so far.

A pure function of the episode. Confidence is the probability that the kind is right at the end;
reasons are sentences with numbers for a person.

What is expected of the excess is `forecast.py`'s.
"""

from __future__ import annotations

from dataclasses import replace

from spikeguard_core.detection.noise import NORMAL_MAD, median
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.diagnosis.forecast import (
    PLATEAU_ROWS,
    Outlook,
    clipped_mean,
    nats,
    off_trend,
    told_height,
    trust,
)
from spikeguard_core.diagnosis.incident_tracker import LASTS, MOVED, SETTLED_ROWS, Episode
from spikeguard_core.diagnosis.silent_failures import stuck_judgement
from spikeguard_core.events import Judgement
from spikeguard_protocol import Kind, Verb

TURN = 0.62  # confidence that it takes to change one's mind,
FREE_TURNS, TURN_MORE, MOST_TURN = 4, 0.04, 0.9  # more for each change past these, up to this
CLIMB_ROWS = 60  # a real spike may climb this long before its peak
THIRD_ROWS, RISEN = 12, 1.5  # rows of a mean, and scales above the mean before
CLIMB_PART, FAR_CLIMB_ROWS = 3.0, 24  # times the loss before: fewer rows will do
STAYS_PART = 4.0  # times the loss before: one that stays so high is lost, below that it lingers
UNSEEN_ROWS = 150  # after the peak: by then one that shows no course does not heal
SUREST = 0.97
HIGH_ROWS = 3  # that a height takes
HIGH_PART = 9.0  # times the loss before, above it
TURNED = 0.8  # of its peak: below it an excess climbs no more
CLEAR = 10.0  # scales above 0 of a level whose size tells something
SWINGS = 3  # rises that noise does not explain, after the peak
NOT_FALLING_ROWS = 24  # after which an excess that has not fallen is not expected to
GUESS_ROWS = 12  # batches of odd data in a row may lie as high as guessing
LEFT_BEHIND, AT_GUESS = 0.7, 0.95  # of the loss at which the run began
RETURNED = 0.7  # that what came back after a command lasts, before its course is seen
ACTS = {
    Verb.ROLLBACK: "going back",
    Verb.SKIP_BATCHES: "skipping batches",
    Verb.SCALE_LR: "scaling the learning rate",
    Verb.APPLY: "the mitigation",
}


def classify(episode: Episode, outlook: Outlook | None, settings: DetectionSettings) -> Judgement:
    """Judge the course of `episode` up to its newest row, with the `outlook` there."""
    if episode.nonfinite_run or episode.drops:
        return _nonfinite(episode, settings)
    if episode.trend is None or not episode.recent:
        return Judgement(Kind.RECOVERABLE, 0.5, "finite again; no baseline to compare with")
    return _height(episode) or _climbing(episode) or _course(episode, outlook)


def hold(before: Judgement, now: Judgement, changes: int, calm: bool) -> Judgement:
    """Keep the kind while the evidence for another one is little better than a guess. After many
    `changes` it takes more, and to be recoverable again a loss that stays in its band (`calm`): one
    that swings would be renamed at every swing."""
    least = min(MOST_TURN, TURN + TURN_MORE * max(0, changes - FREE_TURNS))
    swings = now.kind is Kind.RECOVERABLE and changes >= FREE_TURNS and not calm
    if now.kind is before.kind or (now.confidence >= least and not swings):
        return now
    return Judgement(before.kind, 0.5, now.reason)


def at_level_before(episode: Episode) -> Judgement:
    """Healed, though a trend that had gone on falling would lie lower by now."""
    level, before = median(episode.recent_values[-SETTLED_ROWS:]), episode.judgement
    sure = max(TURN, before.confidence if before.kind is Kind.RECOVERABLE else 0.0)
    known = episode.trend.level if episode.trend else level
    reason = f"loss is back at the level before it: {level:.4g}, and {known:.4g} then"
    return Judgement(Kind.RECOVERABLE, sure, reason)


def _nonfinite(episode: Episode, settings: DetectionSettings) -> Judgement:
    drops, run = episode.drops, episode.nonfinite_run
    if drops >= settings.drop_limit:
        return stuck_judgement(drops)
    if drops:
        updates = "update" if drops == 1 else "updates in a row"
        reason = f"{drops} non-finite {updates} kept out of the weights"
        return Judgement(Kind.RECOVERABLE, 0.8, reason)
    sure = min(0.99, 1.0 - 0.4 * 0.4 ** (run - 1))
    if episode.zero:
        return Judgement(
            Kind.DIVERGENT, sure, "the loss is exactly 0, which some tools log for NaN"
        )
    what = "the loss" if episode.nonfinite_loss else "the gradient norm"
    return Judgement(Kind.DIVERGENT, sure, f"{what} is not finite")


def _height(episode: Episode) -> Judgement | None:
    """Divergent by height alone: three rows at ten times the loss before, or back at the level of
    guessing, which the run had left well behind."""
    assert episode.trend is not None
    before, newest = episode.trend.level, episode.recent_values[-HIGH_ROWS:]
    if len(newest) < HIGH_ROWS or not episode.recent:
        return None
    if episode.downward:
        return Judgement(Kind.DIVERGENT, 0.9, f"{_above(episode)}, far below any loss before")
    low = min(newest)
    if low - before >= HIGH_PART * max(abs(before), episode.scale):
        high = newest[-1]
        times = f", {nats(high / before)} times the loss before" if before > 0.0 else ""
        reason = f"loss is {nats(high)} at step {episode.newest_step:,}{times}"
        return _high(episode, 0.95, reason)
    clear = before > CLEAR * episode.scale  # of a level about 0 nothing is told by its size
    left = clear and before < LEFT_BEHIND * episode.guess
    least = AT_GUESS * episode.guess
    if left and median(newest) >= least:
        high = newest[-1] if newest[-1] >= least else median(newest)
        how = "higher than" if high > episode.guess else "as high as"
        reason = f"loss is {nats(high)}, {how} where the run began"
        sure = 0.85 if episode.rows >= GUESS_ROWS else 0.65
        return _high(episode, sure, reason)
    return None


def _high(episode: Episode, sure: float, reason: str) -> Judgement:
    """Divergent at such a height; a loss that falls from there goes on to settle, too high."""
    turned = max(episode.recent[-HIGH_ROWS:]) < TURNED * episode.peak_excess
    if turned and episode.rows >= GUESS_ROWS:
        return Judgement(Kind.LINGERING, 0.85, f"{reason}, and falling")
    return Judgement(Kind.DIVERGENT, sure, reason)


def _climbing(episode: Episode) -> Judgement | None:
    """Divergent if it still reaches new heights long after the onset."""
    assert episode.trend is not None
    if episode.since_peak > 10 and not _rises(episode):
        return None
    least, before = CLIMB_ROWS, episode.trend.level
    newest = episode.recent_values[-HIGH_ROWS:]
    times = min(newest, default=0.0) / before if before > 0.0 else 0.0
    if times >= CLIMB_PART:
        least = FAR_CLIMB_ROWS
    rows = episode.rows - episode.risen_row
    if rows < least:
        return None
    sure = min(0.95, 0.5 + 0.45 * (rows - least) / 100)
    if times >= CLIMB_PART:
        sure = max(sure, 0.75)
    return Judgement(Kind.DIVERGENT, sure, f"{_above(episode)} and still climbing")


def _rises(episode: Episode) -> bool:
    """Whether the loss of each third of the newest rows is higher than of the one before: where
    noise hides the new peaks."""
    rows = len(episode.recent_values) // 3
    if rows < THIRD_ROWS:
        return False
    first, middle, last = (
        clipped_mean(episode.recent_values[part * rows :][:rows], episode.scale)
        for part in range(3)
    )
    return min(last - middle, middle - first) > RISEN * episode.scale


def _course(episode: Episode, outlook: Outlook | None) -> Judgement:
    if episode.slow:  # what rose for so long is not expected to heal before it has
        sure = min(0.9, 0.6 + 0.001 * episode.rows)
        return Judgement(Kind.LINGERING, sure, f"{_above(episode, outlook)} after a slow rise")
    if outlook is None:
        return _undecided(episode)
    swings = episode.rises >= SWINGS  # not a height at which one spike stays before it falls
    seen = trust(episode.rows if swings else episode.since_turn)
    lasting = outlook.lasting * seen
    if outlook.excess > outlook.tolerance:
        if swings and episode.rows >= CLIMB_ROWS and episode.since_turn < PLATEAU_ROWS:
            lasting = max(lasting, 0.65)
        if outlook.fall <= 0.0:
            lasting = max(lasting, 0.65 if episode.rows >= NOT_FALLING_ROWS else 0.5)
    if _rises(episode):
        lasting = max(lasting, 0.65)
    if lasting < 0.5:
        return Judgement(Kind.RECOVERABLE, min(SUREST, 1.0 - lasting), _healing(episode, outlook))
    sure = min(SUREST, lasting)
    if outlook.rising:
        return Judgement(Kind.DIVERGENT, sure, f"{_above(episode, outlook)} and rising")
    spread = NORMAL_MAD * median([abs(e - outlook.excess) for e in episode.recent[-48:]])
    if swings and spread > 5 * episode.scale:
        reason = f"{_above(episode, outlook)}, oscillating by {nats(spread)} without settling"
        return Judgement(Kind.DIVERGENT, sure, reason)
    before, newest = episode.trend.level if episode.trend else 0.0, episode.recent_values
    stays = outlook.fall < outlook.error
    if stays and 0.0 < STAYS_PART * before <= min(newest[-HIGH_ROWS:]):
        return Judgement(Kind.DIVERGENT, sure, _too_slow(episode, outlook))
    return Judgement(Kind.LINGERING, sure, _too_slow(episode, outlook))


def _undecided(episode: Episode) -> Judgement:
    reason = _above(episode)
    if episode.told_excess >= episode.scale and episode.since_turn:
        rise = "its last rise" if episode.peak_excess > 0.0 else "its onset"
        reason += f", {_steps(episode, episode.since_turn)} after {rise}"
    if episode.rows >= NOT_FALLING_ROWS and episode.since_turn < HIGH_ROWS:
        return Judgement(Kind.LINGERING, 0.65, reason)
    if episode.since_peak < UNSEEN_ROWS:
        if episode.recurrences:
            return Judgement(Kind.LINGERING, RETURNED, reason)
        return Judgement(Kind.RECOVERABLE, 1.0 - LASTS, reason)
    kind = Kind.DIVERGENT if episode.rises >= SWINGS else Kind.LINGERING
    return Judgement(kind, 0.6, reason)


def _above(episode: Episode, outlook: Outlook | None = None) -> str:
    """The one figure for it, with the step that it holds for; where that lies within the noise of a
    row, the mean that the outlook judges by."""
    excess, step = episode.told_excess, episode.newest_step
    if episode.downward:
        excess = -excess
    if abs(excess) < episode.scale and (outlook is None or _fell(episode, outlook)):
        return f"loss is on trend at step {step:,}"
    if outlook is None or abs(excess) >= episode.scale:
        assert episode.trend is not None
        return f"loss is {told_height(excess, episode.trend, step)} at step {step:,}"
    mean = off_trend(outlook.excess, outlook.doubt)
    return f"loss is {mean} over the newest {_steps(episode, outlook.width)}"


def _fell(episode: Episode, outlook: Outlook) -> bool:
    """Whether the loss came down at once, so that the outlook's rows tell no course of it."""
    newest = episode.told_excess
    return newest < outlook.excess / 2.0 and outlook.excess - newest > MOVED * episode.scale


def _healing(episode: Episode, outlook: Outlook) -> str:
    if outlook.excess <= outlook.tolerance:
        return f"loss is back on trend{_calm_for(episode)}"
    if episode.since_turn < PLATEAU_ROWS and outlook.lasting > 0.5:
        return f"{_above(episode, outlook)}, too early to say more"
    where = f"{_above(episode, outlook)}{_calm_for(episode)}"
    known = outlook.excess >= outlook.doubt and not _fell(episode, outlook)
    return f"{where} and falling" if known and outlook.fall >= outlook.error else where


def _calm_for(episode: Episode) -> str:
    calm = episode.calm_rows
    return f", in its band for {_steps(episode, calm)}" if calm > 1 else ""


def _steps(episode: Episode, rows: int) -> str:
    """Rows of a log as steps of the training."""
    steps = max(rows, round(rows * episode.gap))
    return f"{steps:,} {'step' if steps == 1 else 'steps'}"


def _too_slow(episode: Episode, outlook: Outlook) -> str:
    if _fell(episode, outlook) or outlook.excess < outlook.doubt:
        return _above(episode, outlook)
    how = "is not falling" if outlook.fall < outlook.error else "falls too slowly to be back"
    return f"{_above(episode, outlook)} and {how}"


def after_command(episode: Episode, settings: DetectionSettings) -> str:
    """Where the loss stands while the newest command is being judged."""
    past, wanted = episode.newest_step - episode.judged_from, settings.recover_steps
    assert episode.verb is not None
    after = ACTS[episode.verb]
    since = "the onset" if episode.verb is Verb.ROLLBACK else "the command"
    if past <= 0:
        ahead = f"{-past} {'step' if past == -1 else 'steps'} before {since}"
        return f"training is {ahead}, and {after} is judged {wanted} steps past it"
    if past < wanted:
        when = f"{after} is judged {wanted} steps past {since}, {past} so far"
        return f"{_level(episode, settings)}; {when}"
    return f"{_level(episode, settings)} {past} steps past {since}"


def at_the_end(episode: Episode, settings: DetectionSettings) -> Judgement:
    """What is held of an incident that the run's end cuts short."""
    judgement = episode.judgement
    if episode.verb is None:
        return judgement
    past = episode.newest_step - episode.newest_onset
    where = f"{past} steps past the onset" if past >= 0 else f"{-past} steps before the onset"
    reason = f"the run ended {where}: {_level(episode, settings)}"
    return replace(judgement, reason=reason)


def _level(episode: Episode, settings: DetectionSettings) -> str:
    if episode.newest_excess is None:
        return "the loss is not finite" if episode.nonfinite_run else "no loss was seen yet"
    if episode.is_back(settings):
        return "loss is on trend"
    return _above(episode)
