"""How often a snapshot is taken, from what copies and steps were measured to take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spikeguard import AttachError, Settings
from spikeguard.loop import snapshot_cadence
from spikeguard.loop.snapshot_cadence import INTERVALS, SnapshotCadence

CPU = torch.device("cpu")
Taken = Callable[..., SnapshotCadence]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """A cadence after snapshots of steps 20, 40, ... that took so many seconds each."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(snapshot_cadence, "time", clock)

    def after(
        copies: list[float], step_s: float, ready: bool = True, **settings: Any
    ) -> SnapshotCadence:
        cadence = SnapshotCadence(Settings(**settings), CPU)
        for number, copy_s in enumerate(copies, 1):
            now[0] += 20 * step_s
            with cadence.timed(20 * number, partial(bool, ready or number > 1)):
                now[0] += copy_s
            now[0] -= copy_s  # a step's time holds no copy here
        return cadence

    return after


@pytest.mark.parametrize(
    ("copy_s", "step_s", "interval"),
    [(0.01, 1.0, 20), (0.48, 1.0, 100), (0.1, 0.99, 40), (0.3, 0.1, 1_000), (60.0, 0.1, 1_000)],
)
def test_the_interval_is_the_shortest_that_keeps_within_the_budget(
    taken: Taken, copy_s: float, step_s: float, interval: int
) -> None:
    """12 GB over 25 GB/s beside one-second steps: every 100 steps at .5 %."""
    cadence = taken([copy_s, copy_s], step_s)
    assert cadence.wanted() == interval
    assert copy_s / (interval * step_s) <= 0.005 or interval == INTERVALS[-1]
    assert cadence.interval == 20  # until all ranks have agreed
    assert cadence.agree(interval) is (interval != 20)
    assert [step for step in range(1, 2_001) if cadence.due(step)] == list(
        range(interval, 2_001, interval)
    )


def test_one_slow_copy_changes_nothing_and_lasting_ones_do(taken: Taken) -> None:
    assert taken([0.05, 9.0, 0.05], 1.0).wanted() == 20
    assert taken([0.05, 0.05, 0.6, 0.6, 0.6, 0.6], 1.0).wanted() == 200


def test_a_number_that_was_given_holds_whatever_it_costs(taken: Taken) -> None:
    cadence = taken([5.0, 5.0], 0.1, snapshot_every=7)
    assert (cadence.wanted(), cadence.interval, cadence.finest) == (0, 7, 7)
    assert cadence.words() == "one every 7 steps"
    assert taken([5.0, 5.0], 0.1, snapshot_budget=0.0).wanted() == 0
    assert not taken([], 0.1, snapshot_every=0).due(20)
    with pytest.raises(AttachError, match="snapshot_every"):
        Settings(snapshot_every=-1)


def test_a_copy_for_which_memory_was_made_ready_does_not_count(taken: Taken) -> None:
    assert taken([9.0, 0.05], 1.0).wanted() == 1_000
    assert taken([9.0, 0.05], 1.0, ready=False).wanted() == 20
