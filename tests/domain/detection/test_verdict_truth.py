"""The runs that the early verdict is scored on are as wide as they are said to be."""

from __future__ import annotations

from benchmarks.naming_plan import WINDOW, OptimizerName
from benchmarks.verdict_plan import LONGEST, STEPS, healthy_runs, runs_of

ALL = [run for healthy in healthy_runs() for run in runs_of(healthy)]


def test_every_window_of_truth_lies_within_its_run() -> None:
    assert all(run.end + WINDOW[1] <= STEPS for run in ALL)


def test_the_set_spans_lengths_optimizers_and_noise() -> None:
    assert {1, LONGEST} <= {run.fault.length for run in ALL}
    assert {run.healthy.optimizer for run in ALL} == set(OptimizerName)
    assert len({run.healthy.rows for run in ALL}) > 1


def test_no_run_stands_twice_in_the_set() -> None:
    assert len({str(run) for run in ALL}) == len(ALL)
