"""Ranks that hold the same weights stay equal, whatever is dropped, clipped or taken back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from spikeguard import AttachError, Ranks, attach
from spikeguard.state.node_memory import Region
from spikeguard_protocol import BatchRange, Medium

from .rank_job import SETTINGS, SpreadJob, order_back
from .ranks import named, play, same

pytestmark = pytest.mark.slow

EQUAL_ON_BOTH = 5_000  # bytes at least, of weights and moments that both ranks hold alike
STEPS, BACK_AT, TARGET, SKIP = 20, 14, 10, BatchRange(12, 14)


class Larger:
    """A part of the training state that may take more room on one rank."""

    def __init__(self, numbers: int) -> None:
        self.held = torch.zeros(numbers)

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


def fetched(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """A rollback of ranks that fetch ahead, rank 1 more than rank 0; and a job that never had those
    batches and fetches when it trains."""
    back = SpreadJob(folder / "back", rank, size, replicated=True, micro=2)
    back._batches = ahead(back._batches, 1 + rank)
    back.train_to(11)
    steps = back.go_back(1, 8, Medium.MEMORY, BatchRange(9, 11))
    never = SpreadJob(folder / "never", rank, size, replicated=True, micro=2, left_out=[9, 10])
    for one in (back, never):
        one.train_to(14)
        one.guard.finish()
    told = {"steps": steps, "trail": back.trail[10:13], "faults": back.guard.faults}
    return {**told, "same": same(back.shards(), never.shards())}


def ahead(items: Iterator[Any], depth: int) -> Iterator[Any]:
    """`items`, of which so many more are held than were trained."""
    held = deque(islice(items, depth))
    for item in items:
        held.append(item)
        yield held.popleft()


def uneven(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """The ring of snapshots where rank 1 has room for 3, or from step 10 on for none."""
    told = {}
    for limit in (170_000, 40_000):
        settings = replace(SETTINGS, snapshot_bytes=limit)
        home, state = folder / str(limit), Larger(10_000 * rank if limit > 100_000 else 0)
        job = SpreadJob(home, rank, size, replicated=True, settings=settings, state=[state])
        job.train_to(10)
        state.held = torch.zeros(10_000 * rank)
        job.train_to(31)
        now = job.guard.state()
        job.guard.finish()
        held = [target.step for target in now.snapshots] if now.snapshots is not None else None
        told[str(limit)] = {"held": held, "bytes": now.snapshot_bytes, "faults": job.guard.faults}
    return told


def shared(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """One copy for both ranks: what each keeps, whether it is whole, and what a flipped bit does.

    The weights are compared wherever a snapshot is taken, and the ranks know two steps later.
    """
    told: dict[str, Any] = {"bytes": {}}
    settings = replace(SETTINGS, replica_checksum_every=4)
    for name, said in (("each its own", False), ("one for both", None)):
        home = folder / name
        job = SpreadJob(home, rank, size, replicated=True, settings=settings, said=said).train_to(4)
        then = job.shards()
        told["bytes"][name] = job.guard.state().snapshot_bytes
        if said is False:
            job.guard.finish()
    job.train_to(9)
    if rank == 1:
        with torch.no_grad():
            job.model.words.weight.view(torch.int32)[0, 0] ^= 1 << 22
    job.train_to(18)
    told["apart"] = snapshots_of(job)
    told["back"] = job.go_back(1, 4, Medium.MEMORY, BatchRange(17, 18))
    told["same"] = same(job.shards(), then)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:  # its part of the next one is not there
            hold = Region.hold
            patch.setattr(Region, "hold", lambda region, _: hold(region, ""))
        job.train_to(13)
    told["again"] = snapshots_of(job)
    order_back(job, 2, told["again"][-1], Medium.MEMORY, BatchRange(12, 13))
    job.train_to(20)
    results = job.guard.state().results
    told["results"] = {name: [r.state, r.reason] for name, r in results.items()}
    job.guard.finish()
    return {**told, "trail": job.trail[-7:], "faults": job.guard.faults}


def snapshots_of(job: SpreadJob) -> list[int]:
    return [target.step for target in job.guard.state().snapshots or ()]


def by_hand(folder: Path, rank: int, _: int) -> dict[str, Any]:
    """No DDP. Rank 1's second step has a NaN: in its own gradients alone, or in everybody's; or
    its weights are others from the beginning."""
    told: dict[str, Any] = {}
    for name, stated, seed in (("None", None, 1), ("True", True, 1), ("apart", None, 1 + rank)):
        torch.manual_seed(seed)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        home = folder / name
        guard = attach(model, optimizer, run="test", directory=home, ranks=Ranks(replicated=stated))
        moved = []
        for step in range(3):
            before = model.weight.detach().clone()
            guard.loss(model(torch.ones(2, 4)).square().mean()).backward()
            if step == 1 and rank == 1:
                model.weight.grad[0, 0] = float("nan")  # type: ignore[index]
            for p in model.parameters() if stated else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            guard.clip_grad_norm_(None)
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
            moved.append(not torch.equal(before, model.weight))
        guard.finish()
        told[name] = [guard.state().facts["update_skipper"], moved, guard.faults]
    return told


SCENES = (fetched, uneven, shared, by_hand)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks told of every scene."""
    return play(tmp_path_factory.mktemp("ranks"), 2, named(*SCENES))


def test_ranks_that_hold_different_numbers_of_items_go_back_at_one_step_to_the_same_bits(
    ranks: list[Any],
) -> None:
    for rank in ranks:
        told = rank["fetched"]
        assert (told["steps"], told["same"], told["faults"]) == (8, True, {})
        assert told["trail"] == [(11, 11), (12, 12), (13, 8)] or told["trail"]
    assert ranks[0]["fetched"]["trail"] == ranks[1]["fetched"]["trail"]


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
    own, both = (sum(t["bytes"][name] for t in told) for name in ("each its own", "one for both"))
    assert both < own - EQUAL_ON_BOTH
    assert [(rank["back"], rank["same"]) for rank in told] == [(4, True)] * 2


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
    alike: then none does. Those that never were are not said to have come apart."""
    for rank in ranks:
        assert rank["by_hand"] == {
            "None": ["report", [True, True, True], {}],
            "apart": ["report", [True, True, True], {}],
            "True": ["drop", [True, False, True], {}],
        }


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
