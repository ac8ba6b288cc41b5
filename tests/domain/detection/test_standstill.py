"""Updates that round to nothing: a warning once, by a limit that was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.silent_failures import LIMIT
from spikeguard_core.events import Precursor
from spikeguard_core.monitor.monitor import Monitor
from tests.domain.detection.curves import plateau

ROWS = 1_400
LOSSES = plateau(ROWS)


def rows(shares: Sequence[float]) -> list[Sample]:
    """Measured every ten steps, as agents do."""
    found = []
    for step, (loss, share) in enumerate(zip(LOSSES, shares, strict=True), start=1):
        measured = {"unchanged_parameters": share} if step % 10 == 9 else {}
        found.append(Sample(step, {"loss": loss} | measured))
    return found


def warned(shares: Sequence[float]) -> list[Precursor]:
    events = Monitor().observe(rows(shares))
    assert all(isinstance(event, Precursor) for event in events)
    return [event for event in events if isinstance(event, Precursor)]


def test_a_share_that_creeps_up_to_the_limit_is_warned_of_once() -> None:
    """As with a learning rate that falls by degrees."""
    creeping = [0.5 + 0.499 * step / ROWS for step in range(ROWS)]
    (only,) = warned(creeping)
    assert (only.signal, only.z) == ("unchanged_parameters", math.inf)
    first = next(step for step in range(9, ROWS, 10) if creeping[step - 1] >= LIMIT)
    assert only.step == first + 10


def test_what_is_learned_from_all_the_same_is_not_warned_of() -> None:
    """A large embedding, of which most rows do not occur in a step."""
    assert warned([0.9] * ROWS) == []


def test_one_step_that_changed_nothing_is_none() -> None:
    assert warned([1.0 if step == 698 else 0.3 for step in range(ROWS)]) == []


def test_a_second_standstill_long_after_the_first_is_warned_of_again() -> None:
    twice = [0.99 if step < 200 or step > 1_000 else 0.3 for step in range(ROWS)]
    assert [event.step for event in warned(twice)] == [19, 1019]


def test_no_incident_is_said_to_have_begun_with_it() -> None:
    stopped = [
        Sample(s.step, {**s.values, "unchanged_parameters": 0.99}) for s in rows([0.0] * ROWS)
    ]
    spike = [Sample(ROWS + n, {"loss": 9.0}) for n in range(1, 4)]
    monitor = Monitor()
    monitor.observe(stopped)
    (opened, *_) = monitor.observe(spike)
    assert getattr(opened, "first_moves") == {"loss": ROWS + 1}  # noqa: B009
