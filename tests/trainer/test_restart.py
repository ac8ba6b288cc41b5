"""The same run, cut up differently, or killed and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spikeguard import CheckpointDirectory
from spikeguard.state.dcp_files import load
from tests.agent.job import assert_same

from . import jobs

pytestmark = pytest.mark.slow

STEPS = ("--steps", "60", "--checkpoint-every", "20")
DATA_FAULT = ("--fault", "bad_batch@45:2")


def final_state(out: Path) -> dict[str, Any]:
    """Everything in the checkpoint of the last step."""
    kept = CheckpointDirectory(out / "checkpoints")
    (name,) = (target.name for target in kept.targets() if target.step == 60)
    return load(kept.folder(name), rank=0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    assert jobs.run(out, *STEPS, *DATA_FAULT) == 0
    return out


def test_a_run_killed_twice_ends_with_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    """SIGKILL between checkpoints and after bad data: weights, moments, schedule, losses agree."""
    for step, saved in ((30, 20), (50, 40)):
        jobs.kill_at(jobs.start(tmp_path, *STEPS, *DATA_FAULT), tmp_path, step, saved)
    jobs.run_process(tmp_path, *STEPS, *DATA_FAULT)
    steps = [int(row["step"]) for row in jobs.rows(tmp_path)]
    assert steps.count(21) == 2, "the restart went on from the checkpoint at step 20"
    assert jobs.losses(tmp_path) == jobs.losses(undisturbed)
    same = ("steps", "position", "validation_loss")
    ended, expected = jobs.summary(tmp_path), jobs.summary(undisturbed)
    assert {k: ended[k] for k in same} == {k: expected[k] for k in same}
    for part in ("model", "optimizer", "scheduler"):
        assert_same(_part(final_state(tmp_path), part), _part(final_state(undisturbed), part))


def _part(state: dict[str, Any], name: str) -> Any:
    """That part of the checkpoint, wherever the format keeps it."""
    if name in state:
        return state[name]
    return next(v[name] for v in state.values() if isinstance(v, dict) and name in v)


def test_a_finished_run_started_again_trains_nothing_more(undisturbed: Path) -> None:
    before = jobs.rows(undisturbed), jobs.summary(undisturbed)["validation_loss"]
    assert jobs.run(undisturbed, *STEPS, *DATA_FAULT) == 0
    after = jobs.summary(undisturbed)
    assert (jobs.rows(undisturbed), after["validation_loss"]) == before
    assert (after["trained_steps"], after["steps"], after["finished"]) == (0, 60, True)


OPTIONS = ("--steps", "30", "--checkpoint-every", "100", "--quiet")
FAULTS = ("--fault", "bad_batch@15:2", "--fault", "gradient_ascent@20:1:1")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    assert jobs.run(out, *OPTIONS, *FAULTS) == 0
    return out


def assert_same_course(out: Path, alone: Path) -> None:
    course, expected = jobs.losses(out), jobs.losses(alone)
    assert course.keys() == expected.keys()
    for step, loss in expected.items():
        assert float(course[step]) == pytest.approx(float(loss), abs=2e-3), step


def test_two_ranks_under_torchrun_train_like_one(alone: Path, tmp_path: Path) -> None:
    """With accumulation and faults, so that everything that is cut up is cut up."""
    jobs.run_ranks(tmp_path, *OPTIONS, *FAULTS, "--micro-batches", "3", ranks=2)
    assert_same_course(tmp_path, alone)
    assert jobs.summary(tmp_path)["world_size"] == 2


def test_micro_batches_train_like_one_batch(alone: Path, tmp_path: Path) -> None:
    jobs.run(tmp_path, *OPTIONS, *FAULTS, "--micro-batches", "4")
    assert_same_course(tmp_path, alone)
