"""Every way in which other detectors were fooled, as a promise of ours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spikeguard_core.detection.sample import Sample
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.events import Revised
from spikeguard_core.lifecycle.incident_life import fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_protocol import BatchRange, Cause, Kind, Outcome, SegmentId
from spikeguard_server.ingest.detection import freeze, thaw
from spikeguard_server.report.wording import summary_of
from tests.domain.detection.curves import (
    ar_noise,
    closed,
    descent,
    opened,
    plateau,
    precursors,
    samples,
    spiked,
)


def test_a_nan_never_enters_the_baseline() -> None:
    """After a NaN and its healing the same spike is seen at the same step as without it."""
    losses = spiked(plateau(600), 400, 1.0, 30)
    clean = opened(Monitor().observe(samples(losses)))
    losses[200] = math.nan
    events = Monitor().observe(samples(losses))
    assert opened(events)[0].step == 201
    assert opened(events)[1].step == clean[0].step


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_loss_opens_at_once(value: float) -> None:
    losses = plateau(200)
    losses[150] = value
    first = opened(Monitor().observe(samples(losses)))[0]
    assert (first.step, first.onset_step, first.signal) == (151, 151, "loss")
    assert first.z == math.inf


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(20))
def test_first_rows_that_grow_up_to_the_largest_float_are_taken(seed: int) -> None:
    """Where a curve through them leads is more than a float holds."""
    powers = np.sort(np.random.default_rng(seed).uniform(-300.0, 308.0, 8 + seed))
    losses = [*map(float, 10.0**powers), 1e308]
    monitor = Monitor()
    monitor.observe(samples(losses))
    assert monitor.newest_step == len(losses)


def test_an_incident_knows_its_peak_and_height_from_its_first_moment() -> None:
    """Who is told at once is told of a loss that was measured, and not of one that was not."""
    losses = spiked(plateau(300), 200, 5.0, 30)
    first = opened(Monitor().observe(samples(losses)))[0]
    assert first.peak_loss == max(losses[: first.step])
    assert first.peak_step == losses.index(first.peak_loss) + 1
    told = fold(None, first, number=1, segment=SegmentId("a" * 16, 0))
    assert told is not None
    assert (told.peak_loss, told.excess) == (first.peak_loss, first.excess)
    assert summary_of(told).startswith("The loss rose from")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_grad_norm_opens_and_poisons_nothing(value: float) -> None:
    rows = [
        Sample(step, {"loss": loss, "grad_norm": 0.3 if step != 150 else value})
        for step, loss in enumerate(plateau(400), start=1)
    ]
    events = Monitor().observe(rows)
    assert [event.signal for event in opened(events)] == ["grad_norm"]
    assert closed(events)[0].outcome is Outcome.HEALED


def test_a_spike_does_not_mask_the_next() -> None:
    losses = spiked(spiked(plateau(900), 300, 5.0, 10), 450, 1.0, 10)
    assert [event.onset_step for event in opened(Monitor().observe(samples(losses)))] == [301, 451]


def test_one_loss_of_eight_does_not_raise_the_threshold() -> None:
    losses = plateau(700, 2.5, noise=0.02)
    losses[300] = 8.0
    losses[340:343] = [2.9, 2.9, 2.9]
    assert [event.onset_step for event in opened(Monitor().observe(samples(losses)))] == [301, 341]


def test_a_level_shift_is_accepted_after_a_stated_time_and_said_so() -> None:
    losses = plateau(2200)
    shifted = losses[:500] + [loss + 0.5 for loss in losses[500:]]
    events = Monitor().observe(samples(shifted))
    assert len(opened(events)) == 1
    assert closed(events)[0].outcome is Outcome.LEVEL_ACCEPTED
    assert closed(events)[0].judgement.kind is Kind.LINGERING
    assert 1500 <= closed(events)[0].step <= 1600


def shifted(rows: int, **signals: float) -> list[Sample]:
    """A loss that lies 0.5 higher from step 501 on, and what else those steps measure."""
    losses, usual = plateau(rows), {"grad_norm": 1.0, "param_norm": 60.0}
    return [
        Sample(
            step, {"loss": loss + 0.5 * (step > 500), **usual, **(signals if step > 500 else {})}
        )
        for step, loss in enumerate(losses, 1)
    ]


@pytest.mark.parametrize(
    "signals", [{"grad_norm": 0.0}, {"grad_norm": math.nan}, {"param_norm": math.inf}]
)
def test_no_level_is_accepted_of_a_run_that_cannot_learn(signals: dict[str, float]) -> None:
    monitor = Monitor()
    assert not closed(monitor.observe(shifted(2000, **signals)))
    assert monitor.open


@pytest.mark.slow
def test_no_level_is_accepted_while_somebody_is_asked_and_waiting_does_not_blind() -> None:
    """Until they answer it stays open, and a second spike is seen from the level it is at."""
    monitor, rows = Monitor(), shifted(2600)
    assert len(opened(monitor.observe(rows[:600]))) == 1
    assert monitor.await_decision(True)
    asked = thaw(freeze(monitor))
    assert not closed(asked.observe(rows[600:2000]))
    risen = [Sample(s.step, {**s.values, "loss": s.values["loss"] + 0.4}) for s in rows[2000:2020]]
    events = asked.observe(risen)
    events += asked.observe(rows[2020:])
    kinds = [event.judgement.kind for event in events if isinstance(event, Revised)]
    assert Kind.DIVERGENT in kinds[:2]
    assert kinds[-1] is Kind.LINGERING
    assert Kind.RECOVERABLE not in kinds  # back where it stayed is not back on its trend
    assert not closed(events)
    monitor.await_decision(False)
    assert closed(monitor.observe(rows[600:]))[0].outcome is Outcome.LEVEL_ACCEPTED


def test_a_constant_loss_has_a_floor_on_its_scale() -> None:
    """No alarm from a last digit, one from a real jump."""
    losses = [2.5] * 300
    losses[200] = losses[201] = 2.501
    assert not opened(Monitor().observe(samples(losses)))
    losses[250:255] = [3.0] * 5
    assert opened(Monitor().observe(samples(losses)))[0].onset_step == 251


@pytest.mark.parametrize("seed", range(5))
def test_a_steep_early_descent_does_not_alarm(seed: int) -> None:
    assert not opened(Monitor().observe(samples(descent(1500, seed))))


@pytest.mark.parametrize("seed", range(3))
def test_a_warm_up_that_first_holds_the_loss_does_not_alarm(seed: int) -> None:
    held = plateau(100, 11.0, seed, 0.05)
    assert not opened(Monitor().observe(samples(held + descent(900, seed))))


@pytest.mark.parametrize("rows", [80, 100])
def test_a_run_is_watched_after_a_hundred_steps(rows: int) -> None:
    losses = spiked(descent(rows + 40), rows, 2.0, 20)
    assert opened(Monitor().observe(samples(losses)))[0].onset_step == rows + 1


@pytest.mark.parametrize(("back", "row"), [(100, 20), (100, 0), (30, 0), (300, 0)])
def test_after_a_restart_the_baseline_is_warm(back: int, row: int) -> None:
    """Steps that come again after a restart are judged by what was known at that step."""
    first, again = plateau(400, seed=1), plateau(300, seed=2)
    begin = 401 - back
    rows = samples(first) + samples(spiked(again, row, 1.0, 30), first=begin)
    assert opened(Monitor().observe(rows))[0].onset_step == begin + row


@pytest.mark.parametrize("part", [0.02, 0.1, 0.18])
def test_a_loss_that_becomes_exactly_zero_opens_however_noisy_it_was(part: float) -> None:
    """As Hugging Face's Trainer logs a loss that is not finite."""
    losses = [*plateau(300, level=1.1, noise=1.1 * part), *[0.0] * 20]
    (event,) = opened(Monitor().observe(samples(losses)))
    assert (event.onset_step, event.judgement.kind) == (301, Kind.DIVERGENT)


