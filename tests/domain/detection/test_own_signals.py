"""Signals of the user's own, judged as the policy says: baseline, direction, precursor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from spikeguard_core.detection.sample import Sample
from spikeguard_core.events import Event, Precursor
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.policy.settings import choose
from spikeguard_protocol import Outcome
from tests.domain.detection.curves import closed, opened, plateau, precursors, spiked

NAME = "router_entropy"


def watching(direction: str, **more: object) -> Monitor:
    monitor = Monitor()
    monitor.use(choose({"signals": {NAME: {"direction": direction, **more}}}))
    return monitor


def rows(own: Sequence[float], losses: Sequence[float] | None = None) -> list[Sample]:
    losses = plateau(len(own)) if losses is None else losses
    pairs = enumerate(zip(losses, own, strict=True), start=1)
    return [Sample(step, {"loss": loss, NAME: value}) for step, (loss, value) in pairs]


def steady(level: float, noise: float, count: int = 600) -> list[float]:
    return [float(v) for v in np.random.default_rng(5).normal(level, noise, count)]


def moved(level: float, noise: float, by: float) -> list[float]:
    """From row 500 on."""
    return [v + (by if row >= 500 else 0.0) for row, v in enumerate(steady(level, noise))]


def dipped(first: int, end: int) -> list[float]:
    """Half a unit lower on the rows from `first` up to `end`."""
    noisy = enumerate(steady(1.7, 0.02, max(end, 900)))
    return [v - (0.5 if first <= row < end else 0.0) for row, v in noisy]


def warned(events: Sequence[Event]) -> list[Precursor]:
    return [event for event in precursors(events) if event.signal == NAME]


@pytest.mark.parametrize(
    ("direction", "by", "tells"),
    [
        ("down", -0.5, True),
        ("down", 0.5, False),
        ("up", 0.5, True),
        ("up", -0.5, False),
        ("both", 0.5, True),
        ("both", -0.5, True),
    ],
)
def test_a_move_in_its_direction_is_a_precursor_and_no_other_is(
    direction: str, by: float, tells: bool
) -> None:
    events = watching(direction).observe(rows(moved(1.7, 0.02, by)))
    assert [event.step for event in warned(events)] == ([502] if tells else [])
    assert opened(events) == []


@pytest.mark.parametrize("level", [-3e6, -1e-6, 1e-6, 40.0])
def test_a_signal_of_any_size_and_sign_is_judged_by_its_own_noise(level: float) -> None:
    noise = abs(level) / 50
    assert warned(watching("both").observe(rows(steady(level, noise)))) == []
    (one,) = warned(watching("both").observe(rows(moved(level, noise, 20 * noise))))
    assert one.step == 502
    assert one.z > 8.0


def test_a_signal_that_never_changed_is_not_told_of_for_its_last_digits() -> None:
    flat = [1.0] * 500
    assert warned(watching("up").observe(rows(flat + [1.001] * 20))) == []
    assert len(warned(watching("up").observe(rows(flat + [1.5] * 20)))) == 1


def test_an_incident_of_a_signal_opens_beside_a_calm_loss_and_ends_with_it() -> None:
    values = dipped(500, 560)
    events = watching("down", opens="incident").observe(rows(values))
    (incident,) = opened(events)
    assert (incident.step, incident.onset_step, incident.signal) == (502, 501, NAME)
    assert "deviations below its baseline" in incident.judgement.reason
    assert warned(events) == []
    (end,) = closed(events)
    assert end.outcome is Outcome.HEALED
    assert 561 <= end.step <= 620


def test_a_level_that_such_a_signal_stays_at_is_accepted_in_the_end() -> None:
    values = dipped(500, 2_600)
    events = watching("down", opens="incident").observe(rows(values))
    assert len(opened(events)) == 1
    (end,) = closed(events)
    assert end.outcome is Outcome.LEVEL_ACCEPTED


def test_what_opens_nothing_is_evidence_all_the_same() -> None:
    losses = spiked(plateau(600), 510, 2.0, 30)
    events = watching("down", opens="nothing").observe(rows(moved(1.7, 0.02, -0.5), losses))
    (incident,) = opened(events)
    assert warned(events) == []
    assert incident.first_moves == {NAME: 501, "loss": 511}


def test_without_a_word_of_the_policy_a_signal_is_not_judged() -> None:
    assert warned(Monitor().observe(rows(moved(1.7, 0.02, -0.5)))) == []
