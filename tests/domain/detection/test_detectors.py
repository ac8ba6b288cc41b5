"""Every detector by its contract, and the monitor with each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from spikeguard_protocol import Verb
from spikeguard_server.detectors import Detector, Verdict, choose, find
from spikeguard_server.domain.detection.detectors.textbook import Ewma, ZScore
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.domain.events import Event, Opened
from spikeguard_server.domain.monitor.monitor import Monitor, OlderStateVersion
from spikeguard_server.domain.policy.settings import PolicyError
from tests.domain.detection.curves import ar_noise, descent, plateau, samples, spiked

SHIPPED = ("robust_trend", "zscore", "ewma")
NOISE = np.random.default_rng(5).normal(2.5, 0.02, 300).tolist()


def defaults(kind: type[Detector], **given: float) -> dict[str, float]:
    return {one.name: one.default for one in kind.settings} | given


def zs(detector: Detector, values: Sequence[float], settings: dict[str, float]) -> list[float]:
    return [detector.look(step, value, settings)[1] for step, value in enumerate(values)]


def observed(monitor: Monitor, rows: Sequence[Sample]) -> list[Opened]:
    return [event for event in monitor.observe(rows) if isinstance(event, Opened)]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_spike_is_found_in_any_detectors_band_and_calm_rows_are_not(name: str) -> None:
    kind = find(name)
    detector, settings = kind(), defaults(kind)
    rows = [*NOISE, 8.0, 8.0]
    said = [detector.look(step, value, settings) for step, value in enumerate(rows)]
    assert {verdict for verdict, _ in said[:300]} <= {Verdict.UNKNOWN, Verdict.CALM}
    assert Verdict.SPIKE in {verdict for verdict, _ in said[300:]}
    band = detector.band(302, settings)
    assert band is not None
    assert band.level == pytest.approx(2.5, abs=0.02)
    assert band.scale == pytest.approx(0.02, rel=0.4)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 8.0])
def test_what_is_not_finite_or_far_off_never_moves_the_band(name: str, bad: float) -> None:
    kind = find(name)
    detector, settings = kind(), defaults(kind)
    zs(detector, NOISE, settings)
    before = detector.band(500, settings)
    assert before is not None
    for step in range(300, 340):
        verdict, z = detector.look(step, bad, settings)
        assert z > 100 or verdict is Verdict.SPIKE
    assert detector.band(500, settings) == before


@pytest.mark.parametrize("name", SHIPPED)
def test_a_flat_signal_is_judged_by_a_floor(name: str) -> None:
    kind = find(name)
    detector, settings = kind(), defaults(kind)
    zs(detector, [2.0] * 200, settings)
    assert detector.look(200, 2.001, settings)[0] is Verdict.CALM
    assert detector.look(201, 3.0, settings)[1] > 20


def test_the_z_score_is_the_textbooks() -> None:
    settings = defaults(ZScore, window=100, warm_up_rows=10)
    found = zs(ZScore(), NOISE, settings)
    assert found[:10] == [0.0] * 10
    for at in (10, 60, 100, 299):
        window = np.array(NOISE[max(0, at - 100) : at])
        assert found[at] == pytest.approx((NOISE[at] - window.mean()) / window.std(ddof=1))


def test_the_z_score_by_the_median_is_the_textbooks() -> None:
    found = zs(ZScore(), NOISE, defaults(ZScore, window=100, median=1))
    window = np.array(NOISE[199:299])
    scale = 1.4826 * np.median(abs(window - np.median(window)))
    assert found[299] == pytest.approx((NOISE[299] - np.median(window)) / scale)


def test_the_ewma_weighs_rows_by_their_age() -> None:
    """Mean and variance of the rows with weights (1 - a)^age, after a plain beginning."""
    detector, half_life = Ewma(), 10.0
    values = [float(value) for value in ar_noise(400, 1, 0.1, 0.0) + 3.0]
    settings = defaults(Ewma, half_life=half_life, threshold=1_000)
    zs(detector, values, settings)
    weights = 2.0 ** (-np.arange(400)[::-1] / half_life)
    mean = float(np.average(values, weights=weights))
    square = float(np.average((np.array(values) - mean) ** 2, weights=weights))
    band = detector.band(400, settings)
    assert band is not None
    assert band.level == pytest.approx(mean, rel=1e-6)
    assert band.scale == pytest.approx(math.sqrt(square), rel=1e-4)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_as_many_rows_confirm_as_the_setting_says(name: str, rows: int) -> None:
    monitor = Monitor()
    monitor.use(choose({"detector": name, "confirm_rows": rows}))
    shorter = [*NOISE, *[2.9] * (rows - 1), *NOISE[:40]]
    assert all(one.judgement.kind == "outlier_batch"
               for one in observed(monitor, samples(shorter)))  # fmt: skip
    monitor = Monitor()
    monitor.use(choose({"detector": name, "confirm_rows": rows}))
    (opened,) = observed(monitor, samples([*NOISE, *[2.9] * rows]))
    assert opened.onset_step == 300 + samples([0.0])[0].step
    assert opened.step == opened.onset_step + rows - 1


@pytest.mark.parametrize("name", SHIPPED)
def test_a_state_between_any_two_rows_changes_nothing(name: str) -> None:
    choice = choose({"detector": name})
    losses = spiked(plateau(700), 400, 2.0, 15)
    whole, parted, told = Monitor(), Monitor(), list[Event]()
    whole.use(choice)
    parted.use(choice)
    expected = whole.observe(samples(losses))
    rows = samples(losses)
    for at in range(0, len(rows), 7):
        told += parted.observe(rows[at : at + 7])
        parted = Monitor.load(parted.dump())
        parted.use(choice)
    assert told == expected
    assert any(isinstance(event, Opened) for event in told)
    assert parted.dump() == whole.dump()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_healed_spike_does_not_hide_the_next(name: str) -> None:
    losses = spiked(spiked(plateau(1_600), 400, 2.0, 15), 1_300, 2.0, 15)
    monitor = Monitor()
    monitor.use(choose({"detector": name}))
    found = [one.onset_step for one in observed(monitor, samples(losses))]
    first = samples([0.0])[0].step
    assert found == [400 + first, 1_300 + first]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_setting_counts_from_the_next_row_and_what_was_learnt_stays(name: str) -> None:
    rows = samples([*NOISE, 2.7, 2.7, *NOISE[:50]])
    strict, loose = Monitor(), Monitor()
    for monitor in (strict, loose):
        slow = {"lift_limit": 1_000} if name == "robust_trend" else {}
        monitor.use(choose({"detector": name, "threshold": 50, **slow}))
        assert observed(monitor, rows[:300]) == []
    loose.use(choose({"detector": name, "threshold": 5}))
    assert [one.onset_step for one in observed(loose, rows[300:])] == [rows[300].step]
    assert [o for o in observed(strict, rows[300:]) if o.judgement.kind != "outlier_batch"] == []


@pytest.mark.parametrize("before", SHIPPED)
@pytest.mark.parametrize("after", SHIPPED)
def test_another_detector_begins_with_what_was_learnt(before: str, after: str) -> None:
    """No row is spent on learning again: the very next one is judged."""
    rows = samples([*NOISE, 4.0, 4.0])
    monitor = Monitor()
    monitor.use(choose({"detector": before}))
    assert observed(monitor, rows[:300]) == []
    monitor.use(choose({"detector": after}))
    (opened,) = observed(monitor, rows[300:])
    assert opened.onset_step == rows[300].step
    assert opened.trend is not None
    assert opened.trend.level == pytest.approx(2.5, abs=0.02)


def test_the_default_detector_with_its_defaults_is_the_one_that_was() -> None:
    rows = samples(spiked(descent(2_000), 1_500, 1.0, 15))
    usual, chosen = Monitor(), Monitor()
    chosen.use(choose({}))
    assert usual.observe(rows) == chosen.observe(rows)
    assert usual.dump() == chosen.dump()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_rollback_takes_the_detector_back_and_keeps_its_settings(name: str) -> None:
    monitor = Monitor()
    monitor.use(choose({"detector": name}))
    rows = samples([*NOISE[:200], *[4.0] * 30])
    monitor.observe(rows[:180])
    past = Monitor.load(monitor.dump())
    monitor.observe(rows[180:])
    assert monitor.open
    monitor.intervened(rows[-1].step, Verb.ROLLBACK)
    monitor.rewind(past)
    again = [
        replace(row, values={"loss": value})
        for row, value in zip(rows[180:], NOISE[180:230], strict=True)
    ]
    assert observed(monitor, again) == []
    assert monitor.deviations(again[-1].step, again[-1].values["loss"]) is not None


def test_a_detector_of_another_version_is_learnt_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor()
    monitor.use(choose({"detector": "zscore"}))
    monitor.observe(samples(NOISE))
    state = monitor.dump()
    monkeypatch.setattr(ZScore, "version", 2)
    later = Monitor.load(state)
    later.use(choose({"detector": "zscore"}))
    (opened,) = observed(later, samples([*NOISE, 4.0])[300:])
    assert opened.z > 20
    with pytest.raises(OlderStateVersion):
        Monitor.load(state.replace(b"monitor 1", b"monitor ", 1))


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"detector": "zcore"}, r"detector: 'zcore' is no detector .*zscore"),
        ({"detector": 3}, r"detector: takes a name"),
        ({"treshold": 3}, r"treshold: is no setting of robust_trend.*threshold"),
        ({"threshold": 0.5}, r"threshold: takes a number from 2 to 1000 \(robust deviations\)"),
        ({"threshold": math.nan}, r"threshold: takes a number .* default is 6"),
        ({"detector": "zscore", "window": 10.5}, r"window: takes a whole number from 4 to 2048"),
        ({"detector": "zscore", "window": True}, r"window: takes a whole number"),
        ({"detector": "ewma", "window": 10}, r"window: is no setting of ewma.*half_life"),
    ],
)
def test_an_error_names_field_limit_and_remedy(plain: dict[str, object], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        choose(plain)