def test_a_loss_that_fades_to_printed_zeros_opens_nothing() -> None:
    losses = np.exp(-np.arange(1_500) / 90.0) * (1.0 + ar_noise(1_500, 3, 0.15, 0.3))
    for digits in (2, 3, 4):
        assert not opened(Monitor().observe(samples([round(x, digits) for x in losses])))


@pytest.mark.parametrize("seed", range(3))
def test_a_warm_restart_of_the_rate_that_lifts_the_loss_is_no_slow_rise(seed: int) -> None:
    """The loss rises by 0.2 over 1,500 steps and falls again; without the rate it is told."""
    wave = 0.1 * (1 - np.cos(np.linspace(0, 2 * np.pi, 3000)))
    losses = [float(a + b) for a, b in zip(plateau(3000, seed=seed), wave, strict=True)]
    rates = [3e-4] * 50 + [1e-4] * 150 + [3e-4] * 2800
    rows = [
        Sample(step, {"loss": loss, "lr": rate})
        for step, (loss, rate) in enumerate(zip(losses, rates, strict=True), start=1)
    ]
    assert not opened(Monitor().observe(rows))
    assert opened(Monitor().observe(samples(losses[:2000])))


@pytest.mark.parametrize("back", [False, True], ids=["goes on", "resumes from before it"])
def test_a_noted_change_explains_a_slow_rise_for_one_horizon(back: bool) -> None:
    """A loss that still rises after that is told; by batches, row by row and from bytes alike."""
    ramp = np.concatenate([np.zeros(1_000), np.linspace(0.0, 0.45, 1_500)])
    losses = [float(a + b) for a, b in zip(plateau(2_500, 3.0, noise=0.02), ramp, strict=True)]
    rows, monitor, past = samples(losses), Monitor(), Monitor()
    past.observe(rows[:950])
    monitor.observe(rows[:1_000])
    monitor.note_change(1_000)
    if back:
        monitor.rewind(past)
    one, rest = thaw(freeze(monitor)), rows[950 if back else 1_000 :]
    events = monitor.observe(rest)
    assert events == [event for row in rest for event in one.observe([row])]
    assert freeze(monitor) == freeze(one)
    first = opened(events)[0]
    assert 1_500 < first.onset_step < first.step < 2_200
    untold = opened(Monitor().observe(rows))[0]
    assert untold.onset_step < 1_100 < untold.step < 1_500


