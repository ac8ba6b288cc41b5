"""One run as detection sees it: takes samples, tells events.

Law: causal and deterministic. The same samples give the same events one by one, in batches, or
with a dump and load between any two; memory is constant. At most one incident is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TypeAlias

from spikeguard_protocol import Kind, Outcome, Signal, Verb
from spikeguard_server.domain.detection.batch_path import FEWEST, LONGEST, next_length
from spikeguard_server.domain.detection.detectors.contract import Detector
from spikeguard_server.domain.detection.detectors.plugged import DetectorChoice, Plugin
from spikeguard_server.domain.detection.precursors import LEADING
from spikeguard_server.domain.detection.sample import Sample, SampleColumns
from spikeguard_server.domain.detection.settings import DetectionSettings
from spikeguard_server.domain.detection.signal_detector import Suspect, Verdict
from spikeguard_server.domain.diagnosis.cause.ranking import rank
from spikeguard_server.domain.diagnosis.classifier import at_the_end
from spikeguard_server.domain.diagnosis.evidence import OTHER_DATA, REPLICAS_APART, gather_evidence
from spikeguard_server.domain.diagnosis.incident_tracker import (
    OTHER_DATA_JUDGEMENT,
    Episode,
    away_judgement,
    first_judgement,
)
from spikeguard_server.domain.diagnosis.silent_failures import (
    GRAD_NORMS,
    UNCHANGED,
    apart_in,
    batches_before,
    first_apart,
    first_dropped,
    is_overflow,
    stands_still,
    stuck_judgement,
    without_update,
)
from spikeguard_server.domain.events import Closed, Event, Judgement, Opened, Precursor, Trend
from spikeguard_server.domain.monitor.batch import take_calm
from spikeguard_server.domain.monitor.incident_updates import CURES, Course, trend_from
from spikeguard_server.domain.monitor.state import (
    STATE_VERSION,
    OlderStateVersion,
    State,
    UnknownStateVersion,
    begins_alone,
    freeze,
    thaw,
)

__all__ = ["DetectionSettings", "Monitor", "OlderStateVersion", "UnknownStateVersion"]

Find: TypeAlias = Callable[[str], type[Detector]]
LOSS = Signal.LOSS.value
DROPPED = Signal.UPDATE_DROPPED.value


class Monitor:
    """Baselines, the test of the loss, and the open incident of one run."""

    STATE_VERSION: int = STATE_VERSION

    def __init__(self, settings: DetectionSettings = DetectionSettings()) -> None:  # noqa: B008
        self._state = State(settings)
        self._choice = DetectorChoice(settings)

    def use(self, choice: DetectorChoice) -> bool:
        """Judge by `choice` from the next sample on; what was learnt of the run stays known.

        Returns whether that changes anything.
        """
        if choice == self._choice and not self._state.unread:
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
        """How far the newest value of each signal of the user's own lies off its baseline, in the
        direction that the policy names; inf where it is not finite."""
        known = self._state.own.items()
        return {name: own.newest_z for name, own in known if own.newest is not None}

    def observe(self, samples: Sequence[Sample]) -> list[Event]:
        """Take samples in the order of training; returns what came to be known."""
        events: list[Event] = []
        if self._state.plugged is not None or self._state.opens_incidents:  # row by row
            for sample in samples:
                self._take(sample, events)
            return events
        row, length = 0, LONGEST
        table = SampleColumns.of(samples if len(samples) >= FEWEST else ())
        while row < len(samples):
            calm = 0
            if len(samples) - row >= FEWEST:
                calm = take_calm(self._state, table[row : row + length], events)
                length = next_length(length, calm)
            row += calm
            if calm < FEWEST and row < len(samples):
                self._take(samples[row], events)
                row += 1
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
            self._state.test.drop_waiting()
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
    def load(cls, state: bytes, find: Find | None = None) -> Monitor:
        """The monitor that `dump` wrote; raises `UnknownStateVersion`.

        `find` knows detectors by name. Without it another one than the default has to be named by
        `use` before the next sample.
        """
        monitor = cls()
        loaded = monitor._state = thaw(state)
        own = {name: signal.choice for name, signal in loaded.own.items()}
        monitor._choice = DetectorChoice(loaded.settings, None, dict(loaded.precursors), own)
        if loaded.plugged is not None and find is not None:
            name = loaded.plugged.name
            plugin = Plugin(name, find(name), dict(loaded.plugged.values))
            monitor.use(replace(monitor._choice, plugin=plugin))
        return monitor

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
        overflow = is_overflow(sample)
        if overflow:
            sample = without_update(sample)
        warnings = self._look_at_leading(sample)
        state.traces.take(sample)
        dropped = overflow or sample.values.get(DROPPED, 0.0) >= 1.0
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
        state, detector, episode = self._state, self._state.test, self._state.episode
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
        if loss is None or not math.isfinite(loss):
            return False
        verdict, z = detector.look(sample.step, loss, sample.batches, state.settings)
        if verdict not in (Verdict.SPIKE, Verdict.OUTLIER):
            return False
        Course(state, episode).give_way(sample.step, events)
        if verdict is Verdict.SPIKE:
            self._spike(sample, loss, z, events)
        elif detector.outlier is not None:
            self._outlier(sample, detector.outlier, events)
        return True

    def _went_back(self, step: int) -> None:
        state = self._state
        state.test.clear()
        state.detector.cut(step, state.settings)
        if state.plugged is not None:
            state.plugged.cut(step, state.settings)
        state.traces.cut(step)
        for leading in state.leading.values():
            leading.baseline.cut(step, state.settings)
        for own in state.own.values():
            own.moves.baseline.cut(step, state.settings)
        if state.episode is not None:
            state.episode.go_back()

    def _look_at_leading(self, sample: Sample) -> list[Precursor]:
        state, warnings = self._state, list[Precursor]()
        for name in LEADING:
            value = sample.values.get(name)
            if value is None:
                continue
            leading = state.leading_of(name)
            episode = state.frozen_by
            z = leading.look(sample.step, value, episode is not None, state.settings)
            if episode is not None:
                episode.note(name, sample.step, z, state.settings)
            elif leading.warns(z, state.settings_of(name)):
                state.attentive_until = sample.step + state.settings.attentive_steps
                warnings.append(Precursor(sample.step, name, value, z))
        share = sample.values.get(UNCHANGED)
        if share is not None:
            leading = state.leading_of(UNCHANGED)
            if stands_still(leading, sample.step, share, state.settings):
                warnings.append(Precursor(sample.step, UNCHANGED, share, math.inf))
        return warnings + self._look_at_own(sample)

    def _look_at_own(self, sample: Sample) -> list[Precursor]:
        state, warnings = self._state, list[Precursor]()
        episode = state.frozen_by
        for name, own in state.own.items():
            value = sample.values.get(name)
            if value is None:
                continue
            z = own.look(sample.step, value, episode is not None, state.settings)
            if episode is not None:
                episode.note(name, sample.step, z, state.settings)
            elif own.warns(z, state.settings_of(name)):
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
        state, detector = self._state, self._state.test
        verdict, z = detector.look(sample.step, loss, sample.batches, state.settings)
        if verdict is Verdict.SPIKE:
            self._spike(sample, loss, z, events)
        elif verdict is Verdict.OUTLIER and detector.outlier is not None:
            self._outlier(sample, detector.outlier, events)
        return z >= state.settings.confirm_z

    def _spike(self, sample: Sample, loss: float, z: float, events: list[Event]) -> None:
        onset = self._state.test.onset(Suspect(sample.step, loss, z, sample.batches))
        judgement = first_judgement(max(z, onset.z), None, False)
        self._open(sample, onset, LOSS, judgement, False, events)
        if self._state.episode is not None:
            self._state.episode.by_lift = self._state.detector.opened_by_lift

    def _outlier(self, sample: Sample, outlier: Suspect, events: list[Event]) -> None:
        state = self._state
        state.test.outlier = None
        reason = f"one batch stood out by {outlier.z:.1f} deviations and the next is back on trend"
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
    ) -> None:
        state, detector = self._state, self._state.test
        gap = detector.gap
        trend = trend_from(state, onset.step - 1)
        episode = Episode(onset.step, onset.batches, signal, trend, gap, dropped, judgement)
        episode.first_moves = self._first_moves(onset.step, signal)
        if signal == REPLICAS_APART:
            episode.note_apart(onset.step)
        else:
            episode.worst_z[signal] = onset.z
        for step, value in detector.rows:
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
            detector.drop_waiting()
            detector.clear()
        state.episode = episode
        events.append(
            Opened(
                step=sample.step,
                onset_step=onset.step,
                onset_batches=onset.batches,
                signal=signal,
                z=onset.z,
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
        found = [pair for pair in self._state.leading.items() if pair[0] in LEADING]
        found += [(name, own.moves) for name, own in self._state.own.items()]
        moves = {name: one.moved_step for name, one in found if one.moved_step is not None}
        return {**moves, signal: onset_step}
