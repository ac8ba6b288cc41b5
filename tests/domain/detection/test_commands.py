"""Whether an intervention worked is judged on what comes after it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spikeguard_core.detection.sample import Sample
from spikeguard_core.events import Closed, Event, Recurred, Revised
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import BatchRange, Kind, Outcome, Verb
from tests.domain.detection.curves import closed, descent, opened, plateau, samples

ONSET = 501


def broken(rows: int = 700, lift: float = 1.0) -> list[float]:
    losses = plateau(rows)
    return losses[: ONSET - 1] + [loss + lift for loss in losses[ONSET - 1 :]]


def rolled_back(target: int = 450, watched: int = 600) -> Monitor:
    """A lingering incident whose run went back to `target`, from step `watched`."""
    monitor, past = Monitor(), Monitor()
    rows = samples(broken(watched + 1))
    past.observe(rows[:target])
    assert opened(monitor.observe(rows[:watched]))
    monitor.intervened(watched, Verb.ROLLBACK)
    monitor.rewind(past)
    return monitor


def test_a_rollback_that_holds_closes_as_recovered() -> None:
    monitor = rolled_back()
    assert monitor.open
    assert monitor.newest_step == 450
    events = monitor.observe(samples(plateau(200, seed=5), first=451))
    assert [event.outcome for event in closed(events)] == [Outcome.RECOVERED]
    assert ONSET + 50 <= closed(events)[0].step <= ONSET + 70
    assert not monitor.open


@pytest.mark.parametrize("waited", [2, 100, 350])
def test_the_same_rollback_is_judged_the_same_however_late_it_was_decided(waited: int) -> None:
    """By steps past the onset on the new segment; it was applied at a step of the old one."""
    monitor = rolled_back(watched=ONSET + waited)
    (end,) = closed(monitor.observe(samples(plateau(150, seed=5), first=451)))
    assert (end.step, end.outcome) == (ONSET + 50, Outcome.RECOVERED)
    assert end.judgement.reason == "loss is on trend 50 steps past the onset"
    assert end.excess == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(
    ("trained", "said"),
    [
        (80, "the run ended 29 steps past the onset: loss is on trend"),
        (30, "the run ended 21 steps before the onset: loss is on trend"),
    ],
)
def test_a_run_that_ends_before_the_judgement_says_so_and_nothing_of_before_the_rollback(
    trained: int, said: str
) -> None:
    monitor = rolled_back(watched=ONSET + 350)
    monitor.observe(samples(plateau(trained, seed=5), first=451))
    (end,) = closed(monitor.end())
    assert (end.outcome, end.judgement.reason) == (Outcome.RUN_ENDED, said)


def test_a_run_that_ends_off_its_trend_long_after_a_rollback_is_not_said_to_have_ended_early() -> (
    None
):
    monitor = rolled_back()
    monitor.observe(samples([loss + 0.1 for loss in plateau(250, seed=5)], first=451))
    (end,) = closed(monitor.end())
    assert end.outcome is Outcome.RUN_ENDED
    assert end.judgement.reason.startswith("the run ended 199 steps past the onset: loss is 0.1")


@pytest.mark.parametrize("lift", [1.0, math.nan])
def test_a_spike_that_returns_has_recurred(lift: float) -> None:
    monitor = rolled_back()
    again = plateau(200, seed=5)
    again = again[:50] + [loss + lift for loss in again[50:]]
    events = monitor.observe(samples(again, first=451))
    recurred = [event for event in events if isinstance(event, Recurred)]
    assert len(recurred) == 1
    assert ONSET - 1 <= recurred[0].onset_step <= ONSET + 1
    assert recurred[0].step <= ONSET + 2
    assert monitor.open
    assert not closed(events)


def test_a_lower_learning_rate_that_helps_closes_as_recovered() -> None:
    monitor = Monitor()
    monitor.observe(samples(broken()))
    monitor.intervened(700, Verb.SCALE_LR)
    events = monitor.observe(samples(plateau(200, seed=7), first=701))
    assert closed(events)[0].outcome is Outcome.RECOVERED
    assert closed(events)[0].step >= 750


def test_a_lower_learning_rate_that_does_not_help_has_recurred() -> None:
    monitor = Monitor()
    monitor.observe(samples(broken()))
    monitor.intervened(700, Verb.SCALE_LR)
    events = monitor.observe(samples([loss + 1 for loss in plateau(800, seed=7)], first=701))
    again = next(one for one in events if isinstance(one, Recurred | Closed))
    assert isinstance(again, Recurred)
    assert (again.stayed, again.onset_step) == (True, ONSET)  # it began where it began
    assert again.judgement.reason == "loss is still off trend after scaling the learning rate"


@pytest.mark.parametrize("verb", [Verb.WATCH, Verb.CHECKPOINT_NOW, Verb.STOP])
def test_watching_is_no_cure(verb: Verb) -> None:
    """The incident goes on being judged as if nothing had been done."""
    plain, watched = Monitor(), Monitor()
    rows = samples(broken(1500))
    plain.observe(rows[:600])
    watched.observe(rows[:600])
    watched.intervened(600, verb)
    assert watched.observe(rows[600:]) == plain.observe(rows[600:])


def test_a_resume_with_an_open_incident_keeps_it_open() -> None:
    monitor, past = Monitor(), Monitor()
    rows = samples(broken())
    past.observe(rows[:550])
    monitor.observe(rows[:600])
    monitor.rewind(past)
    assert monitor.open
    events = monitor.observe(rows[550:])
    assert not closed(events)
    assert not opened(events)


def test_the_end_of_a_run_closes_what_is_open() -> None:
    monitor = Monitor()
    monitor.observe(samples(broken(540)))
    events = monitor.end()
    assert [event.outcome for event in closed(events)] == [Outcome.RUN_ENDED]
    assert monitor.end() == []


def dropped(steps: dict[int, float], rows: int = 300) -> list[Event]:
    """Events of a calm run in which the updates of `steps` had this loss and were dropped."""
    losses = descent(rows)
    return Monitor().observe(
        [
            Sample(step, {"loss": steps.get(step, loss), "update_dropped": float(step in steps)})
            for step, loss in enumerate(losses, start=1)
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_that_rose_after_a_dropped_update_is_not_healed_by_five_steps(seed: int) -> None:
    """Weights that were damaged beside it: it falls from 20 to 0.6 above and stays there."""
    steps = np.arange(1, 701)
    losses = 1.95 - 0.45 * np.log(np.minimum(steps, 450) / 330)
    losses += 0.12 * np.random.default_rng(seed).standard_normal(700)
    losses[332:] += 0.6 + 20.0 * np.exp(-np.arange(368) / 12.0)
    losses[329:331] = math.nan
    values = zip(steps.tolist(), losses.tolist(), strict=True)
    samples = [Sample(n, {"loss": v, "update_dropped": float(v != v)}) for n, v in values]
    events = Monitor().observe(samples)
    assert opened(events)[0].dropped
    assert not [e for e in events if isinstance(e, Closed)]


def test_a_dropped_non_finite_update_heals_in_five_steps() -> None:
    events = dropped({200: math.nan})
    assert opened(events)[0].dropped
    assert (closed(events)[0].step, closed(events)[0].outcome) == (205, Outcome.HEALED)
    assert closed(events)[0].judgement.kind is Kind.RECOVERABLE


def test_ten_drops_in_a_row_are_a_run_that_is_stuck() -> None:
    events = dropped(dict.fromkeys(range(200, 230), math.nan), 231)
    told = next(e for e in events if isinstance(e, Revised) and "stuck" in e.judgement.reason)
    assert told.step == 209
    assert told.judgement.kind is Kind.DIVERGENT
    assert told.judgement.reason.startswith("stuck: 10 updates in a row had to be dropped")
    assert told.worst_z["update_dropped"] == math.inf
    before = [e for e in events if isinstance(e, Revised) and e.step < 209]
    assert not [e for e in before if "stuck" in e.judgement.reason]


def test_ten_finite_updates_dropped_in_a_row_are_stuck_from_the_first_of_them() -> None:
    losses = descent(300)
    events = dropped({step: losses[step - 1] for step in range(200, 230)}, 240)
    stuck = opened(events)[0]
    assert (stuck.step, stuck.onset_step, stuck.signal) == (209, 200, "update_dropped")
    assert stuck.judgement.kind is Kind.DIVERGENT
    assert stuck.judgement.reason.startswith("stuck: 10 updates")


def test_a_run_that_is_stuck_again_after_a_rollback_came_back() -> None:
    losses, monitor = descent(300), Monitor()

    def rows(first: int, last: int, bad: range) -> list[Sample]:
        return [
            Sample(
                step,
                {
                    "loss": math.nan if step in bad else losses[step - 1],
                    "update_dropped": float(step in bad),
                },
                BatchRange(step - 1, step),
            )
            for step in range(first, last + 1)
        ]

    past = Monitor()
    past.observe(rows(1, 190, range(0)))
    monitor.observe(rows(1, 212, range(200, 230)))
    monitor.rewind(past)
    monitor.intervened(190, Verb.ROLLBACK)
    events = monitor.observe(rows(191, 225, range(205, 226)))
    (again,) = [event for event in events if isinstance(event, Recurred)]
    assert (again.step, again.onset_step) == (214, 205)
    assert again.onset_batches == BatchRange(204, 205)
    assert "stuck" in again.judgement.reason
    assert all(e.judgement.kind is Kind.DIVERGENT for e in events if isinstance(e, Revised))


@pytest.mark.parametrize("again", [math.nan, 9.0])
def test_what_comes_back_after_a_restart_has_recurred(again: float) -> None:
    """Whoever starts a run again from before an incident has gone back by hand."""
    losses = plateau(ONSET - 1) + [math.nan] * 5
    monitor = Monitor()
    assert opened(monitor.observe(samples(losses)))
    for times in (1, 2):
        events = monitor.observe(samples(plateau(100, seed=times), first=401))
        assert not [event for event in events if isinstance(event, Recurred | Closed)]
        events = monitor.observe(samples([again] * 5, first=ONSET))
        (back,) = [event for event in events if isinstance(event, Recurred)]
        assert (back.onset_step, back.stayed) == (ONSET, False)
        assert back.judgement.reason.endswith("again after going back")


def test_a_restart_behind_the_onset_has_not_gone_back_from_it() -> None:
    monitor = Monitor()
    assert opened(monitor.observe(samples(broken(650))))
    events = monitor.observe(samples(broken(700)[600:], first=601))
    assert not [event for event in events if isinstance(event, Recurred | Closed)]


def test_a_rollback_to_before_a_dip_is_judged_by_the_level_before_the_dip() -> None:
    """Repeated data is soon known by heart; what follows it looks like a spike."""
    dip = list(3.0 * np.exp(-np.arange(1, 21) / 8.0))
    losses = plateau(ONSET - 21) + dip + plateau(12, seed=3)
    monitor, past = Monitor(), Monitor()
    past.observe(samples(losses[:450]))
    (began,) = opened(monitor.observe(samples(losses)))
    assert began.onset_step == ONSET
    monitor.intervened(512, Verb.ROLLBACK)
    monitor.rewind(past)
    (end,) = closed(monitor.observe(samples(plateau(150, seed=5), first=451)))
    assert (end.outcome, end.step) == (Outcome.RECOVERED, ONSET + 50)


def test_a_restart_from_behind_the_onset_went_back_before_nothing() -> None:
    """The checkpoint of the onset's own step holds its update."""
    for last, before_it in ((ONSET - 1, True), (ONSET, False)):
        monitor, past = Monitor(), Monitor()
        past.observe(samples(broken(last)))
        assert opened(monitor.observe(samples(broken(560))))
        assert monitor.rewind(past) is before_it
