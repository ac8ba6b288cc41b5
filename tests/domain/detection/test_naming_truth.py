"""The truth of destabilised runs comes from the pair alone, and the halves never mix."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.destabilised import SIGNALS, Job
from benchmarks.naming_plan import (
    FLOOR,
    FORK,
    LASTING,
    MENU,
    NEVER_TUNED,
    STEPS,
    WINDOW,
    Healthy,
    Run,
    delta_of,
    healthy_runs,
    runs_of,
    truth,
)
from benchmarks.naming_score import peak_of, wilson
from spikeguard_protocol import Kind
from spikeguard_trainer.data import Corpus
from spikeguard_trainer.faults import Fault, FaultName

STEP = np.arange(STEPS, dtype=np.float64)
TWIN = 2.0 + 0.1 * np.sin(STEP)
RUN = Run(Healthy(1, 0.95, 1.0), Fault(FaultName.LR_BUMP, FORK + 1, 5, 20.0))
ALL = [run for healthy in healthy_runs() for run in runs_of(healthy)]


@pytest.mark.parametrize(
    ("excess", "kind"),
    [
        (3.0 * np.exp(-STEP / 50), Kind.RECOVERABLE),
        (np.full(STEPS, 0.019), Kind.RECOVERABLE),
        (np.full(STEPS, 0.021), Kind.LINGERING),
        (5.0 / (1 + STEP) ** 0.5, Kind.LINGERING),  # still falling, too slowly
        (0.002 * STEP, Kind.DIVERGENT),
        (np.where(STEP > 450, np.nan, 0.0), Kind.DIVERGENT),
        (np.where(STEP > 450, np.inf, 0.0), Kind.DIVERGENT),
    ],
)
def test_truth_is_read_from_the_pair(excess: np.ndarray, kind: Kind) -> None:
    assert truth(RUN, TWIN + excess, TWIN, FLOOR) is kind


def test_truth_counts_from_the_end_of_a_fault() -> None:
    late = np.where(WINDOW[0] + RUN.fault.length - 1 > STEP, 1.0, 0.0)
    assert truth(RUN, TWIN + late, TWIN, FLOOR) is Kind.RECOVERABLE


def test_every_window_of_truth_lies_within_its_run() -> None:
    assert all(run.end + WINDOW[1] <= STEPS for run in ALL)
    assert any(run.fault.length == LASTING for run in ALL)


def test_delta_grows_with_the_difference_of_healthy_twins() -> None:
    assert delta_of([(TWIN, TWIN)]) == FLOOR
    assert delta_of([(TWIN + 0.1, TWIN), (TWIN - 0.1, TWIN)]) == pytest.approx(0.3)


def test_half_is_held_out_and_one_fault_is_never_tuned_on() -> None:
    held_out = [run for run in ALL if not run.tunes]
    assert len({str(run) for run in ALL}) == len(ALL) >= 120
    assert len(held_out) >= 60
    assert all(run.fault.name is not NEVER_TUNED for run in ALL if run.tunes)
    assert {run.fault.name for run in held_out} == set(MENU)
    pairs = {(run.fault.name, run.healthy.seed) for run in ALL if run.tunes}
    assert pairs.isdisjoint((run.fault.name, run.healthy.seed) for run in held_out)


def test_the_peak_is_where_the_excess_first_is_near_its_most() -> None:
    excess = np.where((STEP >= 30) & (STEP < 60), 4.0, 1.0)
    assert peak_of(TWIN + excess, TWIN) == 30
    assert peak_of(np.where(STEP == 7, np.nan, TWIN), TWIN) == 7


def test_a_fork_repeats_to_the_bit_and_differs_by_the_fault_alone() -> None:
    text = np.random.default_rng(3).integers(32, 64, 4_000).astype(np.uint8)
    job = Job(Corpus("random", text, text), Healthy(1, 0.95, 1.0))
    job.train(4)
    fork = job.state()
    first = job.train(4)
    job.go_back(fork)
    again = job.train(4)
    assert (again.rows == first.rows).all()
    assert (again.layers == first.layers).all()
    job.go_back(fork)
    struck = job.train(4, [Fault(FaultName.WEIGHT_SCALE, 6, 1, 4.0)])
    loss = SIGNALS.index("loss")
    difference = struck.rows[:, loss] - first.rows[:, loss]
    assert (difference[:2] == 0.0).all()  # it strikes after the second loss
    assert abs(difference[2]) > 0.01


def test_the_interval_is_wilsons() -> None:
    assert wilson(8, 10) == pytest.approx((0.490, 0.943), abs=0.001)  # Agresti and Coull, 1998
    assert wilson(0, 0) == (0.0, 1.0)