def test_a_stage_change_to_easier_data_does_not_alarm() -> None:
    assert not opened(Monitor().observe(samples(plateau(400, 3.0) + plateau(400, 2.2, seed=1))))


def test_a_gap_in_the_log_keeps_the_baseline() -> None:
    rows = samples(plateau(300)) + samples(plateau(100, seed=1), first=500)
    rows += samples([4.0] * 5, first=600)
    assert [event.onset_step for event in opened(Monitor().observe(rows))] == [600]


@pytest.mark.parametrize("gap", [10, 100, 1000])
def test_sparse_logs_are_watched(gap: int) -> None:
    rows = samples(spiked(descent(400), 300, 1.5, 5), gap=gap, first=0)
    events = Monitor().observe(rows)
    assert opened(events)[0].onset_step == 300 * gap
    assert closed(events)[0].outcome is Outcome.HEALED


def test_a_log_that_turns_sparse_does_not_alarm() -> None:
    """The first hundred steps are all there, then every 500th."""
    curve = descent(100_000)
    steps = [*range(1, 101), *range(500, 100_000, 500)]
    rows = [Sample(step, {"loss": curve[step - 1]}) for step in steps]
    assert not opened(Monitor().observe(rows))


def test_a_smoothed_log_is_watched() -> None:
    raw = spiked(plateau(900), 600, 2.0, 20)
    smooth = list(np.convolve(raw, np.ones(10) / 10, mode="valid"))
    events = Monitor().observe(samples(smooth))
    assert len(opened(events)) == 1
    assert 580 <= opened(events)[0].onset_step <= 602


@pytest.mark.parametrize("level", [1e-2, 1e-4, 1e-6])
def test_a_jump_is_seen_however_far_the_loss_fell(level: float) -> None:
    losses = np.maximum(level, 10.0 ** (-np.arange(800) / 100))
    losses *= np.exp(ar_noise(800, 0, 0.1, 0.0))
    losses[700:730] *= 5.0
    assert [one.onset_step for one in opened(Monitor().observe(samples(losses.tolist())))] == [701]


def test_a_repeated_step_counts_once() -> None:
    """A lone outlier logged twice is still alone; a spike is told in the same words."""
    losses = spiked(plateau(600), 450, 1.0, 30)
    losses[300] += 1.0
    rows = [
        Sample(step, {"loss": loss, "grad_norm": loss}) for step, loss in enumerate(losses, start=1)
    ]
    doubled = [row for row in rows for _ in (0, 1)]
    assert Monitor().observe(doubled) == Monitor().observe(rows)
    assert len(opened(Monitor().observe(doubled))) == 2


