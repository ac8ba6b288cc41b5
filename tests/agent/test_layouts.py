"""However a model lies on the ranks, it is measured, clipped and skipped as in one process."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from . import layout_job, layouts
from .forks import FORKS, ended, started

pytestmark = pytest.mark.slow

CLOSE = 2e-6  # fp32, sums in another order
SCENES = ("flipped", "gone_back", "mixed", "unable")
ON_RANKS = {2: layouts.ON_TWO, 4: layouts.ON_FOUR}


@pytest.fixture(scope="module", params=[2, 4])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Group:
    """What each of two, then of four ranks told of every layout."""
    size: int = request.param
    folder = tmp_path_factory.mktemp(f"ranks{size}")
    plan = {"folder": str(folder), "size": size, "layouts": [f.__name__ for f in ON_RANKS[size]]}
    ranks = [
        FORKS.Process(target=layout_job.main, args=({**plan, "rank": r},)) for r in range(size)
    ]
    assert ended(started(ranks)) == [0] * size
    told = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(size)]
    scenes = [{name: each.pop(name, None) for name in SCENES} for each in told]
    return Group(told, scenes)


class Group(NamedTuple):
    """What each rank told of the layouts, and of the scenes that two or four play."""

    ranks: list[dict[str, Any]]
    scenes: list[dict[str, Any]]


def test_clipping_is_that_of_one_process_on_the_whole_model(group: Group) -> None:
    """After four updates clipped to a twentieth of a norm the weights are its weights."""
    for rank in group.ranks:
        for name, told in rank.items():
            assert told["off"] < CLOSE, name
            assert told["faults"] == {}, name


def test_every_part_of_the_model_counts_once_in_every_norm(group: Group) -> None:
    """Gradients, parameters, updates, second moments; and the loss of the ranks that have one."""
    for name, told in group.ranks[0].items():
        seen = [values for step, values in enumerate(told["seen"]) if step != layout_job.SPOILT]
        assert len(seen) == layout_job.STEPS - 1, name
        for values, expected in zip(seen, told["expected"], strict=True):
            for signal, value in expected.items():
                assert values[f"train/{signal}"] == pytest.approx(value, rel=1e-5), (name, signal)


def test_a_nan_on_one_rank_is_skipped_by_all(group: Group) -> None:
    wanted = [step == layout_job.SPOILT for step in range(layout_job.STEPS)]
    for rank in group.ranks:
        for name, told in rank.items():
            assert told["same"] == wanted, name


def test_ranks_meet_once_for_a_norm_and_not_where_all_hold_the_same(group: Group) -> None:
    for rank in group.ranks:
        for name, told in rank.items():
            assert set(told["meetings"]) == {0 if name == "replicated" else 1}, name


def test_replicas_of_a_part_are_compared_with_each_other_alone(group: Group) -> None:
    """Under HSDP the last of four ranks has a replica, and two that hold other parts."""
    if len(group.ranks) == 4:
        assert group.scenes[0]["flipped"]["apart"] == [[0.0, None], [1.0, 3.0]]


def test_stages_that_are_sharded_go_back_together_bit_for_bit(group: Group) -> None:
    """Though both stages name their parameters alike: from memory, from disk and by a restart."""
    if len(group.ranks) == 4:
        for told in group.scenes:
            back = told["gone_back"]
            assert (back["steps"], back["positions"]) == ([4, 3], [4, 3])
            assert (back["same"], back["resumed"]) == ([True, True], 6)
            assert back["faults"] == [{}, {}]


def test_what_one_rank_cannot_leave_out_none_does(group: Group) -> None:
    """Of four steps two have a NaN; in the last of them one stage can only report it."""
    if len(group.ranks) == 2:
        for told in group.scenes:
            assert told["unable"]["same"] == [False, False, True, False]


def test_one_optimizer_beside_another_leaves_out_what_the_other_does(group: Group) -> None:
    """AdamW takes the flag and Muon does not: to the bit the same, on every rank and stage."""
    for told in group.scenes:
        for name, seen in told["mixed"].items():
            assert seen == {"same": [False, True, False], "faults": {}}, name
