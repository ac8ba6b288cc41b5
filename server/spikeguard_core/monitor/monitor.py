"""One run as detection sees it: takes samples, tells events.

Causal and deterministic: the same samples give the same events one by one, in batches, or with a
dump and load between any two. Memory is constant. At most one incident is open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import numpy as np

from spikeguard_core.detection.baseline import APART, Judged
from spikeguard_core.detection.loss_test import Suspect, Verdict
from spikeguard_core.detection.norms import LEADING, Leading
from spikeguard_core.detection.own_signals import USUAL_LIMITS, OwnSignal
from spikeguard_core.detection.sample import Sample, SampleColumns
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.diagnosis.cause.ranking import rank
from spikeguard_core.diagnosis.classifier import at_the_end
from spikeguard_core.diagnosis.evidence import (
    OTHER_DATA,
    RANKS_LOST_STEP,
    REPLICAS_APART,
    STEP_SKIPPED,
    gather_evidence,
)
from spikeguard_core.diagnosis.incident_tracker import (
    OTHER_DATA_JUDGEMENT,
    Episode,
    away_judgement,
    first_judgement,
    slow_judgement,
    zero_judgement,
)
from spikeguard_core.diagnosis.silent_failures import (
    GRAD_NORMS,
    apart_in,
    batches_before,
    first_apart,
    first_dropped,
    is_overflow,
    stuck_judgement,
    without_update,
)
from spikeguard_core.events import (
    Closed,
    Event,
    Judgement,
    LoneValue,
    Opened,
    Precursor,
    Trend,
)
from spikeguard_core.monitor.incident_updates import CURES, Course, trend_from
from spikeguard_core.monitor.state import (
    STATE_VERSION,
    DetectorChoice,
    OlderStateVersion,
    State,
    UnknownStateVersion,
    begins_alone,
    freeze,
    thaw,
)
from spikeguard_protocol import Kind, Outcome, Signal, Verb

__all__ = [
    "DetectionSettings",
    "DetectorChoice",
    "Monitor",
    "OlderStateVersion",
    "UnknownStateVersion",
]

LOSS = Signal.LOSS.value
DROPPED = Signal.UPDATE_DROPPED.value
RATE = Signal.LR.value
AT_ONCE = 512  # rows that are judged together
FEWEST = 8  # and the least for which that is worth it
ODD = (
    DROPPED,
    STEP_SKIPPED,
    REPLICAS_APART,
    OTHER_DATA,
    RANKS_LOST_STEP,
)  # looked at row by row where not 0


class Monitor:
    """Baselines, the test of the loss, and the open incident of one run."""

    STATE_VERSION: int = STATE_VERSION

    def __init__(self, settings: DetectionSettings = DetectionSettings()) -> None:  # noqa: B008
        self._state = State(settings)
        self._choice = DetectorChoice(settings)
        self._state.choose(self._choice)

    def use(self, choice: DetectorChoice) -> bool:
        """Judge by `choice` from the next sample on; what was learnt of the run stays known.

        Returns whether that changes anything.
        """
        if choice == self._choice:
            return False
        self._choice = choice
        self._state.choose(choice)
        return True

    def anew(self) -> Monitor:
        """One that knows nothing yet and judges as this one does."""
        monitor = Monitor()
        monitor.use(self._choice)
        return monitor

    @property
    def open(self) -> bool:
        """Whether an incident is open."""
        return self._state.episode is not None

    @property
    def newest_step(self) -> int | None:
        return self._state.newest_step

    @property
    def attentive(self) -> bool:
        """Whether slow signals are worth measuring at every step."""
        until, newest = self._state.attentive_until, self._state.newest_step
        busy = self._state.episode is not None and not self._state.episode.calmed
        return busy or (until is not None and newest is not None and newest <= until)

    def deviations(self, step: int, loss: float | None) -> float | None:
        """How far the newest loss, of `step`, lies above its trend; None where that is unknown."""
        episode, test = self._state.episode, self._state.test
        if loss is None or not math.isfinite(loss):
            return None if loss is None else math.inf
        if episode is not None:
            return episode.deviations(step, loss)
        return test.last_z if test.knows else None

    def heading(self, step: int) -> Trend | None:
        """The trend of the loss from `step` on, as an incident that began there is judged by."""
        return None if self.open else trend_from(self._state, step)

    def own_deviations(self) -> dict[str, float]:
        """How far the newest value of each signal that the policy names lies off its baseline, in
        the direction that it names; inf where it is not finite or beyond a limit."""
        known = self._state.own.items()
        return {
            name: own.newest_z
            for name, own in known
            if own.newest is not None and own.choice != USUAL_LIMITS.get(name)
        }

    @property
    def first_judged_step(self) -> int | None:
        """The first step whose loss was judged; None while too few rows are known."""
        return self._state.first_judged

    def observe(self, samples: Sequence[Sample]) -> list[Event]:
        """Take samples in the order of training; returns what came to be known."""
        events: list[Event] = []
        table = SampleColumns.of(samples if len(samples) >= FEWEST else ())
        row, alone = 0, 0
        while row < len(samples):
            if alone <= 0 and len(samples) - row >= FEWEST:
                calm = self._take_calm(table[row : row + AT_ONCE], events)
                row += calm
                alone = 0 if calm >= FEWEST else FEWEST
            if row < len(samples):
                self._take(samples[row], events)
                row, alone = row + 1, alone - 1
        return events

    def intervened(self, step: int, verb: Verb) -> list[Event]:
        """A command was applied at `step`: from now on judge whether it worked."""
        episode = self._state.episode
        if episode is not None and verb in CURES:
            episode.treat(step, verb)
        return []

    def await_decision(self, awaited: bool) -> bool:
        """Accept no level of the open incident while `awaited`; returns whether that is news."""
        episode = self._state.episode
        news = episode is not None and episode.awaited is not awaited
        if episode is not None:
            episode.awaited = awaited
        return news

    def rewind(self, past: Monitor) -> None:
        """The run went on from where it was at `past`; an open incident stays open."""
        episode = self._state.episode
        self._state = deepcopy(past._state)
        self._state.choose(self._choice)
        self._state.test.clear()
        self._state.episode = episode
        if episode is not None:
            episode.go_back()

    def end(self) -> list[Event]:
        """The run ended: an open incident closes as it stands."""
        episode, self._state.episode = self._state.episode, None
        if episode is None:
            return []
        judgement, causes = at_the_end(episode, self._state.settings), rank(episode.evidence)
        return [Closed(episode.newest_step, Outcome.RUN_ENDED, judgement, causes, episode.excess)]

    def dump(self) -> bytes:
        """The whole state, a few kB."""
        return freeze(self._state)

    @classmethod
    def load(cls, state: bytes) -> Monitor:
        """The monitor that `dump` wrote; raises `UnknownStateVersion`."""
        monitor = cls()
        loaded = monitor._state = thaw(state)
        own = {name: signal.choice for name, signal in loaded.own.items()}
        named = {name: choice for name, choice in own.items() if choice != USUAL_LIMITS.get(name)}
        monitor._choice = DetectorChoice(loaded.settings, dict(loaded.precursors), named)
        return monitor

    def _take_calm(self, rows: SampleColumns, events: list[Event]) -> int:
        """Take the samples before the first that is no calm next step; returns how many."""
        state, settings = self._state, self._state.settings
        test = state.test
        if state.episode is not None or test.waits or not test.baseline.settled:
            return 0
        plain = self._plain(rows)
        if not plain:
            return 0
        losses = rows.column(LOSS, math.nan)[:plain]
        calm, judged = test.calm_rows(rows.steps[:plain], losses, settings)
        beside: list[tuple[Leading | OwnSignal, Sequence[int], Judged]] = []
        signals: list[tuple[str, Leading | OwnSignal]] = [
            *((name, state.leading_of(name)) for name in LEADING if name in rows.signals),
            *((name, own) for name, own in state.own.items() if name in rows.signals),
        ]
        for name, signal in signals:
            at, values = rows.having(name)
            here = sum(1 for row in at if row < calm) if calm < len(rows) else len(at)
            if not here:
                continue
            if not signal.ready or (isinstance(signal, OwnSignal) and signal.opens_incident):
                return 0
            steps = [rows.steps[row] for row in at[:here]]
            if signal.baseline.is_apart(steps[0]) or _has_gap(steps, signal.baseline.gap):
                return 0
            quiet, found = signal.calm_rows(values[:here], settings)
            calm = min(calm, at[quiet]) if quiet < here else calm
            beside.append((signal, at, found))
        kept, verdict = test.take(rows.steps, judged, calm, settings, rows.having(RATE))
        for signal, at, found in beside:
            here = sum(1 for row in at if row < kept)
            signal.take([rows.steps[row] for row in at[:here]], found, here, settings)
        if kept:
            part = rows[:kept]
            state.traces.take_all(part)
            state.newest_step = state.judged_step = rows.steps[kept - 1]
            state.drops = 0
        if verdict is Verdict.SLOW_RISE:
            self._slow_rise(rows[kept - 1], events)
        return kept

    def _plain(self, rows: SampleColumns) -> int:
        """How many samples come before the first that is no ordinary next step."""
        state, losses = self._state, np.array(rows.column(LOSS, math.nan))
        newest = max(state.newest_step or 0, state.judged_step or 0)
        strange = np.diff(np.array([newest, *rows.steps])) <= 0
        strange |= ~np.isfinite(losses)
        for name in ODD:
            if name in rows.signals:
                strange |= np.array(rows.column(name, 0.0)) != 0.0
        for name in GRAD_NORMS:
            if name in rows.signals:
                strange |= ~np.isfinite(np.array(rows.column(name, 0.0)))
        return int(strange.argmax()) if strange.any() else len(losses)

    def _take(self, sample: Sample, events: list[Event]) -> None:
        state, loss = self._state, sample.values.get(LOSS)
        if loss is not None:
            if state.judged_step is not None and sample.step < state.judged_step:
                self._went_back(sample.step)
            if sample.step == state.judged_step and math.isfinite(loss):
                return
            state.judged_step = sample.step
        if begins_alone(state, sample):
            state.test.clear()
            state.test.restart()
        newest = state.newest_step
        forward = newest is None or loss is not None or sample.step > newest
        state.newest_step = sample.step if forward else newest
        if (rate := sample.values.get(RATE)) is not None:
            state.test.slow.see_rate(rate)
        overflow = is_overflow(sample)
        if overflow:
            sample = without_update(sample)
        warnings = self._look_at_leading(sample, events)
        state.traces.take(sample)
        skipped = loss is None and sample.values.get(STEP_SKIPPED, 0.0) >= 1.0
        dropped = overflow or skipped or sample.values.get(DROPPED, 0.0) >= 1.0
        if loss is not None or dropped or DROPPED in sample.values:
            state.drops = state.drops + 1 if dropped else 0
        if state.episode is not None:
            if not self._gave_way(sample, loss, dropped, warnings, events):
                if state.episode.levelled:
                    events.extend(warnings)
                Course(state, state.episode).take(sample, loss, dropped, events)
        elif self._are_apart(sample):
            self._open_apart(sample, dropped, events)
        elif not self._open_on_nonfinite(sample, loss, dropped, events):
            moved = loss is not None and self._test(sample, loss, events)
            if state.episode is None and (own := self._opening(warnings)) is not None:
                self._open_own(sample, own, dropped, events)
            elif not moved:
                events.extend(warnings)

    def _gave_way(
        self,
        sample: Sample,
        loss: float | None,
        dropped: bool,
        warnings: Sequence[Precursor],
        events: list[Event],
    ) -> bool:
        """Whether an incident that was back in its band, and watched only, ended with a new one."""
        state, test, episode = self._state, self._state.test, self._state.episode
        if episode is None or not episode.calmed:
            return False
        if self._are_apart(sample):
            Course(state, episode).give_way(sample.step, events)
            self._open_apart(sample, dropped, events)
            return True
        if (own := self._opening(warnings)) is not None:
            Course(state, episode).give_way(sample.step, events)
            self._open_own(sample, own, dropped, events)
            return True
        if state.drops >= state.settings.drop_limit or not _all_finite(loss, sample):
            Course(state, episode).give_way(sample.step, events)
            return self._open_on_nonfinite(sample, loss, dropped, events)
        if loss is None:
            return False
        verdict, z = test.look(sample.step, loss, sample.batches, state.settings)
        if verdict in (Verdict.UNKNOWN, Verdict.CALM, Verdict.HELD):
            return False
        Course(state, episode).give_way(sample.step, events)
        self._begin(verdict, sample, loss, z, events)
        return True

    def _went_back(self, step: int) -> None:
        state = self._state
        state.test.cut(step)
        state.traces.cut(step)
        for leading in state.leading.values():
            leading.baseline.cut(step)
        for own in state.own.values():
            own.baseline.cut(step)
        if state.episode is not None:
            state.episode.go_back()

    def _look_at_leading(self, sample: Sample, events: list[Event]) -> list[Precursor]:
        state, warnings = self._state, list[Precursor]()
        episode = state.frozen_by
        known: list[tuple[str, Leading | OwnSignal]] = [
            *((name, state.leading_of(name)) for name in LEADING if name in sample.values),
            *((name, own) for name, own in state.own.items() if name in sample.values),
        ]
        for name, signal in known:
            value = sample.values[name]
            z = signal.look(sample.step, value, episode is not None, state.settings)
            if isinstance(signal, Leading) and signal.outlier is not None and episode is None:
                events.append(LoneValue(name, *signal.outlier))
            if episode is not None:
                episode.note(name, sample.step, z, state.settings)
                continue
            settings = state.settings_of(name)
            warns = signal.moves if isinstance(signal, Leading) else signal
            if warns.warns(z, settings):
                state.attentive_until = sample.step + state.settings.attentive_steps
                warnings.append(Precursor(sample.step, name, value, z))
        return warnings

    def _are_apart(self, sample: Sample) -> bool:
        """Whether ranks hold different weights, or one read other data after a rollback."""
        return max(sample.values.get(name, 0.0) for name in (REPLICAS_APART, OTHER_DATA)) >= 1.0

    def _open_apart(self, sample: Sample, dropped: bool, events: list[Event]) -> None:
        """One comparison is enough, however calm the loss is."""
        apart = apart_in(self._state.traces)
        newest = Suspect(sample.step, sample.values.get(LOSS, math.nan), math.inf, sample.batches)
        if apart is not None:
            onset = first_apart(newest, apart, self._state.traces)
            self._open(sample, onset, REPLICAS_APART, apart.judgement, dropped, events)
        elif OTHER_DATA in sample.values:
            self._open(sample, newest, OTHER_DATA, OTHER_DATA_JUDGEMENT, dropped, events)

    def _opening(self, warnings: Sequence[Precursor]) -> Precursor | None:
        """The first of them that the policy takes for an incident."""
        own = self._state.own
        return next((w for w in warnings if w.signal in own and own[w.signal].opens_incident), None)

    def _open_own(
        self, sample: Sample, moved: Precursor, dropped: bool, events: list[Event]
    ) -> None:
        own = self._state.own[moved.signal]
        onset_step = own.moves.moved_step
        step = sample.step if onset_step is None else min(onset_step, sample.step)
        batches = batches_before(sample.batches, sample.step - step)
        onset = Suspect(step, sample.values.get(LOSS, math.nan), moved.z, batches)
        judgement = away_judgement(moved.signal, own.reason)
        self._open(sample, onset, moved.signal, judgement, dropped, events)

    def _open_on_nonfinite(
        self, sample: Sample, loss: float | None, dropped: bool, events: list[Event]
    ) -> bool:
        state = self._state
        named = {LOSS: loss} | {name: sample.values.get(name) for name in GRAD_NORMS}
        bad = [name for name, it in named.items() if it is not None and not math.isfinite(it)]
        if not bad and state.drops < state.settings.drop_limit:
            return False
        signal = bad[0] if bad else DROPPED
        onset = Suspect(
            sample.step, loss if loss is not None else math.nan, math.inf, sample.batches
        )
        judgement = first_judgement(math.inf, signal if bad else None, dropped)
        if not bad:
            onset = first_dropped(onset, state.drops, state.traces)
            judgement = stuck_judgement(state.drops)
        self._open(sample, onset, signal, judgement, dropped, events)
        return True

    def _test(self, sample: Sample, loss: float, events: list[Event]) -> bool:
        """Test a finite loss; returns whether it is off by itself."""
        state = self._state
        verdict, z = state.test.look(sample.step, loss, sample.batches, state.settings)
        if verdict is not Verdict.UNKNOWN and state.first_judged is None:
            state.first_judged = sample.step
        if verdict not in (Verdict.UNKNOWN, Verdict.CALM, Verdict.HELD):
            self._begin(verdict, sample, loss, z, events)
        return z >= state.settings.confirm_z

    def _begin(
        self, verdict: Verdict, sample: Sample, loss: float, z: float, events: list[Event]
    ) -> None:
        """An incident begins with `verdict`."""
        test = self._state.test
        if verdict is Verdict.OUTLIER and test.outlier is not None:
            self._outlier(sample, test.outlier, events)
            return
        if verdict is Verdict.SLOW_RISE:
            self._slow_rise(sample, events)
            return
        onset = test.onset(Suspect(sample.step, loss, z, sample.batches))
        down = z < 0.0 and verdict is Verdict.SPIKE
        judgement = first_judgement(max(abs(z), abs(onset.z)), None, False, downward=down)
        if verdict is Verdict.ZERO:
            judgement = zero_judgement(len(test.zeros))
        self._open(sample, onset, LOSS, judgement, False, events)
        if self._state.episode is not None:
            self._state.episode.zero = verdict is Verdict.ZERO

    def _slow_rise(self, sample: Sample, events: list[Event]) -> None:
        test = self._state.test
        slow, baseline = test.slow, test.baseline
        trend = Trend(slow.best_step, slow.best, 0.0, baseline.scale, self._state.settings.band_z)
        rise = slow.newest[-1] - slow.best
        z = rise / max(baseline.scale, 1e-300)
        onset = Suspect(slow.best_step, slow.best, z, None)
        judgement = slow_judgement(slow.newest[-1], slow.best, slow.best_step)
        self._open(sample, onset, LOSS, judgement, False, events, trend)
        if self._state.episode is not None:
            self._state.episode.slow = True
        slow.restart()

    def _outlier(self, sample: Sample, outlier: Suspect, events: list[Event]) -> None:
        state = self._state
        state.test.outlier = None
        steps = round(state.test.baseline.gap)
        what = "one batch" if steps == 1 else f"one row ({steps} steps)"
        reason = f"{what} stood out by {outlier.z:.1f} deviations and the next is back on trend"
        judgement = Judgement(Kind.OUTLIER_BATCH, 0.95, reason)
        self._open(sample, outlier, LOSS, judgement, False, events)
        state.episode = None
        causes = events[-1].causes if isinstance(events[-1], Opened) else ()
        events.append(Closed(sample.step, Outcome.OUTLIER, judgement, causes))

    def _open(
        self,
        sample: Sample,
        onset: Suspect,
        signal: str,
        judgement: Judgement,
        dropped: bool,
        events: list[Event],
        trend: Trend | None = None,
    ) -> None:
        state, test = self._state, self._state.test
        gap = test.baseline.gap
        trend = trend or trend_from(state, onset.step - 1)
        episode = Episode(onset.step, onset.batches, signal, trend, gap, dropped, judgement)
        episode.first_moves = self._first_moves(onset.step, signal)
        if signal == REPLICAS_APART:
            episode.note_apart(onset.step)
        else:
            episode.worst_z[signal] = abs(onset.z)
        episode.guess = test.baseline.start
        episode.downward = onset.z < 0.0
        for step, value in test.rows:
            if step >= onset.step:
                episode.see(step, value, state.settings)
        loss = sample.values.get(LOSS)
        if loss is not None and not math.isfinite(loss):
            episode.nonfinite_loss = True
            episode.see(sample.step, loss, state.settings)
        episode.newest_step = sample.step
        episode.drops = state.drops
        alone = judgement.kind is Kind.OUTLIER_BATCH
        episode.evidence = gather_evidence(state.traces, onset.step, onset.batches, trend, alone)
        if judgement.kind is not Kind.OUTLIER_BATCH:
            test.begin()
        state.episode = episode
        events.append(
            Opened(
                step=sample.step,
                onset_step=onset.step,
                onset_batches=onset.batches,
                signal=signal,
                z=abs(onset.z),
                pre_loss=trend.level if trend else None,
                trend=trend,
                judgement=judgement,
                first_moves=dict(episode.first_moves),
                dropped=dropped,
                causes=rank(episode.evidence),
                peak_step=None if episode.peak_loss is None else episode.peak_step,
                peak_loss=episode.peak_loss,
                excess=episode.excess,
            )
        )

    def _first_moves(self, onset_step: int, signal: str) -> dict[str, int]:
        found = {name: one.moves.moved_step for name, one in self._state.leading.items()}
        found |= {
            name: one.moves.moved_step
            for name, one in self._state.own.items()
            if one.choice != USUAL_LIMITS.get(name)
        }
        moves = {name: step for name, step in found.items() if step is not None}
        return {**moves, signal: onset_step}


def _has_gap(steps: Sequence[int], gap: float) -> bool:
    """Whether rows within `steps` lie so far apart that they continue nothing."""
    return len(steps) > 1 and float(np.diff(np.array(steps)).max()) >= APART * gap


def _all_finite(loss: float | None, sample: Sample) -> bool:
    values = [sample.values.get(name, 0.0) for name in GRAD_NORMS]
    return all(map(math.isfinite, (*values, 0.0 if loss is None else loss)))
