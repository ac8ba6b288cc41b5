"""Ranks that hold the same weights stay equal, whatever is dropped, clipped or taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from spikeguard import AttachError, attach

from . import replicated_job
from .forks import FORKS, ended, started
from .test_sharded import CLOSE, GLOBAL

pytestmark = pytest.mark.slow

EQUAL_ON_BOTH = 5_000  # bytes at least, of weights and moments that both ranks hold alike
SCENES = ["accumulated", "extreme", "clipped", "uneven", "shared", "by_hand", "accelerated"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks told of every scene."""
    folder = tmp_path_factory.mktemp("ranks")
    plan = {"folder": str(folder), "size": 2, "scenes": SCENES}
    ranks = [
        FORKS.Process(target=replicated_job.main, args=({**plan, "rank": r},)) for r in range(2)
    ]
    assert ended(started(ranks)) == [0, 0]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_tied_and_frozen_parameters_under_ddp_are_measured_once(
    ranks: list[Any], tmp_path: Path
) -> None:
    """Over two micro-batches, the first of which brings nobody together (`no_sync`)."""
    torch.set_num_threads(1)
    alone = replicated_job.accumulated(tmp_path, 0, 1)
    one, other = (rank["accumulated"] for rank in ranks)
    assert one["faults"] == other["faults"] == {}
    assert one["weights"] == other["weights"]
    assert [seen["step"] for seen in one["seen"]] == list(range(1, 7))
    for seen, whole in zip(one["seen"], alone["seen"], strict=True):
        for name in GLOBAL & whole.keys():
            assert seen[name] == pytest.approx(whole[name], rel=CLOSE), (name, seen["step"])
    assert len(GLOBAL & alone["seen"][1].keys()) >= 5


def test_an_extreme_batch_of_one_rank_is_dropped_on_all(ranks: list[Any]) -> None:
    """By the gradients' norm, which is everybody's; a loss that stands out on one rank is not."""
    told = [rank["extreme"] for rank in ranks]
    for rank in told:
        assert (rank["kept"], rank["moved"], rank["faults"]) == (True, True, {})
    assert told[0]["bits"] == told[1]["bits"]
    dropped = [s["step"] for s in told[0]["seen"] if s["train/update_dropped"]]
    assert dropped == [replicated_job.EXTREME_AT]
    apart = [s["train/replicas_apart"] for s in told[0]["seen"] if "train/replicas_apart" in s]
    assert apart == [0.0] * 7


def test_a_clipping_rule_goes_back_with_all_ranks(ranks: list[Any]) -> None:
    """Bit for bit as in a job that never saw the batches."""
    told = [rank["clipped"] for rank in ranks]
    for rank in told:
        assert (rank["steps"], rank["same"], rank["faults"]) == (8, True, {})
    assert told[0]["bits"] == told[1]["bits"]


def test_all_ranks_hold_the_snapshots_that_the_largest_has_room_for(ranks: list[Any]) -> None:
    """Or none, where one does not fit there: a target that one rank lacks is nobody's."""
    small, large = (rank["uneven"]["170000"] for rank in ranks)
    assert small["bytes"] < large["bytes"] - 30_000
    assert small["held"] == large["held"] == [20, 24, 28]
    assert small["faults"] == large["faults"] == {}
    for rank in ranks:
        assert rank["uneven"]["40000"]["held"] is None
        assert rank["uneven"]["40000"]["faults"] == {"snapshots": 1}


def test_ranks_of_a_node_keep_one_copy_between_them_and_go_back_by_it(ranks: list[Any]) -> None:
    """Each keeps a part, reads the other's, and finds what it had, to the bit."""
    told = [rank["shared"] for rank in ranks]
    assert all(rank["same"] for rank in told)
    assert sum(rank["bytes"] for rank in told) < 2 * told[0]["whole"] - EQUAL_ON_BOTH
    assert [rank["back"] for rank in told] == [4, 4]
    assert told[0]["bits"] == told[1]["bits"]


def test_no_copy_is_put_together_of_ranks_that_differ(ranks: list[Any]) -> None:
    """What was copied since they were last seen equal is gone, until they are equal again."""
    for rank in ranks:
        assert rank["shared"]["apart"] == [4, 8]  # the bit flips after step 9
        assert rank["shared"]["again"] == [4, 12]
        assert "replicas" in rank["shared"]["faults"]


def test_a_part_that_is_missing_keeps_all_ranks_from_going_back(ranks: list[Any]) -> None:
    for rank in ranks:
        state, reason = rank["shared"]["results"]["test#1.2"]
        assert state == "refused"
        assert rank["shared"]["trail"][-1] == [20, 20]
    reason = ranks[0]["shared"]["results"]["test#1.2"][1]
    assert "no rank of this node keeps" in reason


def test_no_rank_drops_alone_where_nobody_knows_that_ranks_are_alike(ranks: list[Any]) -> None:
    """Without DDP the rank with the NaN updates like the other, unless they are stated to be
    alike: then none does. A DDP around the model is seen from within, too."""
    for rank in ranks:
        unknown, stated = rank["by_hand"]["None"], rank["by_hand"]["True"]
        assert (unknown["update_skipper"], unknown["moved"]) == ("report", [True, True, True])
        assert (stated["update_skipper"], stated["moved"]) == ("drop", [True, False, True])
        assert stated["faults"] == {}
        assert rank["by_hand"]["inner"]["update_skipper"] == "drop"


def test_accelerate_goes_back_on_all_ranks_and_writes_a_weight_once(ranks: list[Any]) -> None:
    """Two ranks, a rollback from disk: the weights are those of a job without the batches."""
    for rank in ranks:
        back, never = rank["accelerated"]["back"], rank["accelerated"]["never"]
        assert "MULTI_CPU" in back["kind"]
        ((left, arrived),) = back["trail"]
        assert (arrived, back["faults"], never["faults"]) == (replicated_job.TARGET, {}, {})
        assert replicated_job.BACK_AT < left < replicated_job.STEPS
        assert back["position"] == never["position"] == replicated_job.STEPS + 2
        assert back["weights"] == never["weights"] == ranks[0]["accelerated"]["back"]["weights"]
        assert {"model.0.weight", "optimizer.state.0.weight.exp_avg"} <= set(back["shared"])
        assert back["own_bytes"] < back["state_bytes"] / 2


def test_flat_shards_are_refused_and_the_remedy_is_named(tmp_path: Path) -> None:
    meeting = f"file://{tmp_path / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        cpu = torch.device("cpu")
        model = nn.Sequential(FullyShardedDataParallel(nn.Linear(4, 4), device_id=cpu))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with pytest.raises(AttachError, match="fully_shard"):
            attach(model, optimizer, run="test")
    finally:
        dist.destroy_process_group()