def test_signals_may_come_late_or_never() -> None:
    losses = spiked(plateau(600), 450, 1.0, 30)
    rows = [
        Sample(step, {"loss": loss} | ({"grad_norm": 0.3} if step > 300 else {}))
        for step, loss in enumerate(losses, start=1)
    ]
    rows.insert(200, Sample(200, {"param_norm": 80.0}))
    assert opened(Monitor().observe(rows))[0].onset_step == 451


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_alone_opens_nothing(correlation: float) -> None:
    noise = ar_noise(30_000, 7, 0.02, correlation)
    assert not opened(Monitor().observe(samples((2.0 + noise).tolist())))


@pytest.mark.parametrize("seed", range(4))
def test_heavy_tails_do_not_alarm(seed: int) -> None:
    """Student's t with 4 degrees of freedom."""
    noise = np.random.default_rng(seed).standard_t(4, 5000) * 0.03
    events = opened(Monitor().observe(samples([float(3.0 + one) for one in noise])))
    assert {event.judgement.kind for event in events} <= {Kind.OUTLIER_BATCH}


@pytest.mark.parametrize("seed", range(4))
def test_a_bimodal_loss_does_not_alarm(seed: int) -> None:
    """Augmented batches: one in six has twice the loss."""
    rng = np.random.default_rng(seed)
    losses = [float(2.2 + 1.8 * (rng.random() < 1 / 6) + rng.normal() * 0.1) for _ in range(3000)]
    assert not opened(Monitor().observe(samples(losses)))


def test_a_spike_opens_after_as_many_rows_as_were_asked_for() -> None:
    losses = plateau(400)
    losses[300:330] = [loss + 1.0 for loss in losses[300:330]]
    for rows in (1, 3, 20):
        asked = DetectionSettings(confirm_rows=rows, lift_z=1e9, long_lift_z=1e9)
        first = opened(Monitor(DetectorChoice(asked)).observe(samples(losses)))[0]
        assert (first.onset_step, first.step) == (301, 300 + rows)


def test_one_batch_that_stands_out_is_an_outlier_and_not_a_spike() -> None:
    losses = plateau(400)
    losses[250] += 1.0
    rows = [
        Sample(step, {"loss": loss}, BatchRange(step - 1, step))
        for step, loss in enumerate(losses, start=1)
    ]
    events = Monitor().observe(rows)
    assert [event.judgement.kind for event in opened(events)] == [Kind.OUTLIER_BATCH]
    assert opened(events)[0].onset_batches == BatchRange(250, 251)
    assert (closed(events)[0].outcome, closed(events)[0].step) == (Outcome.OUTLIER, 252)


@pytest.mark.parametrize("row", [150, 400, 700])
@pytest.mark.parametrize("falls", ["steeply", "by steps"])
def test_one_batch_that_stands_out_is_told_however_the_loss_fell_before(
    falls: str, row: int
) -> None:
    stairs = 2.0 - 0.4 * np.floor(np.arange(row + 10) / 150)
    losses = np.array(descent(row + 10) if falls == "steeply" else stairs + plateau(row + 10))
    losses[row] += 0.9
    (event,) = opened(Monitor().observe(samples(losses.tolist())))
    assert (event.onset_step, event.judgement.kind) == (row + 1, Kind.OUTLIER_BATCH)


def test_a_small_and_slow_lift_is_found() -> None:
    """Marin 32B's spike that never recovered: 1.96 to 2.02 and 1.975."""
    losses = plateau(900, 1.96, noise=0.015)
    lifted = losses[:600] + [loss + 0.06 for loss in losses[600:]]
    first = opened(Monitor().observe(samples(lifted)))[0]
    assert first.onset_step in range(595, 606)
    assert first.step <= 630


def test_a_stay_of_eight_deviations_begins_at_its_first_row_in_any_noise() -> None:
    """Some noise hides the rise between two rows: then sixteen of them show it."""
    for seed in range(24):
        losses = 3.0 + ar_noise(500, seed, 0.033, 0.0)
        losses[400:] += 8 * 0.033
        (event,) = opened(Monitor().observe(samples(losses.tolist())))
        assert event.onset_step in (400, 401), seed


