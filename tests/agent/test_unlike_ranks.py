"""Ranks that are not alike although DDP wraps their model: told at once, and nobody waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from . import unlike_job
from .forks import FORKS, ended, started
from .unlike_job import BATCHES, BUDGETED, PASSES, SCENES, SPOILT_AT, TARGET
from .wire import Wire, served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Any], dict[str, Wire]]]:
    """What each of two ranks told of every scene, and what the server of each scene stored."""
    folder = tmp_path_factory.mktemp("ranks")
    with ExitStack() as stack:
        wires = {name: stack.enter_context(served(Wire())) for name in SCENES}
        plan = {"folder": str(folder), "servers": {name: w.url for name, w in wires.items()}}
        ranks = [
            FORKS.Process(target=unlike_job.main, args=({**plan, "rank": r},)) for r in range(2)
        ]
        assert ended(started(ranks)) == [0, 0]
        yield [json.loads((folder / f"rank{r}.json").read_text()) for r in range(2)], wires


Seen = tuple[list[Any], dict[str, Wire]]


def test_local_sgd_behind_ddp_is_found_before_the_first_snapshot(seen: Seen) -> None:
    """One copy for all ranks would be a mixture of them, so there is none."""
    for rank in (each["local_sgd"] for each in seen[0]):
        assert rank["faults"]["replicas"] == 3  # other weights, other gradients, no replicas
        assert "attach(replicated=False)" in rank["newest"]
        assert rank["snapshots"] == []
        assert rank["table"]["rewind_from_memory"] == rank["table"]["rollback"] == "no"
    apart = [step for (_, step), n in seen[1]["local_sgd"].column("replicas_apart").items() if n]
    assert apart[0] == 1


def test_local_sgd_that_is_said_keeps_each_ranks_own_state(seen: Seen) -> None:
    for rank in (each["local_sgd_said"] for each in seen[0]):
        assert rank["faults"] == {}
        assert rank["snapshots"] == [TARGET, 2 * TARGET]
        assert rank["table"]["rewind_from_memory"] == "yes"


def test_an_update_that_one_replica_left_out_is_told_in_its_step(seen: Seen) -> None:
    wire = seen[1]["nan_on_one"]
    assert wire.column("replicas_apart")[0, SPOILT_AT] == 1.0
    assert wire.column("replica_apart")[0, SPOILT_AT] == 1.0
    assert wire.column("update_dropped")[0, SPOILT_AT] == 1.0
    for rank in (each["nan_on_one"] for each in seen[0]):
        assert rank["faults"]["replicas"] >= 1


@pytest.mark.parametrize("scene", ["joined", "joined_inside"])
def test_a_rank_whose_data_end_earlier_is_waited_for_by_nobody(seen: Seen, scene: str) -> None:
    """Under torch's `Join`; `finish()` within it waits ten seconds at most."""
    ranks = [each[scene] for each in seen[0]]
    assert [rank["steps"] for rank in ranks] == list(BATCHES)
    assert max(rank["took_s"] for rank in ranks) < 25
    assert ranks[0]["faults"] == ranks[1]["faults"] == {}
    told = seen[1][scene].column("loss")
    assert set(told) == {(0, step) for step in range(1, BATCHES[0] + 1)}


def test_ranks_go_on_together_after_each_pass(seen: Seen) -> None:
    for rank in (each["in_passes"] for each in seen[0]):
        assert (rank["steps"], rank["faults"]) == (7 * PASSES, {})
    told = seen[1]["in_passes"].column("loss_rank_max")
    assert set(told) == {(0, step) for step in range(1, 7 * PASSES + 1)}


def test_all_ranks_take_snapshots_as_rarely_as_the_slowest_ones_budget_allows(seen: Seen) -> None:
    """The first two at steps 20 and 40; then what both measured decides, at the same step."""
    ranks = [each["budgeted"] for each in seen[0]]
    assert ranks[0]["snapshots"] == ranks[1]["snapshots"]
    assert ranks[0]["snapshots"][:2] == [20, 40]
    assert len(ranks[0]["snapshots"]) < BUDGETED // 20
    assert "20 steps" not in ranks[0]["reason"]
    for rank in ranks:
        assert "a copy takes" in rank["reason"]
        assert "(Settings.snapshot_budget is 5 %)" in rank["reason"]
        assert not [name for name in rank["faults"] if not name.startswith("server")]
