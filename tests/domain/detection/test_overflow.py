"""Numbers too small: a scaler that drops steps, and updates that round to nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import pytest

from spikeguard_core.detection.own_signals import MOST_UNCHANGED
from spikeguard_core.detection.sample import Sample
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.events import Closed, Event, Opened, Precursor, Revised
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.policy.settings import choose
from spikeguard_protocol import Cause, Kind
from tests.domain.detection.curves import plateau

ROWS = 400
LOSSES = plateau(ROWS)
NORMS = plateau(ROWS, 0.5, seed=1, noise=0.05)
DROPS = DetectionSettings().drop_limit


def row(step: int, overflow: bool, fused: bool = True, **other: float) -> Sample:
    """A step as an agent reports it; a fused optimizer is called even where nothing is updated."""
    values = {"loss": LOSSES[step - 1], "grad_norm": math.inf if overflow else NORMS[step - 1]}
    if fused:
        values |= {"step_skipped": float(overflow), "update_dropped": float(overflow)}
        values["update_norm_sampled"] = 0.0 if overflow else 2.0 * NORMS[step - 1]
    elif overflow:
        values["step_skipped"] = 1.0
    return Sample(step, values | other)


def told(overflows: Collection[int], fused: bool = True) -> list[Event]:
    return Monitor().observe([row(step, step in overflows, fused) for step in range(1, ROWS)])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("overflows", [range(1, 31), [50, 51, 200, 320], range(20, ROWS, 6)])
def test_an_overflow_that_the_scaler_handles_opens_nothing(
    overflows: Collection[int], fused: bool
) -> None:
    """At the start, from a scale of 2**32 down, now and then, and as often as every sixth step."""
    assert told(overflows, fused) == []


@pytest.mark.parametrize("fused", [True, False])
def test_a_fifth_of_the_steps_skipped_is_warned_of_once(fused: bool) -> None:
    """Never ten in a row, so that nothing else tells of it; a search for a scale is far fewer."""
    (warning,) = told([*range(1, DROPS), *range(100, ROWS, 2)], fused)
    assert isinstance(warning, Precursor)
    assert (warning.signal, warning.z) == ("skipped_share", math.inf)
    assert (warning.step, warning.value) == (162, 41 / 200)


def test_a_policy_names_another_share_of_skipped_steps() -> None:
    monitor = Monitor()
    monitor.use(choose({"signals": {"skipped_share": {"above": 0.1, "rows": 1}}}))
    events = monitor.observe([row(step, step in range(20, ROWS, 6)) for step in range(1, ROWS)])
    assert [getattr(event, "signal", "") for event in events] == ["skipped_share"]


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_a_scaler_that_finds_no_scale_is_stuck_as_long_as_it_finds_none(
    fused: bool, norms: bool
) -> None:
    """However calm the loss is, and where nobody reports a norm of the gradient."""
    rows = [row(step, step >= 100, fused) for step in range(1, ROWS)]
    shown = [{k: v for k, v in one.values.items() if norms or k != "grad_norm"} for one in rows]
    events = Monitor().observe([Sample(one.step, v) for one, v in zip(rows, shown, strict=True)])
    opened, *others = [event for event in events if isinstance(event, Opened | Closed)]
    assert not others
    assert isinstance(opened, Opened)
    assert (opened.step, opened.onset_step) == (100 + DROPS - 1, 100)
    assert opened.judgement.kind is Kind.DIVERGENT
    assert opened.judgement.reason.startswith("stuck")


@pytest.mark.parametrize(
    "strange",
    [
        Sample(300, {"loss": math.nan, "grad_norm": math.nan, "step_skipped": 1.0}),
        Sample(300, {"loss": 3.0, "grad_norm": math.nan, "step_skipped": 0.0}),
        Sample(300, {"loss": 3.0, "grad_norm": math.nan, "update_dropped": 1.0}),
    ],
    ids=["the loss too", "the scaler let it through", "no scaler at work"],
)
def test_any_other_non_finite_step_opens_an_incident_at_once(strange: Sample) -> None:
    events = Monitor().observe([*(row(step, False) for step in range(1, 300)), strange])
    assert [type(event) for event in events] == [Opened]


@pytest.mark.parametrize("fused", [True, False])
def test_a_scaler_that_finds_no_scale_is_put_down_to_the_number_format(fused: bool) -> None:
    """Nothing was applied, so that there is nothing to go back from."""
    told_last = [e for e in told(range(100, 140), fused) if isinstance(e, Opened)][-1]
    likely = told_last.causes[0]
    assert likely.cause is Cause.LOSS_SCALE_OVERFLOW
    assert likely.confidence > 0.6
    assert likely.mark is not None
    assert likely.mark.first_step == 100


@pytest.mark.parametrize("fused", [True, False])
def test_steps_skipped_now_and_then_after_a_spike_are_no_overflow(fused: bool) -> None:
    """As in a loop that leaves out a step whose batch raised: one that was made reports nothing."""
    skipped = range(210, ROWS, 30)
    rows = [row(step, step in skipped, fused, loss=LOSSES[step - 1] + 2.0 * (step >= 200))
            for step in range(1, ROWS)]  # fmt: skip
    events = Monitor().observe(rows)
    rankings = [event.causes for event in events if isinstance(event, Opened | Revised)]
    assert {ranking[0].cause for ranking in rankings} == {Cause.UNKNOWN}


def test_weights_that_stood_still_before_the_onset_are_named_as_the_cause() -> None:
    def stalled(step: int) -> Sample:
        up = 0.0 if step < 300 else 0.02 * (step - 299)
        calm = {"loss": LOSSES[step - 1] + up, "unchanged_parameters": 0.97 + step % 3 / 1000}
        return Sample(step, calm)

    events = Monitor().observe([stalled(step) for step in range(1, ROWS)])
    opened = next(event for event in events if isinstance(event, Opened))
    assert opened.causes[0].cause is Cause.STALLED_WEIGHTS
    assert "97.1% of the parameters" in opened.causes[0].reasons[0]


STOOD = 1_400
CALM = plateau(STOOD)


def rows(shares: Sequence[float]) -> list[Sample]:
    """Measured every ten steps, as agents do."""
    found = []
    for step, (loss, share) in enumerate(zip(CALM, shares, strict=True), start=1):
        measured = {"unchanged_parameters": share} if step % 10 == 9 else {}
        found.append(Sample(step, {"loss": loss} | measured))
    return found


def warned(shares: Sequence[float]) -> list[Precursor]:
    events = Monitor().observe(rows(shares))
    assert all(isinstance(event, Precursor) for event in events)
    return [event for event in events if isinstance(event, Precursor)]


def test_a_share_that_creeps_up_to_the_limit_is_warned_of_once() -> None:
    """As with a learning rate that falls by degrees."""
    creeping = [0.5 + 0.499 * step / STOOD for step in range(STOOD)]
    (only,) = warned(creeping)
    assert (only.signal, only.z) == ("unchanged_parameters", math.inf)
    first = next(step for step in range(9, STOOD, 10) if creeping[step - 1] >= MOST_UNCHANGED)
    assert only.step == first + 10


def test_what_is_learned_from_all_the_same_is_not_warned_of() -> None:
    """A large embedding, of which most rows do not occur in a step."""
    assert warned([0.9] * STOOD) == []


def test_one_step_that_changed_nothing_is_none() -> None:
    assert warned([1.0 if step == 698 else 0.3 for step in range(STOOD)]) == []


def test_a_second_standstill_long_after_the_first_is_warned_of_again() -> None:
    twice = [0.99 if step < 200 or step > 1_000 else 0.3 for step in range(STOOD)]
    assert [event.step for event in warned(twice)] == [19, 1019]


def test_no_incident_is_said_to_have_begun_with_it() -> None:
    stopped = [
        Sample(s.step, {**s.values, "unchanged_parameters": 0.99}) for s in rows([0.0] * STOOD)
    ]
    spike = [Sample(STOOD + n, {"loss": 9.0}) for n in range(1, 4)]
    monitor = Monitor()
    monitor.observe(stopped)
    (opened, *_) = monitor.observe(spike)
    assert getattr(opened, "first_moves") == {"loss": STOOD + 1}  # noqa: B009