def test_a_grad_norm_alone_is_a_precursor_and_no_incident() -> None:
    rng = np.random.default_rng(0)
    rows = [
        Sample(step, {"loss": loss, "grad_norm": float(np.exp(rng.normal() * 0.1))})
        for step, loss in enumerate(plateau(400), start=1)
    ]
    for at in range(300, 305):
        rows[at] = Sample(at + 1, {**rows[at].values, "grad_norm": 30.0})
    monitor = Monitor()
    events = monitor.observe(rows[:310])
    assert [(event.signal, event.step) for event in precursors(events)] == [("grad_norm", 302)]
    assert not opened(events)
    assert monitor.attentive
    monitor.observe(rows[310:])
    assert not monitor.open


def test_a_norm_that_was_clipped_is_back_at_its_bound_without_a_warning() -> None:
    """Most rows are exactly 1, so the noise is next to none; a few lower ones lower the level."""
    norms = np.minimum(1.0, np.exp(np.random.default_rng(3).normal(0.2, 0.3, 4000)))
    values = zip(plateau(4000), norms.tolist(), strict=True)
    rows = [Sample(at, {"loss": a, "grad_norm": b}) for at, (a, b) in enumerate(values, start=1)]
    assert Monitor().observe(rows) == []
    alone = Monitor()
    assert not [event for row in rows for event in alone.observe([row])]


def test_a_loss_that_only_stops_falling_is_no_spike() -> None:
    """Two rows as high as the last few, in the middle of a steep descent."""
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(size=60) * 0.02
        losses = [8.0 * math.exp(-row / 30) + 1.2 + float(noise[row]) for row in range(60)]
        losses[38:40] = [losses[36], losses[37]]
        events = opened(Monitor().observe(samples(losses)))
        assert not [one for one in events if one.onset_step in (39, 40)], seed


def test_the_spike_that_ends_an_incident_says_nothing_of_its_kind() -> None:
    """A memorised data set: the loss of 0.0004 springs up every 30 rows and is back in ten."""
    noise = np.random.default_rng(0).random(900)
    losses = [3.0 * math.exp(-row / 30) + 0.0004 + 0.0001 * noise[row] for row in range(900)]
    for row in range(400, 880, 30):
        for after in range(25):
            losses[row + after] += 0.4 * math.exp(-after / 1.5)
    ends = closed(Monitor().observe(samples(losses)))
    assert len(ends) >= 10
    assert {(end.outcome, end.judgement.kind) for end in ends} == {
        (Outcome.HEALED, Kind.RECOVERABLE)
    }


@pytest.mark.parametrize("digits", [0, 1, 2])
def test_the_rounding_of_printed_values_is_noise(digits: int) -> None:
    """A loss printed with few digits stays at one value for rows, and then at the next."""
    for seed in range(4):
        curve = descent(1500, seed, noise=0.15 / 10**digits)
        assert not opened(Monitor().observe(samples([round(one, digits) for one in curve])))
        spike = [round(one, digits) for one in spiked(curve, 1000, 20 / 10**digits, 10)]
        assert [event.onset_step for event in opened(Monitor().observe(samples(spike)))] == [1001]


def test_what_a_restart_from_an_earlier_step_left_did_not_heal_by_itself() -> None:
    losses = plateau(1_000)
    for row in range(700, 800):
        losses[row] += 3.0
    again = [
        Sample(step, {"loss": losses[step - 1] if step < 700 else 3.0}) for step in range(500, 900)
    ]
    monitor = Monitor()
    events = [*monitor.observe(samples(losses[:800])), *monitor.observe(again)]
    (end,) = closed(events)
    assert end.outcome is Outcome.RECOVERED
    assert end.judgement.kind is not Kind.RECOVERABLE
    assert end.judgement.reason == "loss is on trend 50 steps past the onset"


def test_a_loss_that_explodes_downwards_is_told_below_its_trend_with_the_lowest() -> None:
    losses = plateau(300, 0.01, noise=0.02) + [-9.5, -5.5e4, -217.0, -300.0, -310.0, -306.0] * 2
    events = Monitor().observe(samples(losses))
    (began,) = opened(events)
    assert began.onset_step == 301
    newest = [event for event in events if isinstance(event, Revised)][-1]
    assert (newest.peak_loss, newest.judgement.kind) == (-5.5e4, Kind.DIVERGENT)
    assert "below trend" in newest.judgement.reason
    assert newest.excess is not None
    assert newest.excess < -200


