"""How an incident begins: its onset, its trend, its first judgement and evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spikeguard_core.detection.loss_test import Suspect, Verdict
from spikeguard_core.detection.noise import told_z
from spikeguard_core.detection.norms import Leading
from spikeguard_core.detection.own_signals import USUAL_LIMITS
from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.cause.ranking import rank
from spikeguard_core.diagnosis.evidence import OTHER_DATA, REPLICAS_APART, gather_evidence
from spikeguard_core.diagnosis.incident_tracker import LASTS, Episode, away_judgement
from spikeguard_core.diagnosis.silent_failures import (
    GRAD_NORMS,
    apart_in,
    batches_before,
    first_apart,
    first_dropped,
    stuck_judgement,
)
from spikeguard_core.events import Closed, Event, Judgement, Opened, Precursor, Trend
from spikeguard_core.monitor.incident_updates import Course
from spikeguard_core.monitor.state import State
from spikeguard_protocol import Kind, Outcome, Signal

LOSS = Signal.LOSS.value
DROPPED = Signal.UPDATE_DROPPED.value
SCALE_SEARCH = 64  # updates that a run may drop before its first: from 2**65 down to 2


@dataclass(slots=True)
class Opening:
    """Opens incidents in `state` that `sample` shows."""

    state: State
    sample: Sample
    events: list[Event]
    dropped: bool = False  # the agent kept the update out of the weights

    def begin(self, verdict: Verdict, loss: float, z: float) -> None:
        """An incident begins with `verdict`."""
        test, sample = self.state.test, self.sample
        if verdict is Verdict.OUTLIER and test.outlier is not None:
            self.outlier(test.outlier)
            return
        if verdict is Verdict.SLOW_RISE:
            self.slow_rise()
            return
        onset = test.onset(Suspect(sample.step, loss, z, sample.batches))
        far = told_z(max(abs(z), abs(onset.z)))
        if verdict is Verdict.ZERO:
            reason = (
                f"the loss is exactly 0 for {len(test.zeros)} rows, after losses well above 0: "
                "Hugging Face's Trainer logs 0 where the loss is not finite "
                "(logging_nan_inf_filter)"
            )
            judgement = Judgement(Kind.DIVERGENT, 0.6, reason)
        elif z < 0.0:
            reason = f"loss fell {far} deviations below its level, to many times its size"
            judgement = Judgement(Kind.DIVERGENT, 0.8, reason)
        else:  # from experience with spikes, not from this one
            reason = f"loss is {far} deviations above trend; most spikes heal by themselves"
            judgement = Judgement(Kind.RECOVERABLE, 1.0 - LASTS, reason)
        self._open(onset, LOSS, judgement).zero = verdict is Verdict.ZERO

    def slow_rise(self) -> None:
        test = self.state.test
        slow, baseline = test.slow, test.baseline
        step, level = slow.begin(baseline.blocks)
        trend = Trend(step, level, 0.0, baseline.scale, self.state.settings.band_z)
        z = (slow.newest[-1] - level) / max(baseline.scale, 1e-300)
        onset = Suspect(step, level, z, None)
        reason = (
            f"the loss rises slowly: {slow.newest[-1]:.4g}, {slow.newest[-1] - level:.2g} above "
            f"where it was about step {step}, and it goes on"
        )
        judgement = Judgement(Kind.LINGERING, 0.6, reason)
        self._open(onset, LOSS, judgement, trend).slow = True
        slow.restart()

    def outlier(self, outlier: Suspect) -> None:
        state = self.state
        state.test.outlier = None
        steps = round(state.test.baseline.gap)
        what = "one batch" if steps == 1 else f"one row ({steps} steps)"
        reason = f"{what} stood out by {told_z(outlier.z)} deviations and the next is back on trend"
        judgement = Judgement(Kind.OUTLIER_BATCH, 0.95, reason)
        causes = rank(self._open(outlier, LOSS, judgement).evidence)
        state.episode = None
        self.events.append(Closed(self.sample.step, Outcome.OUTLIER, judgement, causes))

    def _open(
        self, onset: Suspect, signal: str, judgement: Judgement, trend: Trend | None = None
    ) -> Episode:
        state, test, sample = self.state, self.state.test, self.sample
        if state.episode is not None:
            Course(state, state.episode, sample, self.events).give_way()
        gap = test.baseline.gap
        trend = trend or test.trend(onset.step - 1, state.settings)
        episode = Episode(onset.step, onset.batches, signal, trend, gap, self.dropped, judgement)
        episode.first_moves = self._first_moves(onset.step, signal)
        if signal == REPLICAS_APART:
            episode.note_apart(onset.step)
        else:
            newest = state.test.last_z if signal == LOSS else 0.0
            episode.worst_z[signal] = max(abs(onset.z), abs(newest))
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
        if (fall_at_once := test.fall_at_once()) is not None:
            episode.evidence.fell_after, episode.evidence.level_then, _ = fall_at_once
        episode.evidence.highest_rate = test.slow.highest_rate
        episode.evidence.highest_rate_step = test.slow.highest_rate_step
        if judgement.kind is not Kind.OUTLIER_BATCH:
            test.begin(onset.step)
        state.episode = episode
        self.events.append(
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
                dropped=self.dropped,
                causes=rank(episode.evidence),
                peak_step=None if episode.peak_loss is None else episode.peak_step,
                peak_loss=episode.peak_loss,
                excess=episode.excess,
            )
        )
        return episode

    def _first_moves(self, onset_step: int, signal: str) -> dict[str, int]:
        gap = self.state.test.baseline.gap
        found = {
            name: one.moves.moved_by(onset_step, gap)
            for name, one in self.state.beside_loss()
            if isinstance(one, Leading) or one.choice != USUAL_LIMITS.get(name)
        }
        moves = {name: step for name, step in found.items() if step is not None}
        return {**moves, signal: onset_step}

    def ranks_apart(self) -> None:
        """One comparison is enough, however calm the loss is."""
        apart, sample = apart_in(self.state.traces), self.sample
        newest = Suspect(sample.step, sample.values.get(LOSS, math.nan), math.inf, sample.batches)
        if apart is not None:
            onset = first_apart(newest, apart, self.state.traces)
            self._open(onset, REPLICAS_APART, apart.judgement)
        elif OTHER_DATA in sample.values:
            said = "after a rollback the loader gave batches that it had not given before"
            judgement = Judgement(Kind.RECOVERABLE, 0.55, f"other data: {said}")
            self._open(newest, OTHER_DATA, judgement)

    def own_signal(self, moved: Precursor) -> None:
        sample, own = self.sample, self.state.signal_of(moved.signal)
        assert own is not None
        onset_step = own.moved_step
        step = sample.step if onset_step is None else min(onset_step, sample.step)
        batches = batches_before(sample.batches, sample.step - step)
        onset = Suspect(step, sample.values.get(LOSS, math.nan), moved.z, batches)
        self._open(onset, moved.signal, away_judgement(moved.signal, own))

    def not_finite(self, loss: float | None) -> bool:
        """Whether something is not finite, or so many updates were dropped that the run is stuck:
        it opens an incident."""
        state, sample = self.state, self.sample
        named = {LOSS: loss} | {name: sample.values.get(name) for name in GRAD_NORMS}
        bad = [name for name, it in named.items() if it is not None and not math.isfinite(it)]
        none_yet = state.drops >= state.skipped.rows  # a gradient scaler looks for its first scale
        if not bad and state.drops < (SCALE_SEARCH if none_yet else state.settings.drop_limit):
            return False
        signal = bad[0] if bad else DROPPED
        value = math.nan if loss is None else loss
        onset = Suspect(sample.step, value, math.inf, sample.batches)
        if not bad:
            onset = first_dropped(onset, state.drops, state.traces)
            judgement = stuck_judgement(state.drops)
        elif self.dropped:
            reason = "the update was not finite and was kept out of the weights"
            judgement = Judgement(Kind.RECOVERABLE, 0.8, reason)
        else:
            reason = f"the {'loss' if signal == LOSS else 'gradient norm'} is not finite"
            judgement = Judgement(Kind.DIVERGENT, 0.6, reason)
        self._open(onset, signal, judgement)
        return True
