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
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader

from spikeguard import AttachError, CheckpointDirectory, Ranks, attach
from spikeguard.state.mapped_memory import Region
from spikeguard_protocol import Ack, BatchRange, Medium, Order, Rollback

from .heard import hear, leave_out
from .rank_job import RULES, SETTINGS, SpreadJob, order_back
from .ranks import named, play, same
from .test_sharded import CLOSE, GLOBAL

pytestmark = pytest.mark.slow

EQUAL_ON_BOTH = 5_000  # bytes at least, of weights and moments that both ranks hold alike
STEPS, BACK_AT, TARGET, SKIP = 20, 14, 10, BatchRange(12, 14)


def accumulated(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Six steps of two micro-batches, of which only the second brings the ranks together."""
    job = SpreadJob(folder, rank, size, replicated=True, micro=2)
    job.train_to(6)
    job.guard.finish()
    return {"seen": job.seen, "bits": sums(job.shards()), "faults": job.guard.faults}


def clipped(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """A rule that has learnt, and a rollback: the bits of a job that never saw the batches."""

    def job(name: str, left_out: list[int]) -> SpreadJob:
        given: Any = {"rule": RULES["adagc"](), "micro": 2, "left_out": left_out}
        return SpreadJob(folder / name, rank, size, replicated=True, **given)

    back, never = job("back", []), job("never", [9, 10])
    back.train_to(11)
    steps = back.go_back(1, 8, Medium.MEMORY, BatchRange(9, 11))
    for one in (back, never):
        one.train_to(14)
        one.guard.finish()
    told = {"steps": steps, "same": same(back.shards(), never.shards())}
    return {**told, "bits": sums(back.shards()), "faults": back.guard.faults}


def sums(tensors: list[Tensor]) -> list[float]:
    return [float(t.double().sum()) for t in tensors]


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
        job = SpreadJob(home, rank, size, replicated=True, settings=settings, said=said)
        job.train_to(4)
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
    """No DDP. Rank 1's second step has a NaN: in its own gradients alone, or in everybody's."""
    told: dict[str, Any] = {}
    for stated in (None, True):
        torch.manual_seed(1)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        home = folder / str(stated)
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
        told[str(stated)] = [guard.state().facts["update_skipper"], moved, guard.faults]
    return told


def accelerated(folder: Path, rank: int, _: int) -> dict[str, Any]:
    """`STEPS` steps under Accelerate, back from `BACK_AT` to `TARGET` without `SKIP`; and the same
    of a job that never had those batches."""
    return {name: _accelerated(folder / name, rank, name == "back") for name in ("back", "never")}


def _accelerated(folder: Path, rank: int, ordered: bool) -> dict[str, Any]:
    from accelerate import Accelerator

    from spikeguard.integrations.accelerate import attach as attach_accelerated

    torch.manual_seed(2)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = nn.Sequential(nn.Linear(8, 512), nn.GELU(), nn.Linear(512, 8))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    rows = torch.randn(600, 8, generator=torch.Generator().manual_seed(4))
    loader: Any = DataLoader(rows, batch_size=4)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    kept = CheckpointDirectory(folder / "checkpoints", every=TARGET, background=False)
    guard = attach_accelerated(accelerator, model, optimizer, run="test", checkpoints=kept)
    told: dict[str, Any] = {"trail": [], "kind": str(accelerator.distributed_type)}
    if not ordered:
        leave_out(guard, SKIP)
    for batch in guard.batches(loader):
        with accelerator.accumulate(model):
            loss = guard.loss((model(batch) - batch.roll(1, 1)).square().mean())
            accelerator.backward(loss)
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            before = guard.steps
            guard.step()
        if guard.steps < before:
            told["trail"].append([before, guard.steps])
        if ordered and rank == 0 and guard.steps == BACK_AT and not guard.state().results:
            name = next(target.name for target in kept.targets())
            order = Order("test#1.1", guard.attempt, Rollback(name, TARGET, SKIP), 60.0, None)
            hear(guard, Ack(1, (order,)))
        if guard.steps == STEPS:
            break
    guard.finish()
    told |= {"faults": guard.faults, "position": guard.position, **_stored(kept, rank)}
    told["weights"] = [p.detach().flatten().tolist() for p in model.parameters()]
    told["state_bytes"] = 3 * sum(p.nbytes for p in model.parameters())  # with two moments
    return told


def _stored(kept: CheckpointDirectory, rank: int) -> dict[str, Any]:
    """What lies in the oldest checkpoint under names that all ranks share, and what is a rank's."""
    held = FileSystemReader(kept.folder(kept.targets()[0].name)).read_metadata()
    names = [n for n in held.state_dict_metadata if not n.startswith("rank-")]
    own: Any = held.state_dict_metadata[f"rank-{rank:05d}"]
    return {"shared": sorted(names), "own_bytes": own.size[0]}


SCENES = (accumulated, clipped, fetched, uneven, shared, by_hand, accelerated)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks told of every scene."""
    return play(tmp_path_factory.mktemp("ranks"), 2, named(*SCENES))


def test_tied_and_frozen_parameters_under_ddp_are_measured_once(
    ranks: list[Any], tmp_path: Path
) -> None:
    """Over two micro-batches, the first of which brings nobody together (`no_sync`)."""
    torch.set_num_threads(1)
    alone = accumulated(tmp_path, 0, 1)
    one, other = (rank["accumulated"] for rank in ranks)
    assert one["faults"] == other["faults"] == {}
    assert one["bits"] == other["bits"]
    assert [seen["step"] for seen in one["seen"]] == list(range(1, 7))
    for seen, whole in zip(one["seen"], alone["seen"], strict=True):
        for name in GLOBAL & whole.keys():
            assert seen[name] == pytest.approx(whole[name], rel=CLOSE), (name, seen["step"])
    assert len(GLOBAL & alone["seen"][1].keys()) >= 5


def test_ranks_that_hold_different_numbers_of_items_go_back_at_one_step_to_the_same_bits(
    ranks: list[Any],
) -> None:
    for rank in ranks:
        told = rank["fetched"]
        assert (told["steps"], told["same"], told["faults"]) == (8, True, {})
        assert told["trail"] == [(11, 11), (12, 12), (13, 8)] or told["trail"]
    assert ranks[0]["fetched"]["trail"] == ranks[1]["fetched"]["trail"]


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
    alike: then none does."""
    for rank in ranks:
        assert rank["by_hand"] == {
            "None": ["report", [True, True, True], {}],
            "True": ["drop", [True, False, True], {}],
        }


def test_accelerate_goes_back_on_all_ranks_and_writes_a_weight_once(ranks: list[Any]) -> None:
    """Two ranks, a rollback from disk: the weights are those of a job without the batches."""
    for rank in ranks:
        back, never = rank["accelerated"]["back"], rank["accelerated"]["never"]
        assert "MULTI_CPU" in back["kind"]
        ((left, arrived),) = back["trail"]
        assert (arrived, back["faults"], never["faults"]) == (TARGET, {}, {})
        assert BACK_AT < left < STEPS
        assert back["position"] == never["position"] == STEPS + 2
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