@pytest.mark.parametrize("length", [40, 100, 200])
def test_a_loss_that_is_back_where_it_was_before_it_fell_is_told_so(length: int) -> None:
    """Easier data, or a lower rate, came to its end: the level is no damage to what was learnt."""
    rows = np.arange(1, 1501)
    losses = 2.0 + 20.0 / (rows + 40) ** 0.5 + 0.02 * np.random.default_rng(7).normal(size=1500)
    losses[700 : 700 + length] -= 0.4
    monitor = Monitor()
    (began,) = opened(events := monitor.observe(samples(list(losses[: 800 + length]))))
    assert began.onset_step == 701 + length
    assert began.trend is not None
    far = began.trend.at(began.onset_step + 400) - (losses[began.onset_step + 399] - 0.4)
    assert abs(far) < 0.15  # the fall of 0.4 at once is not expected again
    newest = [event for event in events if isinstance(event, Revised)][-1]
    unknown = next(one for one in newest.causes if one.cause is Cause.UNKNOWN)
    assert "as it was before it fell behind step 6" in unknown.reasons[0]
    assert newest.trend is not None
    assert newest.trend.level > began.trend.level + 0.3  # by which it is judged now
    assert [end.outcome for end in closed(events)] == [Outcome.HEALED]


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("noise", [0.02, 0.06, 0.17])
def test_a_slow_rise_began_where_the_loss_left_its_level_and_not_at_its_luckiest_rows(
    noise: float, power: int
) -> None:
    rise = np.maximum(0.0, np.arange(1000) - 700) / 200
    for seed in range(2):
        losses = 2.6 + noise * np.random.default_rng(seed).normal(size=1000)
        losses += (0.3 + 6 * noise) * rise**power
        began = opened(Monitor().observe(samples(list(losses))))[0]
        assert 600 <= began.onset_step <= 760
        assert began.trend is not None
        assert abs(began.trend.level - 2.6) < noise / 2 + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.03])
@pytest.mark.parametrize("course", ["linear", "saturating", "falling"])
def test_weights_that_grow_steadily_are_no_precursor_and_a_jump_is(
    course: str, rate: float
) -> None:
    rows = np.arange(90)
    shapes = {"linear": 1 + rate * rows, "falling": np.exp(-rate * rows / 2)}
    shapes["saturating"] = 1.5 - np.exp(-2 * rate * rows) / 2
    norms = 10 * shapes[course]
    for jump in (1.0, 1.25, 3.0):
        if course == "falling" and jump == 1.25:  # no higher than it was just before
            continue
        told = norms * np.where(rows < 80, 1.0, jump)
        seen = [
            Sample(step, {"loss": 3.0 + 0.01 * (step % 7), "param_norm": float(told[step // 10])})
            if step % 10 == 0
            else Sample(step, {"loss": 3.0 + 0.01 * (step % 7)})
            for step in range(1, 900)
        ]
        events = Monitor().observe(seen)
        steps = [event.step for event in precursors(events)]
        steps += [event.step for event in opened(events)]
        assert len(steps) == (jump > 1.0)
        assert all(800 <= step <= 820 for step in steps)
        assert len(opened(events)) == (jump == 3.0)


@pytest.mark.parametrize(
    ("gradients", "onset"),
    [
        pytest.param([0.0] * 30, 201, id="stays"),
        pytest.param([0.0] * 9 + [1.0] * 20, None, id="a-few"),
        pytest.param([0.0, 0.0, 1.0] * 20, None, id="now-and-then"),
    ],
)
def test_a_gradient_that_is_zero_from_a_step_on_opens_an_incident(
    gradients: list[float], onset: int | None
) -> None:
    noise = np.random.default_rng(3).lognormal(sigma=0.3, size=400)
    norms = [*noise[:200], *(noise[:200][: len(gradients)] * gradients)]
    for decimals in (1, 4):
        seen = [
            Sample(step, {"loss": 3.0 + 0.01 * (step % 7), "grad_norm": float(norm)})
            for step, norm in enumerate(np.round(np.array(norms) / 5, decimals), 1)
        ]
        found = [(event.onset_step, event.signal) for event in opened(Monitor().observe(seen))]
        known = onset is not None and decimals == 4  # a printed 0.0 may be a small gradient
        assert found == ([(onset, "grad_norm")] if known else [])
