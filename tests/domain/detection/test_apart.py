"""Ranks that hold different weights are an incident of their own; ranks that lost step are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from spikeguard_core.detection.sample import Sample
from spikeguard_core.events import Event, Opened, Recurred
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.incident_life import fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import BatchRange, Kind, Outcome, SegmentId, Verb
from tests.domain.detection.curves import closed, opened, plateau

LOSSES = plateau(2_500)
Parted = Callable[[int], bool]


def rows(first: int, last: int, parted: Parted, spike: range = range(0)) -> list[Sample]:
    """Compared every 50 steps; rank 3 has other weights where `parted`, the loss 3 nats more in
    `spike`."""
    return [
        sample(step, parted(step), 3.0 if step in spike else 0.0) for step in range(first, last + 1)
    ]


def sample(step: int, parted: bool, more: float) -> Sample:
    values = {"loss": LOSSES[step - 1] + more}
    if step % 50 == 0:
        values["replicas_apart"] = float(parted)
    if step % 50 == 0 and parted:
        values["replica_apart"] = 3.0
    return Sample(step, values, BatchRange(step - 1, step))


def folded(events: list[Event]) -> Incident:
    """The record of the newest incident."""
    incident: Incident | None = None
    for event in events:
        incident = fold(incident, event, number=1, segment=SegmentId("00c0ffee00c0ffee", 0))
    assert incident is not None
    return incident


def since_250(step: int) -> bool:
    return step >= 250


def test_ranks_that_have_parted_are_an_incident_while_the_loss_is_calm() -> None:
    events = Monitor().observe(rows(1, 300, since_250))
    (began,) = opened(events)
    assert (began.step, began.onset_step, began.signal, began.z) == (
        250, 201, "replicas_apart", math.inf,
    )  # fmt: skip
    assert began.onset_batches == BatchRange(200, 201)
    assert began.judgement.kind is Kind.DIVERGENT
    assert began.judgement.reason == (
        "apart: 1 rank (rank 3) no longer holds the weights of the others at step 250; "
        "all were equal at step 200"
    )
    incident = folded(events)
    assert (incident.apart, incident.apart_since, incident.stuck) == (True, 201, False)
    assert set(incident.worst_z) <= {"replicas_apart", "loss"}
    assert math.isfinite(incident.worst_z.get("loss", 0.0))


def test_it_stays_open_for_as_long_as_the_ranks_are_apart() -> None:
    """A loss on its trend closes nothing, and no new level is accepted."""
    monitor = Monitor()
    events = monitor.observe(rows(1, 2_400, since_250))
    assert not closed(events)
    assert monitor.open
    assert folded(events).apart_since == 201


def gone_back() -> tuple[Monitor, list[Event]]:
    """Parted at 250, back at 190 by a rollback; with what was told until then."""
    monitor, past = Monitor(), Monitor()
    past.observe(rows(1, 190, since_250))
    first = monitor.observe(rows(1, 255, since_250))
    monitor.rewind(past)
    monitor.intervened(255, Verb.ROLLBACK)
    return monitor, first


def test_going_back_to_equal_weights_closes_it_once_a_comparison_says_so() -> None:
    monitor, _ = gone_back()
    events = monitor.observe(rows(191, 400, lambda _: False))
    (end,) = closed(events)
    assert (end.step, end.outcome) == (251, Outcome.RECOVERED)
    assert end.judgement.reason.startswith("all ranks hold the same weights again")


def test_without_a_comparison_afterwards_nothing_is_held_to_have_worked() -> None:
    monitor, _ = gone_back()
    blind = [
        Sample(row.step, {"loss": row.values["loss"]}, row.batches)
        for row in rows(191, 400, lambda _: False)
    ]
    assert not closed(monitor.observe(blind))
    (end,) = closed(monitor.observe(rows(401, 460, lambda _: False)))
    assert end.step == 450


def test_ranks_that_part_again_after_a_rollback_came_back() -> None:
    monitor, first = gone_back()
    events = monitor.observe(rows(191, 280, since_250))
    (again,) = [event for event in events if isinstance(event, Recurred)]
    assert (again.step, again.onset_step, again.apart_since) == (250, 201, 201)
    assert again.onset_batches == BatchRange(200, 201)
    assert again.judgement.reason.startswith("apart: 1 rank (rank 3)")
    incident = folded([*first, *events])
    assert (incident.recurrences, incident.apart_since, incident.recurred_step) == (1, 201, 201)


def test_ranks_found_apart_during_a_spike_are_part_of_it() -> None:
    spike = range(230, 300)
    events = Monitor().observe(rows(1, 290, since_250, spike))
    (began,) = opened(events)
    assert (began.onset_step, began.signal) == (230, "loss")
    incident = folded(events)
    assert (incident.apart, incident.apart_since) == (True, 201)
    assert incident.reason.startswith("apart: 1 rank")


def test_other_data_after_a_rollback_is_an_incident_while_the_loss_is_calm() -> None:
    """However the rows arrive: one at a time, or many at once."""
    samples = rows(1, 300, lambda _: False)
    samples[249] = replace(samples[249], values={**samples[249].values, "other_data": 1.0})
    for size in (1, 300):
        monitor, events = Monitor(), list[Event]()
        for first in range(0, 300, size):
            events += monitor.observe(samples[first : first + size])
        (began,) = opened(events)
        assert (began.step, began.onset_step, began.signal) == (250, 250, "other_data")
        assert began.judgement.reason.startswith("other data: after a rollback the loader gave")


CALM, LOST = 600, 1200  # steps before, and until the end
ALONE = {"ranks_lost_step": 1.0}


def lost(more: float = 0.0, seed: int = 0) -> list[Sample]:
    """64 ranks' mean, then one rank's loss, 8 times as noisy; at last `more` nats above."""
    noise = np.random.default_rng(seed).normal(0.0, 0.01, LOST)
    noise[CALM:] *= 8.0
    noise[-10:] += more
    losses = (2.5 + noise).tolist()
    return [
        Sample(step, {"loss": loss, **(ALONE if step > CALM else {})})
        for step, loss in enumerate(losses, 1)
    ]


def opened_at(monitor: Monitor, samples: list[Sample], at_once: int) -> list[int]:
    """Onsets, with so many samples a message."""
    parts = [samples[first : first + at_once] for first in range(0, len(samples), at_once)]
    events = [event for part in parts for event in monitor.observe(part)]
    return [event.onset_step for event in events if isinstance(event, Opened)]


def test_a_noisier_loss_of_one_rank_pages_nobody() -> None:
    for seed in range(5):
        assert opened_at(Monitor(), lost(seed=seed), 100) == []


def test_the_same_noise_unmarked_is_told() -> None:
    """What the mark is needed for."""
    unmarked = [Sample(row.step, {"loss": row.values["loss"]}) for row in lost()]
    assert opened_at(Monitor(), unmarked, 100)


def test_a_spike_of_the_rank_that_is_left_is_found() -> None:
    (onset,) = opened_at(Monitor(), lost(more=3.0), 100)
    assert onset == LOST - 9


def test_a_loss_that_is_lost_is_found_at_once_while_the_new_one_is_learned() -> None:
    told = lost()[: CALM + 5]
    told.append(Sample(CALM + 6, {"loss": math.nan, **ALONE}))
    assert opened_at(Monitor(), told, 100) == [CALM + 6]


def test_a_new_attempt_of_all_ranks_that_loses_step_again_begins_anew_again() -> None:
    """The marks end with the restart; the newest mark is an old one then."""
    again = [Sample(LOST + row.step, row.values) for row in lost(seed=7)]
    assert opened_at(Monitor(), lost() + again, 100) == []
