"""When a signal leaves its baseline: a jump, a run of records, a slow lift, or an outlier batch.

Law: sequential and pure per row. A single row is never an alarm unless it is not finite; it is
held until the next one confirms or clears it. Nothing held or suspect enters the baseline.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from spikeguard_protocol import BatchRange
from spikeguard_server.domain.detection.baseline import Baseline, Fit, abscissa, median
from spikeguard_server.domain.detection.batch_path import RowBatch, is_ready
from spikeguard_server.domain.detection.detectors.contract import Verdict
from spikeguard_server.domain.detection.outliers import MIDDLE, Lone, Suspect
from spikeguard_server.domain.detection.settings import DetectionSettings
from spikeguard_server.domain.events import Trend

__all__ = ["Suspect", "TrendTest", "Verdict"]

RECENT_ROWS = 40  # rows that are looked back at when an incident opens
MOST_INERTIA = 1.2  # of noise whose runs say something
TWICE = 2
LIFTS = 8  # newest healed ones that are remembered
_BEFORE, _NOWHERE = -1, -2  # a lift that began before the stretch, and none


@dataclass(slots=True)
class TrendTest:
    """The test of the loss against a robust line, row by row: the detector `robust_trend`."""

    baseline: Baseline
    held: Suspect | None = None  # far off, not yet confirmed
    held_rows: int = 0  # rows that confirm it so far, itself among them
    outlier: Suspect | None = None  # set with the verdict OUTLIER
    last_z: float = 0.0  # of the row before, unless it was held
    lift: float = 0.0  # cumulated deviations of a slow lift
    lift_from: Suspect | None = None  # where that lift began
    lift_rows: int = 0  # rows since
    healed_lifts: list[float] = field(default_factory=list)  # newest that opened an incident
    opened_by_lift: bool = False  # what the verdict SPIKE was for, the newest time
    record_from: Suspect | None = None  # the first of rows in a row higher than all before
    records: int = 0  # how many they are
    rows: list[tuple[int, float]] = field(default_factory=list)  # newest finite rows
    lone: Lone = field(default_factory=Lone)

    def look(
        self, step: int, value: float, batches: BatchRange | None, settings: DetectionSettings
    ) -> tuple[Verdict, float]:
        """Judge one finite row of the loss and keep it, if calm. Returns verdict and z."""
        self.rows.append((step, value))
        del self.rows[:-RECENT_ROWS]
        self.baseline.restart_if_stale(step)
        fit = self.baseline.fit
        if fit is None:
            self.baseline.admit(step, value, settings)
            return Verdict.UNKNOWN, 0.0
        place = abscissa(step)
        z = fit.z(place, fit.rest(place, value)) / _caution(len(self.baseline.steps))
        row = Suspect(step, value, z, batches)
        local = (value - self._local()) / fit.scale
        self._count_record(row, fit, settings)
        verdict = self._judge(row, local, fit.inertia, settings)
        if self._was_outlier(row, local, fit, settings) and verdict is Verdict.CALM:
            verdict = Verdict.OUTLIER
        return verdict, z

    def _judge(
        self, row: Suspect, local: float, inertia: float, settings: DetectionSettings
    ) -> Verdict:
        z = row.z
        self.opened_by_lift = False
        if self.records >= settings.record_rows:
            return Verdict.SPIKE
        # Half way to the recent level: a jump has to stand out of a lift that is under way.
        jump = min(z, (z + local) / 2)
        if self.held is not None:
            return self._after_held(row, jump, settings)
        self._lift(row, settings)
        if self.lift >= self._limit(inertia, settings) and self.lift_rows >= settings.drift_rows:
            self.opened_by_lift = True
            return Verdict.SPIKE
        before, self.last_z = self.last_z, z
        if jump >= settings.suspect_z:
            self.held_rows = 2 if before >= settings.warm_z else 1
            if self.held_rows >= settings.confirm_rows:
                return Verdict.SPIKE
            self.held = Suspect(row.step, row.value, min(z, local), row.batches)
            return Verdict.HELD
        self._admit(row, settings)
        return Verdict.CALM

    def _limit(self, inertia: float, settings: DetectionSettings) -> float:
        """What a lift has to exceed: what came twice in this run and healed by itself, as with each
        new epoch of data, is no news the third time."""
        limit = settings.drift_limit * inertia
        if len(self.healed_lifts) < TWICE:
            return limit
        usual = settings.drift_usual * sorted(self.healed_lifts)[-TWICE]
        return max(limit, min(usual, settings.drift_most))

    def _count_record(self, row: Suspect, fit: Fit, settings: DetectionSettings) -> None:
        """Where often-high rows make the scale, a short spike is no six of it: but noise that is
        hardly correlated does not go beyond all that it did in many rows, in a row."""
        limit = max(settings.record_part * fit.highest, settings.record_z)
        if row.z < limit or fit.inertia > MOST_INERTIA:
            self.record_from, self.records = None, 0
            return
        self.record_from, self.records = self.record_from or row, self.records + 1

    def _was_outlier(
        self, row: Suspect, local: float, fit: Fit, settings: DetectionSettings
    ) -> bool:
        """Whether the row before was an outlier batch, now that this one is seen: `outlier`."""
        nearer = sorted((0.0, row.z, local))[1]  # far from the line and from the rows before
        z = nearer * (fit.scale / fit.narrow)
        if self.lone.suspect is None and abs(z) < settings.lone_z:
            return False
        alone = self.lone.look(Suspect(row.step, row.value, z, row.batches), settings)
        if alone is None:
            return False
        before = self.baseline.newest(MIDDLE, alone.step)
        if not self.lone.is_event(alone, before, settings):
            return False
        self.outlier = alone
        return alone.value - fit.at(alone.step) >= settings.outlier_part * abs(alone.value)

    def is_calm(self, settings: DetectionSettings) -> bool:
        """Whether no row waits for the next, no lift is under way, and the baseline is full."""
        waits = self.held is not None or self.lone.suspect is not None
        lifted = self.lift >= settings.drift_hold
        return not waits and not lifted and is_ready(self.baseline, settings)

    def look_at_calm(
        self,
        stretch: RowBatch,
        batches: Sequence[BatchRange | None],
        settings: DetectionSettings,
    ) -> list[float]:
        """Take the rows of `stretch` up to the first that is not calm; returns their z.

        The same as `look` row by row; only while `is_calm`.
        """
        stretch.look(settings.suspect_z, settings, alone=settings.lone_z)
        calm = self._lift_by(stretch, batches, settings)
        stretch.take(calm)
        if calm:
            self.last_z = stretch.z[calm - 1]
            self.record_from, self.records = None, 0
            newest = slice(max(0, calm - RECENT_ROWS), calm)
            fresh = zip(stretch.steps[newest], stretch.values[newest], strict=True)
            self.rows = [*self.rows, *fresh][-RECENT_ROWS:]
        return stretch.z[:calm]

    def onset(self, row: Suspect) -> Suspect:
        """The first row of the spike that `row` confirmed."""
        known = self.held, self.lift_from, self.record_from
        starts = [at for at in known if at is not None]
        return min(starts, key=lambda at: at.step, default=row)

    def clear(self) -> None:
        self.held = self.lift_from = self.record_from = self.outlier = None
        self.lift = self.last_z = 0.0
        self.held_rows = self.records = 0
        self.lone.clear()

    def note_healed(self, lift: float) -> None:
        """An incident that a lift had opened is over, and nobody did anything."""
        self.healed_lifts = [*self.healed_lifts, lift][-LIFTS:]

    @property
    def knows(self) -> bool:
        """Whether rows can be judged."""
        return self.baseline.fit is not None

    @property
    def gap(self) -> float:
        """Median distance of rows, in steps; 1 where it is not known."""
        return self.baseline.gap

    def trend(self, step: int, ahead: int) -> Trend | None:
        """Where the loss heads from `step` on, for some `ahead` steps."""
        return self.baseline.trend(step, ahead)

    def known(self) -> list[tuple[int, float]]:
        """The newest calm rows."""
        return self.baseline.known()

    def learn(self, rows: Sequence[tuple[int, float]], settings: DetectionSettings) -> None:
        """Take calm rows that another detector saw, as far as they are newer."""
        newest = max((step for step, _ in self.known()), default=-1)
        for step, value in rows:
            if step > newest:
                self.look(step, value, None, settings)
        self.clear()

    def restart(self) -> None:
        """Forget every row of the baseline."""
        self.baseline.restart()

    def drop_waiting(self) -> None:
        """Forget the rows in quarantine: something did come of them."""
        self.baseline.drop_waiting()

    def cut(self, step: int, settings: DetectionSettings) -> None:
        """Forget every row at `step` or later: the run went back."""
        self.baseline.cut(step, settings)

    def settle(self, step: int, level: float, settings: DetectionSettings) -> None:
        """Go on at `level`, as noisy as before."""
        self.baseline.settle(step, level, settings)

    def _local(self) -> float:
        """Median of the rows just before this one, or before those that are held."""
        last = -1 if self.held is None else -1 - self.held_rows
        return median([value for _, value in self.rows[last - 7 : last]])

    def _after_held(self, row: Suspect, z: float, settings: DetectionSettings) -> Verdict:
        held = self.held
        assert held is not None
        if z >= settings.confirm_z:
            self.held_rows += 1
            return Verdict.SPIKE if self.held_rows >= settings.confirm_rows else Verdict.HELD
        self.held = None
        self.last_z = row.z
        self._lift(row, settings)
        self._admit(held, settings)
        self._admit(row, settings)
        return Verdict.CALM

    def _lift(self, row: Suspect, settings: DetectionSettings) -> None:
        gain = min(row.z, settings.drift_clip) - settings.drift_slack
        if self.lift <= settings.drift_start and gain > 0.0:
            self.lift_from, self.lift_rows = row, 0
        self.lift_rows += 1
        self.lift = max(0.0, self.lift + max(gain, -settings.drift_clip))
        if self.lift == 0.0:
            self.lift_from = None

    def _lift_by(
        self, stretch: RowBatch, batches: Sequence[BatchRange | None], settings: DetectionSettings
    ) -> int:
        """`_lift` over a stretch, as far as the lift opens no incident; returns how far."""
        gains, rises = stretch.gains(settings.drift_slack, settings.drift_clip)
        begin, hold, count = settings.drift_start, settings.drift_hold, len(gains)
        calm, start, lift, rows = 0, _BEFORE, self.lift, self.lift_rows
        while calm < count:
            if lift == 0.0 and (rise := rises[bisect_left(rises, calm)]) > calm:
                start, rows, calm = _NOWHERE, rows + rise - calm, rise
                continue
            gain = gains[calm]
            if lift + gain >= hold:
                break
            if lift <= begin and gain > 0.0:
                start, rows = calm, 0
            rows += 1
            lift += gain
            if lift <= 0.0:
                lift, start = 0.0, _NOWHERE
            calm += 1
        self.lift, self.lift_rows = lift, rows
        if start >= 0:
            at, value, z = stretch.steps[start], stretch.values[start], stretch.z[start]
            self.lift_from = Suspect(at, value, z, batches[start])
        elif start == _NOWHERE:
            self.lift_from = None
        return calm

    def _admit(self, row: Suspect, settings: DetectionSettings) -> None:
        lifted = self.lift >= settings.drift_hold
        self.baseline.admit(row.step, row.value, settings, lifted=lifted)


def _caution(rows: int) -> float:
    """How much wider a young baseline's band is drawn, for what it cannot know yet."""
    return 1.0 + 16.0 / max(rows, 1) if rows < 128 else 1.0
