"""One run as detection sees it: takes samples, tells events.

Causal and deterministic: the same samples give the same events one by one, in batches, or with a
dump and load between any two. Memory is constant. At most one incident is open.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace

import numpy as np

from spikeguard_core.detection.loss_test import Verdict
from spikeguard_core.detection.noise import YOUNG, Array, Judged
from spikeguard_core.detection.norms import Leading
from spikeguard_core.detection.own_signals import (
    SKIPPED_SHARE,
    USUAL_LIMITS,
    OwnSignal,
    own_signals_of,
)
from spikeguard_core.detection.sample import Sample, SampleColumns
from spikeguard_core.diagnosis.cause.ranking import rank
from spikeguard_core.diagnosis.classifier import at_the_end
from spikeguard_core.diagnosis.evidence import (
    OTHER_DATA,
    RANKS_LOST_STEP,
    REPLICAS_APART,
    STEP_SKIPPED,
)
from spikeguard_core.diagnosis.incident_tracker import CURES, Episode
from spikeguard_core.diagnosis.silent_failures import GRAD_NORMS, is_overflow, without_update
from spikeguard_core.events import Closed, Event, LoneValue, Precursor, Trend
from spikeguard_core.monitor.incident_updates import Course
from spikeguard_core.monitor.opening import Opening
from spikeguard_core.monitor.state import DetectorChoice, State
from spikeguard_protocol import Outcome, Signal, Verb

LOSS = Signal.LOSS.value
DROPPED = Signal.UPDATE_DROPPED.value
RATE = Signal.LR.value
# Looked at row by row where one of them is not 0.
ODD = (DROPPED, STEP_SKIPPED, REPLICAS_APART, OTHER_DATA, RANKS_LOST_STEP)
AT_ONCE = 512  # rows that are judged together
FEWEST = 8  # and the least for which that is worth it


@dataclass(slots=True)
class Monitor(State):
    """One run: what it remembers is the `State` that it is."""

    def use(self, choice: DetectorChoice) -> bool:
        """Judge by `choice` from the next sample on; what was learnt of the run stays known.

        Returns whether that changes anything.
        """
        if choice == self.choice:
            return False
        self.choice, self.own = choice, own_signals_of(choice.own, self.own)
        return True

    @property
    def open(self) -> bool:
        """Whether an incident is open."""
        return self.episode is not None

    @property
    def attentive(self) -> bool:
        """Whether slow signals are worth measuring at every step."""
        until, newest = self.attentive_until, self.newest_step
        busy = self.episode is not None and not self.episode.calmed
        return busy or (until is not None and newest is not None and newest <= until)

    def deviations(self, step: int, loss: float | None) -> float | None:
        """How far the newest loss, of `step`, lies above its trend; None where that is unknown."""
        episode, test = self.episode, self.test
        if loss is None or not math.isfinite(loss):
            return None if loss is None else math.inf
        if episode is not None:
            return episode.deviations(step, loss)
        return test.last_z if test.baseline.knows else None

    def heading(self, step: int) -> Trend | None:
        """The trend of the loss from `step` on, as an incident that began there is judged by."""
        return None if self.open else self.test.trend(step, self.settings)

    def own_deviations(self) -> dict[str, float]:
        """How far the newest value of each signal that the policy names lies off its baseline, in
        the direction that it names; inf where it is not finite or beyond a limit."""
        return {
            name: own.newest_z
            for name, own in self.own.items()
            if own.newest is not None and own.choice != USUAL_LIMITS.get(name)
        }

    @np.errstate(over="ignore", invalid="ignore")  # of values near the largest float, and beyond
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

    def intervened(self, step: int, verb: Verb) -> None:
        """A command was applied at `step`: from now on judge whether it worked."""
        if self.episode is not None and verb in CURES:
            self.episode.treat(step, verb)

    def note_change(self, step: int) -> None:
        """Somebody changed the run on purpose after `step`, so its loss may rise slowly now."""
        test = self.test
        test.slow.note_change(step, test.baseline.gap, self.settings)

    def await_decision(self, awaited: bool) -> bool:
        """Accept no level of the open incident while `awaited`; returns whether that is news."""
        episode = self.episode
        news = episode is not None and episode.awaited is not awaited
        if episode is not None:
            episode.awaited = awaited
        return news

    def rewind(self, past: Monitor) -> bool:
        """The run went on from where it was at `past`; an open incident stays open.

        Returns whether that is before its onset, so that what comes is judged as after a rollback.
        """
        choice, episode, changed_until = self.choice, self.episode, self.test.slow.changed_until
        known = deepcopy(past)
        for one in fields(State):
            setattr(self, one.name, getattr(known, one.name))
        self.use(choice)
        self.test.slow.changed_until = changed_until  # whatever it goes back to
        self.test.clear()
        self.episode = episode
        if episode is None:
            return False
        self._go_back((self.newest_step or 0) + 1, episode)
        return episode.verb is Verb.ROLLBACK

    def end(self) -> list[Event]:
        """The run ended: an open incident closes as it stands."""
        episode, self.episode = self.episode, None
        if episode is None:
            return []
        judgement, causes = at_the_end(episode, self.settings), rank(episode.evidence)
        return [Closed(episode.newest_step, Outcome.RUN_ENDED, judgement, causes, episode.excess)]

    def _take_calm(self, rows: SampleColumns, events: list[Event]) -> int:
        """Take the samples before the first that is no calm next step; returns how many. State and
        events are then those of the samples one by one, bit for bit."""
        settings, test = self.settings, self.test
        fewest = max(YOUNG, settings.watchable_after)  # rows that are taken one by one
        waits = self.episode is not None or test.held or test.zeros
        if test.baseline.count < fewest or waits or self.own[SKIPPED_SHARE].away:
            return 0
        losses, (at, values) = np.full(len(rows), math.nan), rows.having(LOSS)
        losses[at] = values
        plain = self._plain(rows, losses)
        if not plain:
            return 0
        here = rows[:plain]
        steps = np.array(here.steps)
        calm, judged = test.calm_rows(steps, losses[:plain], settings)
        beside: list[tuple[Leading | OwnSignal, Sequence[int], Sequence[int], Judged]] = []
        for name, signal in self.beside_loss():
            at, values = here.having(name)
            known = bisect_left(at, calm)
            if not known:
                continue
            young = signal.baseline.count < fewest
            if young or not signal.is_quiet or signal.opens_incident:
                return 0
            theirs = steps[at]
            if signal.baseline.are_apart(theirs[:known]).any():
                return 0
            quiet, found = signal.calm_rows(np.array(values[:known], np.float64), settings)
            calm = min(calm, at[quiet]) if quiet < known else calm
            beside.append((signal, at, theirs.tolist(), found))
        kept, verdict = test.take(here.steps, judged, calm, settings, here.having(RATE))
        for signal, at, steps_of, found in beside:
            signal.take(steps_of, found, bisect_left(at, kept), settings)
        if kept:
            self.traces.take_all(rows[:kept])
            self.newest_step = self.judged_step = rows.steps[kept - 1]
            self.drops = 0
            self.skipped.rows += kept
        if verdict is Verdict.SLOW_RISE:
            Opening(self, rows[kept - 1], events).slow_rise()
        return kept

    def _plain(self, rows: SampleColumns, losses: Array) -> int:
        """How many samples come before the first that is no ordinary next step."""
        newest = max(self.newest_step or 0, self.judged_step or 0)
        strange = np.diff([newest, *rows.steps]) <= 0
        strange |= ~np.isfinite(losses)
        for name in (*ODD, *GRAD_NORMS):
            at, values = rows.having(name)
            known = np.array(values, np.float64)
            strange[at] |= ~np.isfinite(known) if name in GRAD_NORMS else known != 0.0
        return int(strange.argmax()) if strange.any() else len(losses)

    def _take(self, sample: Sample, events: list[Event]) -> None:
        loss = sample.values.get(LOSS)
        if loss is not None:
            if self.judged_step is not None and sample.step < self.judged_step:
                self._went_back(sample.step)
            if sample.step == self.judged_step and math.isfinite(loss):
                return
            self.judged_step = sample.step
        # Ranks that lost step reduce nothing any more: the loss is rank 0's alone, noisier by the
        # square root of their number, and nothing known of the old one judges it.
        if sample.values.get(RANKS_LOST_STEP, 0.0) >= 1.0:
            marked = self.traces.of[RANKS_LOST_STEP].steps
            if not marked or marked[-1] != self.newest_step:
                self.test.restart()
        newest = self.newest_step
        forward = newest is None or loss is not None or sample.step > newest
        self.newest_step = sample.step if forward else newest
        if (rate := sample.values.get(RATE)) is not None:
            self.test.slow.see_rate(rate, sample.step)
        overflow = is_overflow(sample)
        if overflow:
            sample = without_update(sample)
        sample = self._with_skipped_share(sample)
        warnings = self._look_at_leading(sample, events)
        self.traces.take(sample)
        skipped = loss is None and sample.values.get(STEP_SKIPPED, 0.0) >= 1.0
        dropped = overflow or skipped or sample.values.get(DROPPED, 0.0) >= 1.0
        if loss is not None or dropped or DROPPED in sample.values:
            self.drops = self.drops + 1 if dropped else 0
        episode = self.episode
        if episode is None or episode.calmed:
            self._look_for_new(sample, loss, dropped, warnings, events)
        if episode is not None and self.episode is episode:
            if episode.levelled:
                events.extend(warnings)
            Course(self, episode, sample, events).take(loss, dropped)

    def _look_for_new(
        self, sample: Sample, loss: float | None, dropped: bool, warnings: Sequence[Precursor],
        events: list[Event],
    ) -> None:  # fmt: skip
        """Open what begins with `sample`; an incident that is back in its band and only watched
        ends with it."""
        before, z = self.episode, 0.0
        opening = Opening(self, sample, events, dropped)
        if max(sample.values.get(name, 0.0) for name in (REPLICAS_APART, OTHER_DATA)) >= 1.0:
            opening.ranks_apart()
            return
        if opening.not_finite(loss):
            return
        if loss is not None:
            verdict, z = self.test.look(sample.step, loss, sample.batches, self.settings)
            if verdict is not Verdict.UNKNOWN and self.first_judged is None:
                self.first_judged = sample.step
            if verdict not in (Verdict.UNKNOWN, Verdict.CALM, Verdict.HELD):
                Opening(self, sample, events).begin(verdict, loss, z)
            if self.test.lone is not None:
                usual, row = self.test.lone
                events.append(LoneValue(LOSS, row.step, row.value, usual, row.z))
        if self.episode is not before:
            return
        for warning in warnings:
            signal = self.signal_of(warning.signal)
            if signal is not None and signal.opens_incident:
                opening.own_signal(warning)
                return
        if before is None and z < self.settings.confirm_z:
            events.extend(warnings)

    def _went_back(self, step: int) -> None:
        self.test.cut(step)
        self.traces.cut(step)
        for _, signal in self.beside_loss():
            signal.baseline.cut(step)
        if self.episode is not None:
            self._go_back(step, self.episode)

    def _go_back(self, step: int, episode: Episode) -> None:
        """An incident that began in a dip, as repeated data makes one, is judged from here on by
        where the loss was heading before the dip."""
        episode.go_back(step)
        trend, known = self.test.trend(step, self.settings), episode.trend
        onset = episode.onset_step
        if trend and known and trend.at(onset) - known.at(onset) > trend.band * trend.scale:
            episode.trend = trend

    def _with_skipped_share(self, sample: Sample) -> Sample:
        """With the share of skipped updates, as a signal, where this row's was or many were."""
        values, own = sample.values, self.own[SKIPPED_SHARE]
        skipped = max(values.get(STEP_SKIPPED, 0.0), values.get(DROPPED, 0.0)) >= 1.0
        if not skipped and LOSS not in values:
            return sample
        last = self.skipped.newest[-1] if self.skipped.newest else 0
        share = self.skipped.take(skipped)
        by_default = own.choice == USUAL_LIMITS[SKIPPED_SHARE]
        if not (skipped or own.away) or (by_default and self.frozen_by is not None):
            return sample
        if not own.away:  # since then no row had this signal
            own.moves.rest(self.skipped.rows - last - 1, self.settings)
        return replace(sample, values={**values, SKIPPED_SHARE: share})

    def _look_at_leading(self, sample: Sample, events: list[Event]) -> list[Precursor]:
        warnings, episode = list[Precursor](), self.frozen_by
        for name, signal in self.beside_loss():
            if (value := sample.values.get(name)) is None:
                continue
            lone = signal.lone if isinstance(signal, Leading) else None
            z = signal.look(sample.step, value, episode is not None, self.settings)
            if lone is not None and z < self.settings.confirm_z and episode is None:
                events.append(LoneValue(name, *lone))
            if episode is not None:
                episode.note(name, sample.step, z, self.settings)
                continue
            away = abs(z) >= self.settings.confirm_z
            if away and signal.warns(z, self.settings_of(name)):
                self.attentive_until = sample.step + self.settings.attentive_steps
                warnings.append(Precursor(sample.step, name, value, z))
        return warnings
