"""What one more sample does to an open incident: revise, close, or find that it came back.

The only module that ends an episode while the run goes on. The baseline stays frozen until it does,
except after a rollback, when the new segment is judged and learned from anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from spikeguard_core.detection.loss_test import Suspect, Verdict
from spikeguard_core.detection.noise import median, told_z
from spikeguard_core.detection.norms import Leading
from spikeguard_core.detection.own_signals import OwnSignal
from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.cause.of_data import trend_before_fall
from spikeguard_core.diagnosis.cause.ranking import rank
from spikeguard_core.diagnosis.classifier import (
    ACTS,
    RETURNED,
    after_command,
    at_level_before,
    classify,
    hold,
)
from spikeguard_core.diagnosis.evidence import REPLICAS_APART
from spikeguard_core.diagnosis.forecast import Outlook, look_ahead, tolerance_of
from spikeguard_core.diagnosis.incident_tracker import SETTLED_ROWS, Episode, away_judgement
from spikeguard_core.diagnosis.silent_failures import (
    GRAD_NORMS,
    Apart,
    apart_in,
    equal_since,
    first_apart,
    first_dropped,
    is_destroyed,
    stuck_judgement,
)
from spikeguard_core.events import Closed, Event, Judgement, Recurred, Revised, Trend
from spikeguard_core.monitor.state import State
from spikeguard_protocol import Cause, Kind, Outcome, Signal, Verb


@dataclass(slots=True)
class Course:
    """The open incident of `state` and what to do with the next `sample`."""

    state: State
    episode: Episode
    sample: Sample
    events: list[Event]

    def take(self, loss: float | None, dropped: bool) -> None:
        """Look at the sample."""
        episode, settings, sample = self.episode, self.state.settings, self.sample
        if loss is None:
            return
        norms = [sample.values.get(name, 0.0) for name in GRAD_NORMS]
        bad = not all(map(math.isfinite, (loss, *norms)))
        if episode.zero and loss == 0.0:
            bad, loss = True, math.nan
        episode.nonfinite_loss = bad and not math.isfinite(loss)
        episode.see(sample.step, math.nan if bad else loss, settings)
        episode.drops = episode.drops + 1 if dropped else 0
        if episode.drops >= settings.drop_limit:  # stuck: infinitely far from usual
            episode.worst_z[Signal.UPDATE_DROPPED.value] = math.inf
        if episode.reads_cause:
            episode.evidence.see(sample)
        z = None if bad else episode.deviations(sample.step, loss)
        if episode.nonfinite_loss and not dropped:
            z = math.inf
        if z is not None and z > episode.worst_z.get(Signal.LOSS, 0.0):
            episode.worst_z[Signal.LOSS.value] = z
        unknown = episode.trend is None and not episode.nonfinite_run
        if episode.verb is not None:
            self._after_command(loss, bad)
        elif (apart := apart_in(self.state.traces)) is not None:
            self._stay_apart(apart)
        elif (own := self._own_away()) is not None and (episode.calm_rows > 0 or unknown):
            self._stay_away(own)
        else:
            self._by_itself(loss)

    def _own_away(self) -> Leading | OwnSignal | None:
        """The signal beside the loss that opened it, while it is off its baseline."""
        own = self.state.signal_of(self.episode.signal)
        return own if own is not None and own.away else None

    def _stay_away(self, own: Leading | OwnSignal) -> None:
        """The loss is calm; it is not over before the signal is back, or its level accepted."""
        episode, settings = self.episode, self.state.settings
        episode.judgement, episode.calmed = away_judgement(episode.signal, own), False
        early = episode.rows < settings.accept_after * episode.horizon(settings)
        if early or not self._acceptable():
            self._revise()
        else:
            self._close(Outcome.LEVEL_ACCEPTED)

    def _by_itself(self, loss: float) -> None:
        episode, settings = self.episode, self.state.settings
        if (trend := self._before_dip()) is not None:
            episode.trend = trend
            episode.begin_anew()
            return
        outlook = look_ahead(episode, settings)
        before, now = episode.judgement, classify(episode, outlook, settings)
        episode.judgement = hold(before, now, episode.changes, self._calm())
        episode.changes += episode.judgement.kind is not before.kind
        if episode.stayed and episode.judgement.kind is Kind.RECOVERABLE and not episode.calm_rows:
            # A second spike that falls to where the loss stayed has not healed.
            episode.judgement = replace(episode.judgement, kind=Kind.LINGERING)
        if episode.calm_rows:
            episode.in_band = episode.judgement
        episode.settled = episode.since_peak >= episode.horizon(settings)
        if not episode.calmed and self._calm():
            self._hand_back()
            episode.calmed = True
        outcome = self._outcome(outlook)
        if outcome is Outcome.LEVEL_ACCEPTED and not self._acceptable():
            self._stay_at_this_level(loss)
            outcome = None
        if outcome is None:
            self._revise()
        else:
            self._close(outcome)

    def _before_dip(self) -> Trend | None:
        """The trend before the loss fell at once, where it is back at it and nothing else explains
        the rise: easier data, or whatever had made it lower, has ended."""
        known, evidence = self.episode.trend, self.episode.evidence
        trend = trend_before_fall(evidence)
        if trend is None or known is None or known.step == trend.step:
            return None
        return trend if rank(evidence)[0].cause is Cause.UNKNOWN else None

    def _acceptable(self) -> bool:
        """Whether the level may become the usual one: nobody is asked, and the run can learn."""
        episode = self.episode
        return not episode.awaited and not is_destroyed(self.state.traces, episode.evidence.before)

    def _stay_at_this_level(self, loss: float) -> None:
        """It is not over, and what is new is judged against the level that the run is at."""
        episode, test, sample = self.episode, self.state.test, self.sample
        if not episode.levelled:
            self._hand_back()
            episode.levelled = episode.stayed = True
            return
        if not math.isfinite(loss):
            return
        verdict, z = test.look(sample.step, loss, sample.batches, self.state.settings)
        if verdict is not Verdict.SPIKE:
            return
        said = f"loss rose anew, {told_z(z)} deviations above the level at which it had stayed"
        test.clear()
        episode.rise_anew()
        episode.judgement = Judgement(Kind.DIVERGENT, RETURNED, said)

    def _stay_apart(self, apart: Apart) -> None:
        """It is not over while ranks hold different weights, whatever the loss does."""
        episode = self.episode
        onset = Suspect(self.sample.step, math.nan, math.inf, self.sample.batches)
        since = episode.first_moves.get(REPLICAS_APART)
        if since is None or apart.equal_step is not None:
            since = first_apart(onset, apart, self.state.traces).step
        episode.note_apart(since)
        episode.judgement, episode.calmed = apart.judgement, False
        self._revise(since)

    def _outcome(self, outlook: Outlook | None) -> Outcome | None:
        episode, settings = self.episode, self.state.settings
        back = self._back()
        unknown = episode.trend is None and episode.finite_run >= settings.settle_rows
        if self._equal() and self._dropped_in_time():
            finite = f"the {episode.finite_run} newest updates were finite"
            said = f"{finite}, and the loss had not risen"
            episode.judgement = replace(episode.judgement, reason=said)
            return back
        if self._equal() and (unknown or self._is_over(outlook)):
            return back
        wait = settings.accept_after * episode.horizon(settings)
        if episode.judgement.kind is Kind.DIVERGENT:
            wait *= 2
        if episode.since_peak >= wait and not episode.nonfinite_run and episode.recent:
            return Outcome.LEVEL_ACCEPTED
        return None

    def _dropped_in_time(self) -> bool:
        episode, settings = self.episode, self.state.settings
        rose = episode.peak_excess > settings.suspect_z * episode.scale  # so something came of it
        quiet = episode.dropped and not episode.drops and not rose
        return quiet and episode.finite_run >= settings.drop_settle <= max(episode.calm_rows, 0)

    def _calm(self) -> bool:
        """In the band for long enough, past what a rollback has to show again, and not stuck."""
        episode, settings = self.episode, self.state.settings
        stuck = episode.drops >= settings.drop_limit
        if stuck or episode.calm_rows < episode.settle_rows(settings):
            return False
        past = settings.recover_steps if episode.went_back else 0
        return episode.newest_step >= episode.onset_step + past

    def _is_over(self, outlook: Outlook | None) -> bool:
        """Back in the band, and surely without lasting damage; at the horizon, more likely so."""
        episode, settings = self.episode, self.state.settings
        if not episode.calmed or not self._calm():
            return False
        if outlook is not None and outlook.present < settings.lasting_doubt:
            return True
        if self._is_at_level_before(outlook):
            return True
        healed = episode.settled and episode.judgement.kind is Kind.RECOVERABLE
        return healed and outlook is not None  # after a rise nothing is known yet

    def _is_at_level_before(self, outlook: Outlook | None) -> bool:
        """Whether the loss is back where it was by healing: not by a descent that went on as far
        above its trend as the spike was, nor so late that its trend lies lower."""
        episode, settings = self.episode, self.state.settings
        lasts = outlook is None or outlook.present >= settings.lasting_sure
        stayed = outlook is not None and outlook.excess >= episode.peak_excess / 2.0
        late = stayed or episode.since_peak >= settings.late_rows
        rows, trend = episode.recent_values[-SETTLED_ROWS:], episode.trend
        if (late and lasts) or trend is None or episode.downward or len(rows) < SETTLED_ROWS:
            return False
        if median(rows) > trend.level + tolerance_of(episode, settings):
            return False
        episode.judgement = at_level_before(episode)
        return True

    def give_way(self) -> None:
        """A new spike began while this one, back in its band, was still watched."""
        self.episode.leave_out(min([self.sample.step, *(row.step for row in self.state.test.held)]))
        self._is_at_level_before(look_ahead(self.episode, self.state.settings))
        healed = self.episode.judgement.kind is Kind.RECOVERABLE
        self._close(self._back() if healed else Outcome.LEVEL_ACCEPTED)

    def _back(self) -> Outcome:
        """On its trend again: by itself, or since a command or a restart took it back."""
        acted = self.episode.treated or self.episode.went_back
        return Outcome.RECOVERED if acted else Outcome.HEALED

    def _close(self, outcome: Outcome) -> None:
        episode, state = self.episode, self.state
        judgement = episode.judgement
        if outcome is Outcome.HEALED:
            judgement = replace(judgement, kind=Kind.RECOVERABLE)
        if not episode.calmed:
            self._hand_back()
        if (own := self._own_away()) is not None:
            own.begin_anew()
        state.episode = None
        causes = rank(episode.evidence)
        self.events.append(Closed(self.sample.step, outcome, judgement, causes, episode.excess))

    def _hand_back(self) -> None:
        """The baseline goes on at the level that the run is at now."""
        episode, state = self.episode, self.state
        test = state.test
        test.clear()
        if episode.slow and not (episode.treated or episode.went_back):
            test.slow.swing = max(test.slow.swing, episode.fallen)
        if not test.baseline.knows or not episode.recent or episode.verb is Verb.ROLLBACK:
            return
        rows = min(max(episode.calm_rows, 5), 16)
        test.settle(episode.recent_steps[-rows:], episode.recent_values[-rows:])

    def _equal(self) -> bool:
        """Whether the ranks hold the same weights, as far as anything spoke against it."""
        since = self.episode.first_moves.get(REPLICAS_APART)
        return since is None or equal_since(self.state.traces, since)

    def _revise(self, apart_since: int | None = None) -> None:
        episode = self.episode
        if not episode.worth_telling():
            return
        episode.told, episode.told_peak = episode.judgement, episode.peak_loss
        episode.told_row = episode.rows
        self.events.append(
            Revised(
                step=self.sample.step,
                judgement=episode.judgement,
                peak_step=episode.peak_step,
                peak_loss=episode.peak_loss,
                excess=episode.excess,
                trend=episode.trend,
                worst_z=dict(episode.worst_z),
                settled=episode.settled,
                causes=rank(episode.evidence),
                apart_since=apart_since,
            )
        )

    def _after_command(self, loss: float, bad: bool) -> None:
        """Judge whether the command worked, by the rows past `Episode.judged_from`."""
        episode, state, sample = self.episode, self.state, self.sample
        settings = state.settings
        episode.verb_rows += sample.step > episode.judged_from
        episode.evidence.see_again(sample.batches, episode.went_back)
        onset = Suspect(sample.step, loss, math.inf, sample.batches)
        stuck = episode.drops >= settings.drop_limit
        rewound = episode.verb is Verb.ROLLBACK  # and with it what is known of comparisons
        apart = apart_in(state.traces, -1 if rewound else episode.verb_step)
        again = stuck or apart is not None or (bad and not episode.drops)
        if apart is not None:
            onset = first_apart(onset, apart, state.traces)
        elif stuck:
            onset = first_dropped(onset, episode.drops, state.traces)
        elif not bad and rewound:
            verdict, z = state.test.look(sample.step, loss, sample.batches, settings)
            again = verdict is Verdict.SPIKE
            onset = state.test.onset(Suspect(sample.step, loss, z, sample.batches))
        late = episode.verb_rows > episode.horizon(settings) + settings.recover_steps
        away = self._own_away()
        stayed = late and not again and (not episode.calm_rows or away is not None)
        if stayed:  # it never left: where it began is still where it began
            onset = Suspect(episode.newest_onset, math.nan, math.inf, episode.newest_batches)
        if again or stayed:
            self._recur(onset, bad, apart, stayed=stayed)
            return
        reason = after_command(episode, settings)
        if away is not None:
            reason = f"{episode.signal} {away.reason}; {reason}"
        if REPLICAS_APART in episode.first_moves and self._equal():
            reason = f"all ranks hold the same weights again, and {reason}"
        episode.judgement = replace(episode.judgement, reason=reason)
        seen = sample.step - episode.judged_from >= settings.recover_steps
        worked = away is None and seen and episode.is_back(settings)
        if worked and (late or self._equal()):
            self._close(Outcome.RECOVERED)
        else:
            self._revise(episode.first_moves.get(REPLICAS_APART))

    def _recur(self, onset: Suspect, bad: bool, apart: Apart | None, *, stayed: bool) -> None:
        episode, state = self.episode, self.state
        assert episode.verb is not None
        act, drops, calm = ACTS[episode.verb], episode.drops, episode.calm_rows
        rows = [row for row in state.test.rows if row[0] >= onset.step]
        state.test.clear()
        episode.come_back()
        episode.evidence.come_back(onset.step, onset.batches)
        if episode.went_back and not stayed:
            episode.evidence = episode.evidence.anew(state.traces)
        for at, value in rows:
            episode.see(at, value, state.settings)
        kind = Kind.DIVERGENT if bad else Kind.LINGERING
        what = f"off trend by {told_z(onset.z)} deviations again"
        what = "not finite again" if bad else ("still off trend" if stayed else what)
        reason = f"loss is {what} after {act}"
        if stayed and calm and (own := self._own_away()) is not None:
            reason = f"{episode.signal} {own.reason} after {act}"
        episode.judgement = Judgement(kind, RETURNED, reason)
        if drops >= state.settings.drop_limit:
            episode.drops, episode.judgement = drops, stuck_judgement(drops)
        if apart is not None:
            episode.note_apart(onset.step)
            episode.judgement = apart.judgement
        episode.told = episode.judgement
        causes = rank(episode.evidence)
        since = None if apart is None else onset.step
        self.events.append(
            Recurred(
                self.sample.step, onset.step, onset.batches, episode.judgement, causes, since,
                episode.excess, stayed,
            )
        )  # fmt: skip
