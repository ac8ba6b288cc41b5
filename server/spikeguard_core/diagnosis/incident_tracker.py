"""Follows one open incident since its onset, in constant memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from spikeguard_core.detection.noise import median
from spikeguard_core.detection.norms import Leading
from spikeguard_core.detection.own_signals import OwnSignal
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.diagnosis.evidence import REPLICAS_APART, Evidence
from spikeguard_core.events import Judgement, Trend
from spikeguard_protocol import BatchRange, Kind, Verb

CURES = (Verb.ROLLBACK, Verb.SKIP_BATCHES, Verb.SCALE_LR, Verb.APPLY)  # commands that are judged
LASTS = 0.45  # probability of lasting damage while nothing but its height was seen
SETTLED_ROWS = 40  # newest rows that tell the level
RECENT = 128  # rows of excess that are kept
SMOOTH = 7  # rows of a median that follows the excess
MOVED = 4.0  # scales from their median: the newest row is no noise about it
CLIMB_GAP = 10  # rows after a peak until it takes such a median to make another


@dataclass(slots=True)
class Episode:
    """Counts are of rows with a loss, from the onset on, or from where it came back."""

    onset_step: int
    onset_batches: BatchRange | None
    signal: str
    trend: Trend | None
    gap: float  # median distance of rows before the onset, in steps
    dropped: bool
    judgement: Judgement
    first_moves: dict[str, int] = field(default_factory=dict)
    worst_z: dict[str, float] = field(default_factory=dict)
    zero: bool = False  # losses of exactly 0 opened it, which stand for values not finite
    slow: bool = False  # the loss had risen slowly
    downward: bool = False  # the loss left its baseline far downwards
    guess: float = math.inf  # the loss at which the run began: the level of guessing
    newest_step: int = 0
    rows: int = 0
    peak_step: int = 0
    peak_loss: float | None = None
    peak_row: int = 0
    peak_excess: float = 0.0
    risen_row: int = 0  # where it began, or rose anew
    peak_value: float = -math.inf  # the loss there
    turn_row: int = 0  # of the last rise that noise does not explain
    rises: int = 0  # such rises after the peak
    low: float = math.inf  # least smoothed excess since the last rise
    fallen: float = 0.0  # from its highest row to the lowest smoothed loss after it
    newest_excess: float | None = None
    nonfinite_run: int = 0  # newest rows that were not finite
    nonfinite_loss: bool = False  # of that run, the loss itself: else a gradient norm alone
    finite_run: int = 0
    drops: int = 0  # dropped updates in a row
    calm_rows: int = 0  # newest rows in the band
    calmed: bool = False  # it was in the band for long enough to learn from the run again
    recent_steps: list[int] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)  # excess over trend, finite rows only
    recent_values: list[float] = field(default_factory=list)
    settled: bool = False
    changes: int = 0  # of the kind, as the loss went by itself
    in_band: Judgement | None = None  # of the newest row in the band
    told: Judgement | None = None
    told_peak: float | None = None
    told_row: int = 0
    verb: Verb | None = None  # the newest command that was applied and is being judged; of a run
    # that was started again from before it, a rollback: that is what it amounts to
    verb_step: int = 0  # the newest step when it was applied; of a rollback on the old segment
    verb_rows: int = 0  # rows since, of those that it is judged by
    treated: bool = False  # a command was applied at some time
    went_back: bool = False  # the run went on from before its onset
    recurrences: int = 0
    awaited: bool = False  # somebody is asked what to do, so that nothing is accepted meanwhile
    levelled: bool = False  # it stays where it is, and what comes is judged against that level
    stayed: bool = False  # it was levelled before, and has not been back on its trend since
    evidence: Evidence = field(default_factory=Evidence)  # of its cause

    def see(self, step: int, value: float, settings: DetectionSettings) -> None:
        """Take one more row of the loss."""
        self.rows += 1
        self.newest_step = step
        if not math.isfinite(value):
            self.newest_excess = None
            self.nonfinite_run += 1
            self.finite_run = self.calm_rows = 0
            return
        self.nonfinite_run = 0
        self.finite_run += 1
        farther = self.peak_loss is None or value > self.peak_loss
        if self.downward and self.peak_loss is not None:
            farther = value < self.peak_loss
        if farther:
            self.peak_loss, self.peak_step = value, step
        if self.trend is None:
            return
        excess = value - self.trend.at(step)
        excess = abs(excess) if self.downward else excess
        self.newest_excess = excess
        self.recent_steps.append(step)
        self.recent.append(excess)
        self.recent_values.append(value)
        for kept in (self.recent_steps, self.recent, self.recent_values):
            del kept[:-RECENT]
        inside = excess <= settings.band_z * self.scale + self._slack(step)
        self.calm_rows = self.calm_rows + 1 if inside else 0
        self._turn(excess)

    def leave_out(self, step: int) -> None:
        """Forget the rows from `step` on: a new spike began there, and they say nothing of this."""
        kept = sum(1 for known in self.recent_steps if known < step)
        if kept == len(self.recent_steps) or not kept:
            return
        for rows in (self.recent_steps, self.recent, self.recent_values):
            del rows[kept:]
        self.newest_step, self.newest_excess = self.recent_steps[-1], self.recent[-1]
        self.judgement = self.in_band or self.judgement

    def _turn(self, excess: float) -> None:
        """Follow the last height that was more than noise."""
        smooth, climbs = self.smooth, self.rows - self.peak_row <= CLIMB_GAP
        if self.peak_loss is not None:
            self.fallen = max(self.fallen, self.peak_loss - median(self.recent_values[-SMOOTH:]))
        high = excess if climbs else smooth
        value = self.recent_values[-1] if climbs else median(self.recent_values[-SMOOTH:])
        # Of a level that stays the excess grows as its trend falls: that is no new peak.
        is_higher = self.downward or value > self.peak_value
        if is_higher and high > self.peak_excess + 2.0 * self.scale:
            self.peak_excess, self.peak_value, self.peak_row = high, value, self.rows
            self.turn_row, self.low = self.rows, excess
        elif smooth > self.low + 0.3 * abs(self.low) + 3.0 * self.scale:
            self.turn_row, self.low = self.rows, smooth
            self.rises += 1
        else:
            self.low = min(self.low, smooth)

    @property
    def scale(self) -> float:
        return self.trend.scale if self.trend else math.inf

    def deviations(self, step: int, loss: float) -> float | None:
        """How far a finite loss lies above where it was heading; None where that is unknown."""
        return None if self.trend is None else (loss - self.trend.at(step)) / self.scale

    @property
    def smooth(self) -> float:
        """Median of the newest excesses."""
        return median(self.recent[-SMOOTH:])

    @property
    def excess(self) -> float | None:
        """How far the loss lies above its trend at the newest step: the one figure for it. Below 0
        where it left its level downwards.

        None where the newest row is not finite, no trend is known, or the run went back to before
        the rows that the trend is of.
        """
        if self.newest_excess is None or self.trend is None or self.newest_step < self.trend.step:
            return None
        return -self.told_excess if self.downward else self.told_excess

    @property
    def told_excess(self) -> float:
        """Median of an odd number of the newest excesses: of two rows it would be a loss that no
        step had. The newest row's own where that is another by more than noise: the loss moves."""
        rows = min(SMOOTH, len(self.recent))
        middle, newest = median(self.recent[-(rows - (rows + 1) % 2) :]), self.recent[-1]
        return newest if abs(newest - middle) > MOVED * self.scale else middle

    @property
    def judged_from(self) -> int:
        """The step past which the newest command has to show its effect.

        A rollback is judged on its new segment, where the step at which it was applied means
        nothing: there it has to pass the onset, or the last one where the spike came back.
        """
        onset = self.newest_onset
        return onset if self.verb is Verb.ROLLBACK else max(onset, self.verb_step)

    @property
    def reads_cause(self) -> bool:
        """Whether rows still tell the cause: those before a command, or from a return on."""
        if self.evidence.first_step is not None:
            return self.verb is None
        return not self.treated and not self.went_back

    @property
    def newest_onset(self) -> int:
        """Where it began, or came back."""
        again = self.evidence.again_step
        return self.onset_step if again is None else max(self.onset_step, again)

    @property
    def newest_batches(self) -> BatchRange | None:
        """What the step of `newest_onset` consumed."""
        began_anew = self.newest_onset == self.evidence.again_step
        return self.evidence.again_batches if began_anew else self.onset_batches

    def is_back(self, settings: DetectionSettings) -> bool:
        """Whether row by row and on the whole it is where it was heading before."""
        rows = self.settle_rows(settings)
        whole = median(self.recent[-rows:])
        level = settings.level_z * self.scale + self._slack(self.newest_step)
        return self.calm_rows >= rows and whole <= level

    def _slack(self, step: int) -> float:
        """The descent expected since the onset: a level as before is healed all the same."""
        return max(0.0, self.trend.level - self.trend.at(step)) if self.trend else 0.0

    @property
    def since_peak(self) -> int:
        return self.rows - self.peak_row

    @property
    def since_turn(self) -> int:
        return self.rows - self.turn_row

    def horizon(self, settings: DetectionSettings) -> int:
        """Rows after the peak at which the kind is decided."""
        return max(settings.horizon_rows, round(settings.horizon_steps / self.gap))

    def settle_rows(self, settings: DetectionSettings) -> int:
        rows = round(settings.settle_rows / self.gap)
        return max(settings.settle_rows_sparse, rows)

    def note(self, signal: str, step: int, z: float, settings: DetectionSettings) -> None:
        """Keep how far a leading signal went, and when it first did."""
        if z > self.worst_z.get(signal, 0.0):
            self.worst_z[signal] = z
        if z >= settings.confirm_z and signal not in self.first_moves:
            self.first_moves[signal] = step

    def note_apart(self, since: int) -> None:
        """Ranks hold different weights, since the update of step `since` at the earliest."""
        self.worst_z[REPLICAS_APART] = math.inf
        self.first_moves[REPLICAS_APART] = since

    def worth_telling(self) -> bool:
        """Whether the judgement changed enough since it was last told."""
        told = self.told
        if told is None or told.kind is not self.judgement.kind:
            return True
        if abs(told.confidence - self.judgement.confidence) >= 0.05:
            return True
        since = self.rows - self.told_row
        return since >= 20 or (self.peak_loss != self.told_peak and since >= 4)

    def treat(self, step: int, verb: Verb) -> None:
        """A command was applied."""
        self.verb, self.verb_step, self.treated, self.calmed = verb, step, True, False
        self.levelled = self.stayed = False
        self.evidence.beyond = False
        self.forget_course()

    def go_back(self, step: int) -> None:
        """The run went on from an earlier `step`, by a rollback or because it was started again."""
        if step <= self.newest_onset:
            self.verb = Verb.ROLLBACK
        self.went_back |= self.verb is Verb.ROLLBACK
        self.calmed = self.levelled = self.stayed = False
        self.forget_course()

    def rise_anew(self) -> None:
        """A new spike began at the level at which it stayed."""
        self.peak_excess = self.low = max(0.0, self.newest_excess or 0.0)
        self.peak_value = -math.inf
        self.peak_row = self.turn_row = self.risen_row = self.rows
        self.rises, self.levelled = self.rises + 1, False

    def come_back(self) -> None:
        """The command did not hold."""
        self.verb, self.recurrences = None, self.recurrences + 1
        self.rows = self.told_row = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """The next row is the first of its course."""
        self.forget_course()
        self.peak_row = self.turn_row = self.risen_row = self.rows
        self.peak_excess, self.peak_value, self.low = 0.0, -math.inf, math.inf
        self.rises = 0

    def forget_course(self) -> None:
        """What came before a command is no evidence on what comes after it."""
        self.recent_steps.clear()
        self.recent.clear()
        self.recent_values.clear()
        self.calm_rows = self.nonfinite_run = self.drops = self.verb_rows = 0
        self.newest_excess = None


def away_judgement(signal: str, own: Leading | OwnSignal) -> Judgement:
    """What is held while `signal` is off its baseline and the loss is not: weights and gradients do
    not come back by themselves."""
    kind = Kind.LINGERING if isinstance(own, Leading) else Kind.RECOVERABLE
    return Judgement(kind, 0.55, f"{signal} {own.reason}")
