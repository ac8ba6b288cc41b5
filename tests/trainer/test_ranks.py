"""The same run, cut up differently."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import jobs

pytestmark = pytest.mark.slow

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
