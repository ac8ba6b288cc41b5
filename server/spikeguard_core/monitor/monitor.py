"""One run as detection sees it: takes samples, tells events.

Causal and deterministic: the same samples give the same events one by one, in batches, or with a
dump and load between any two. Memory is constant. At most one incident is open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np

from spikeguard_core.detection.loss_test import Verdict
from spikeguard_core.detection.norms import Leading
from spikeguard_core.detection.own_signals import SKIPPED_SHARE, USUAL_LIMITS, OwnSignal
from spikeguard_core.detection.sample import Sample, SampleColumns
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.diagnosis.cause.ranking import rank
from spikeguard_core.diagnosis.classifier import at_the_end
from spikeguard_core.diagnosis.evidence import (
    OTHER_DATA,
    RANKS_LOST_STEP,
    REPLICAS_APART,
    STEP_SKIPPED,
)
from spikeguard_core.diagnosis.incident_tracker import CURES, Episode
from spikeguard_core.diagnosis.silent_failures import is_overflow, without_update
from spikeguard_core.events import Closed, Event, LoneValue, Precursor, Trend
from spikeguard_core.monitor.calm_rows import take_calm
from spikeguard_core.monitor.incident_updates import Course
from spikeguard_core.monitor.opening import Opening
from spikeguard_core.monitor.state import DetectorChoice, State
from spikeguard_protocol import Outcome, Signal, Verb

LOSS = Signal.LOSS.value
DROPPED = Signal.UPDATE_DROPPED.value
RATE = Signal.LR.value
AT_ONCE = 512  # rows that are judged together
FEWEST = 8  # and the least for which that is worth it


class Monitor:
    """Baselines, the test of the loss, and the open incident of one run."""

    def __init__(self, settings: DetectionSettings = DetectionSettings()) -> None:  # noqa: B008
        self._state = State(DetectorChoice(settings))

    def use(self, choice: DetectorChoice) -> bool:
        """Judge by `choice` from the next sample on; what was learnt of the run stays known.

        Returns whether that changes anything.
        """
        if choice == self._state.choice:
            return False
        self._state.choose(choice)
        return True

    def anew(self) -> Monitor:
        """One that knows nothing yet and judges as this one does."""
        monitor = Monitor()
        monitor.use(self._state.choice)
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
        return test.last_z if test.baseline.knows else None

    def heading(self, step: int) -> Trend | None:
        """The trend of the loss from `step` on, as an incident that began there is judged by."""
        return None if self.open else self._state.test.trend(step, self._state.settings)

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

    @np.errstate(over="ignore", invalid="ignore")  # of values near the largest float, and beyond
    def observe(self, samples: Sequence[Sample]) -> list[Event]:
        """Take samples in the order of training; returns what came to be known."""
        events: list[Event] = []
        table = SampleColumns.of(samples if len(samples) >= FEWEST else ())
        row, alone = 0, 0
        while row < len(samples):
            if alone <= 0 and len(samples) - row >= FEWEST:
                calm = take_calm(self._state, table[row : row + AT_ONCE], events)
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

    def note_change(self, step: int) -> None:
        """Somebody changed the run on purpose after `step`, so its loss may rise slowly now."""
        test = self._state.test
        test.slow.note_change(step, test.baseline.gap, self._state.settings)

    def await_decision(self, awaited: bool) -> bool:
        """Accept no level of the open incident while `awaited`; returns whether that is news."""
        episode = self._state.episode
        news = episode is not None and episode.awaited is not awaited
        if episode is not None:
            episode.awaited = awaited
        return news

    def rewind(self, past: Monitor) -> bool:
        """The run went on from where it was at `past`; an open incident stays open.

        Returns whether that is before its onset, so that what comes is judged as after a rollback.
        """
        before, state = self._state, deepcopy(past._state)
        self._state, episode = state, before.episode
        state.test.slow.changed_until = before.test.slow.changed_until  # whatever it goes back to
        state.choose(before.choice)
        state.test.clear()
        state.episode = episode
        if episode is None:
            return False
        self._go_back((past.newest_step or 0) + 1, episode)
        return episode.verb is Verb.ROLLBACK

    def end(self) -> list[Event]:
        """The run ended: an open incident closes as it stands."""
        episode, self._state.episode = self._state.episode, None
        if episode is None:
            return []
        judgement, causes = at_the_end(episode, self._state.settings), rank(episode.evidence)
        return [Closed(episode.newest_step, Outcome.RUN_ENDED, judgement, causes, episode.excess)]

    @property
    def state(self) -> State:
        """Everything that it remembers, a few kB."""
        return self._state

    @classmethod
    def of(cls, state: State) -> Monitor:
        """The monitor that remembers `state`, and judges as it says."""
        monitor = cls()
        monitor._state = state
        return monitor

    def _take(self, sample: Sample, events: list[Event]) -> None:
        state, loss = self._state, sample.values.get(LOSS)
        if loss is not None:
            if state.judged_step is not None and sample.step < state.judged_step:
                self._went_back(sample.step)
            if sample.step == state.judged_step and math.isfinite(loss):
                return
            state.judged_step = sample.step
        # Ranks that lost step reduce nothing any more: the loss is rank 0's alone, noisier by the
        # square root of their number, and nothing known of the old one judges it.
        if sample.values.get(RANKS_LOST_STEP, 0.0) >= 1.0:
            marked = state.traces.of[RANKS_LOST_STEP].steps
            if not marked or marked[-1] != state.newest_step:
                state.test.restart()
        newest = state.newest_step
        forward = newest is None or loss is not None or sample.step > newest
        state.newest_step = sample.step if forward else newest
        if (rate := sample.values.get(RATE)) is not None:
            state.test.slow.see_rate(rate, sample.step)
        overflow = is_overflow(sample)
        if overflow:
            sample = without_update(sample)
        sample = self._with_skipped_share(sample)
        warnings = self._look_at_leading(sample, events)
        state.traces.take(sample)
        skipped = loss is None and sample.values.get(STEP_SKIPPED, 0.0) >= 1.0
        dropped = overflow or skipped or sample.values.get(DROPPED, 0.0) >= 1.0
        if loss is not None or dropped or DROPPED in sample.values:
            state.drops = state.drops + 1 if dropped else 0
        episode = state.episode
        if episode is None or episode.calmed:
            self._look_for_new(sample, loss, dropped, warnings, events)
        if episode is not None and state.episode is episode:
            if episode.levelled:
                events.extend(warnings)
            Course(state, episode, sample, events).take(loss, dropped)

    def _look_for_new(
        self, sample: Sample, loss: float | None, dropped: bool, warnings: Sequence[Precursor],
        events: list[Event],
    ) -> None:  # fmt: skip
        """Open what begins with `sample`; an incident that is back in its band and only watched
        ends with it."""
        state, before, z = self._state, self._state.episode, 0.0
        opening = Opening(state, sample, events, dropped)
        if max(sample.values.get(name, 0.0) for name in (REPLICAS_APART, OTHER_DATA)) >= 1.0:
            opening.ranks_apart()
            return
        if opening.not_finite(loss):
            return
        if loss is not None:
            verdict, z = state.test.look(sample.step, loss, sample.batches, state.settings)
            if verdict is not Verdict.UNKNOWN and state.first_judged is None:
                state.first_judged = sample.step
            if verdict not in (Verdict.UNKNOWN, Verdict.CALM, Verdict.HELD):
                Opening(state, sample, events).begin(verdict, loss, z)
            if state.test.lone is not None:
                usual, row = state.test.lone
                events.append(LoneValue(LOSS, row.step, row.value, usual, row.z))
        if state.episode is not before:
            return
        for warning in warnings:
            signal = state.signal_of(warning.signal)
            if signal is not None and signal.opens_incident:
                opening.own_signal(warning)
                return
        if before is None and z < state.settings.confirm_z:
            events.extend(warnings)

    def _went_back(self, step: int) -> None:
        state = self._state
        state.test.cut(step)
        state.traces.cut(step)
        for leading in state.leading.values():
            leading.baseline.cut(step)
        for own in state.own.values():
            own.baseline.cut(step)
        if state.episode is not None:
            self._go_back(step, state.episode)

    def _go_back(self, step: int, episode: Episode) -> None:
        """An incident that began in a dip, as repeated data makes one, is judged from here on by
        where the loss was heading before the dip."""
        episode.go_back(step)
        trend = self._state.test.trend(step, self._state.settings)
        known = episode.trend
        onset = episode.onset_step
        if trend and known and trend.at(onset) - known.at(onset) > trend.band * trend.scale:
            episode.trend = trend

    def _with_skipped_share(self, sample: Sample) -> Sample:
        """With the share of skipped updates, as a signal, where this row's was or many were."""
        state, values, own = self._state, sample.values, self._state.own[SKIPPED_SHARE]
        skipped = max(values.get(STEP_SKIPPED, 0.0), values.get(DROPPED, 0.0)) >= 1.0
        if not skipped and LOSS not in values:
            return sample
        last = state.skipped.newest[-1] if state.skipped.newest else 0
        share = state.skipped.take(skipped)
        by_default = own.choice == USUAL_LIMITS[SKIPPED_SHARE]
        if not (skipped or own.away) or (by_default and state.frozen_by is not None):
            return sample
        if not own.away:  # since then no row had this signal
            own.moves.rest(state.skipped.rows - last - 1, state.settings)
        return replace(sample, values={**values, SKIPPED_SHARE: share})

    def _look_at_leading(self, sample: Sample, events: list[Event]) -> list[Precursor]:
        state, warnings = self._state, list[Precursor]()
        episode = state.frozen_by
        known: list[tuple[str, Leading | OwnSignal]] = [
            *((name, one) for name, one in state.leading.items() if name in sample.values),
            *((name, own) for name, own in state.own.items() if name in sample.values),
        ]
        for name, signal in known:
            value = sample.values[name]
            lone = signal.lone if isinstance(signal, Leading) else None
            z = signal.look(sample.step, value, episode is not None, state.settings)
            if lone is not None and z < state.settings.confirm_z and episode is None:
                events.append(LoneValue(name, *lone))
            if episode is not None:
                episode.note(name, sample.step, z, state.settings)
                continue
            away = abs(z) >= state.settings.confirm_z
            if away and signal.warns(z, state.settings_of(name)):
                state.attentive_until = sample.step + state.settings.attentive_steps
                warnings.append(Precursor(sample.step, name, value, z))
        return warnings
