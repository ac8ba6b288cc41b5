"""A model sharded over ranks (FSDP2) is measured, clipped and guarded as on a single device."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from spikeguard import CheckpointDirectory, ResumeError
from spikeguard.optim.clipping import ZClip
from spikeguard_protocol import Ack, BatchRange, Medium

from .heard import hear, parts_of
from .rank_job import RULES, SETTINGS, SpreadJob
from .ranks import Scene, Told, named, play

pytestmark = pytest.mark.slow

CLOSE = 1e-4  # fp32, six steps, gradients added up in another order
RAW, SAMPLED = "grad_norm", "update_norm_sampled"
GLOBAL = {
    RAW,
    "param_norm",
    "adam_v_norm",
    "update_norm",
    "loss",
    "grad_norm_clipped",
    "clip_factor",
}
EVERYTHING = replace(
    SETTINGS,
    flight_recorder=2,
)


def measured(folder: Path, rank: int, size: int, rules: tuple[str, ...] = ("zclip",)) -> Any:
    """Clipping rules for six steps each: what was reported, and the state it led to."""
    told: dict[str, Any] = {}
    for name in rules:
        job = SpreadJob(folder / name, rank, size, rule=RULES[name](), micro=2).train_to(6)
        job.guard.finish()
        state = {key: value.tolist() for key, value in job.whole_state().items()}
        told[name] = {"seen": job.seen, "state": state, "faults": job.guard.faults}
    return told


def mixed(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """With a bf16 layer: the norms of whole tensors in double precision, beside the reported.

    Every optional signal is on, and makes no rank meet another.
    """
    job = SpreadJob(folder, rank, size, micro=2, coarse=torch.bfloat16, settings=EVERYTHING)
    expected: list[dict[str, float]] = []
    before: list[Tensor] = []
    reductions: list[int] = []
    trained = [p for p in job.model.parameters() if p.requires_grad]

    def look(job: SpreadJob) -> None:
        before[:] = whole(trained)
        expected.append({"grad_norm": norm(whole([p.grad for p in trained]))})
        with CommDebugMode() as met:
            job.guard.clip_grad_norm_(None)
        reductions.append(met.get_total_counts())
        collector = parts_of(job.guard).collector
        collector.rule = ZClip(warm_up=1000, max_threshold=None)
        with CommDebugMode() as met:
            job.guard.clip_grad_norm_(None)
        reductions.append(met.get_total_counts())
        collector.rule = None

    job.spoil = look
    for _ in range(3):
        job.train_step()
        rates = {
            id(p): group["lr"] for group in job.optimizer.param_groups for p in group["params"]
        }
        moved = [
            (new - old) / rates[id(p)]
            for p, old, new in zip(trained, before, whole(trained), strict=True)
        ]
        moments = [job.optimizer.state[p]["exp_avg_sq"] for p in trained]
        expected[-1] |= {
            "param_norm": norm(whole(trained)),
            "update_norm": norm(moved),
            "adam_v_norm": norm(whole(moments)),
        }
    job.guard.finish()
    told = {"seen": job.seen, "expected": expected, "faults": job.guard.faults}
    return {**told, "reductions": reductions, "recorded": len(job.guard._reporter._recorder._kept)}


def whole(tensors: list[Any]) -> list[Tensor]:
    with torch.no_grad():
        return [(t.full_tensor() if isinstance(t, DTensor) else t).double() for t in tensors]


def norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([t.square().sum() for t in tensors]).sum().sqrt())


def watched(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Norms by layer while the server watches closely, of whole tensors, and how often the job's
    own ranks meet for them."""
    job = SpreadJob(folder, rank, size, settings=replace(SETTINGS, slow_signals_every=10))
    recorder, told = job.guard._reporter._recorder, dict[int, Any]()
    pass_on = recorder.pass_on

    def note(row: Any, watched: bool) -> Any:
        for detail in (details := list(pass_on(row, watched))):
            told[detail.step] = detail().norms
        return details

    recorder.pass_on = note  # type: ignore[method-assign]
    names = {id(p): name for name, p in job.network.named_parameters()}
    expected: dict[int, dict[str, float]] = {}
    sizes: list[int] = []

    def look(job: SpreadJob) -> None:
        held = [p for p in job.model.parameters() if p.grad is not None]
        pairs = zip(held, whole([p.grad for p in held]), strict=True)
        expected[job.guard.steps + 1] = {names[id(p)]: float(each.norm()) for p, each in pairs}
        reduce = dist.all_reduce

        def counted(tensor: Tensor) -> Any:
            sizes.append(tensor.numel())
            return reduce(tensor)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "all_reduce", counted)
            job.guard.clip_grad_norm_(None)

    job.spoil = look
    for step in range(1, 18):
        if rank == 0:
            hear(job.guard, Ack(0, (), 3 <= step < 14, ()), time.monotonic())
        job.train_step()
    job.guard.finish()
    return {"told": told, "expected": expected, "sizes": sizes, "faults": job.guard.faults}


def unwritten(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """The last rank can write no checkpoint: a file is in its way."""
    kept = CheckpointDirectory(folder / f"kept-{rank == size - 1}", every=2, background=False)
    folder.mkdir(exist_ok=True)
    (folder / "kept-True").touch()
    job = SpreadJob(folder, rank, size, checkpoints=kept).train_to(5)
    job.guard.finish()
    return {"faults": job.guard.faults, "checkpoints": [t.step for t in kept.targets()]}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)
    return measured(tmp_path_factory.mktemp("alone"), 0, 1, tuple(RULES))


SCENES: dict[str, Scene] = {
    "measured": partial(measured, rules=tuple(RULES)),
    **named(mixed, watched, unwritten),
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return play(tmp_path_factory.mktemp("ranks"), 2, SCENES)


def test_every_norm_is_that_of_a_single_process(ranks: Told, alone: Any) -> None:
    """Tied once, frozen never, two groups with rates of their own, two micro-batches a step;
    11 words and 13 features are not divided by the number of ranks."""
    for rule, told in ranks[0]["measured"].items():
        assert told["faults"] == ranks[1]["measured"][rule]["faults"] == {}
        assert [s["step"] for s in told["seen"]] == list(range(1, 7))
        for one, other in zip(told["seen"], alone[rule]["seen"], strict=True):
            assert one.keys() >= GLOBAL
            for name in GLOBAL:
                assert one[name] == pytest.approx(other[name], rel=CLOSE), (rule, name, one["step"])
            assert min(one[SAMPLED], other[SAMPLED]) > 0.0


def test_a_rule_clips_shards_as_it_clips_the_whole(ranks: Told, alone: Any) -> None:
    for told in ranks:
        for rule, scene in told["measured"].items():
            for name, value in alone[rule]["state"].items():
                sharded = torch.tensor(scene["state"][name])
                assert torch.allclose(sharded, torch.tensor(value), rtol=1e-3, atol=1e-5), name
    for scene in alone.values():
        assert any(s["grad_norm_clipped"] < 0.95 * s[RAW] for s in scene["seen"])


def test_half_precision_shards_are_measured_to_full_precision(ranks: Told) -> None:
    told = ranks[0]["mixed"]
    assert told["faults"] == {}
    for one, expected in zip(told["seen"], told["expected"], strict=True):
        for name, value in expected.items():
            assert one[name] == pytest.approx(value, rel=1e-5), (name, one["step"])


def test_ranks_meet_once_for_all_gradients_and_once_for_each_ones_norm(ranks: Told) -> None:
    """The flight recorder's norms, here of every step, take one more; a rule takes none."""
    assert ranks[0]["mixed"]["reductions"] == [2, 2] * 3


def test_optional_signals_and_the_flight_recorder_see_a_sharded_model(ranks: Told) -> None:
    told = ranks[0]["mixed"]
    assert [0.0 <= seen["unchanged_parameters"] < 0.5 for seen in told["seen"]] == [True] * 3
    assert [told["recorded"], ranks[1]["mixed"]["recorded"]] == [2, 0]  # rank 0 alone sends


def test_what_the_server_watches_changes_no_reduction_of_sharded_ranks(ranks: Told) -> None:
    """Rank 0 alone hears of it, and layers are measured at the same step as ever on all ranks."""
    told = ranks[0]["watched"]
    layers = max(told["sizes"])
    for rank in ranks:
        assert rank["watched"]["faults"] == {}
        assert rank["watched"]["sizes"] == [*[2] * 9, layers, *[2] * 8]
    assert list(map(int, told["told"])) == [9]
    for step, norms in told["told"].items():
        measured = {name: value for name, value in norms.items() if value}
        assert measured == pytest.approx(told["expected"][step], rel=CLOSE), step


def test_a_rank_that_cannot_write_leaves_no_checkpoint_and_stops_nobody(ranks: Told) -> None:
    for told in ranks:
        assert told["unwritten"] == {"checkpoints": [], "faults": {"checkpoint": 2}}


def another_size(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Five steps on from where the ranks before stopped, who may have been more or fewer.

    The third goes back to a checkpoint of the second, and on to where it went on.
    """
    kept = CheckpointDirectory(folder / "checkpoints", every=5, background=False)
    job = SpreadJob(folder / "guard", rank, size, checkpoints=kept)
    try:
        begun = job.guard.resume()
    except ResumeError as refused:
        job.guard.finish()
        return {"resumed": str(refused), "states": 0, "losses": []}
    told: dict[str, Any] = {"resumed": begun}
    if begun:
        told["same"] = equal_to_saved(job, folder / f"whole-{begun}.pt")
    job.train_to(begun + 5)
    if begun == 10:
        reached = job.go_back(1, 10, Medium.DISK, BatchRange(11, 12))
        told["back"] = [reached, equal_to_saved(job, folder / "whole-10.pt")]
        job.train_to(15)
    state = job.whole_state()
    told["states"] = len(state)
    if rank == 0:
        torch.save(state, folder / f"whole-{begun + 5}.pt")
    job.guard.finish()
    told["losses"] = [seen["loss"] for seen in job.seen]
    return {**told, "faults": job.guard.faults}


def equal_to_saved(job: SpreadJob, saved: Path) -> bool:
    """Weights, moments and counters to the bit. Collective."""
    state, there = job.whole_state(), torch.load(saved)
    return state.keys() == there.keys() and all(torch.equal(state[n], there[n]) for n in there)


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run in three attempts: of 4 ranks, 2 and 3, each going on where the last ended."""
    folder = tmp_path_factory.mktemp("sizes")
    attempts = [play(folder, size, named(another_size)) for size in (4, 2, 3)]
    told = [[rank["another_size"] for rank in ranks] for ranks in attempts]
    return folder / "another_size", told


def test_a_run_goes_on_with_another_number_of_ranks(sizes: Any, tmp_path: Path) -> None:
    """Weights, moments and counters to the bit; losses as of one process that never stopped."""
    torch.set_num_threads(1)
    alone = SpreadJob(tmp_path).train_to(10)
    alone.guard.finish()
    _, attempts = sizes
    for number, ranks in enumerate(attempts):
        for told in ranks:
            assert told["resumed"] == 5 * number
            assert told.get("same", not number)
            assert told["faults"] == {}
    assert attempts[0][0]["states"] > 20
    losses = [loss for ranks in attempts[:2] for loss in ranks[0]["losses"]]
    assert losses == pytest.approx([seen["loss"] for seen in alone.seen], rel=CLOSE)


def test_a_rollback_goes_to_a_checkpoint_of_another_number_of_ranks(sizes: Any) -> None:
    _, attempts = sizes
    for told in attempts[2]:
        assert told["back"] == [10, True]


def test_one_process_goes_on_from_a_checkpoint_of_several_ranks(sizes: Any, tmp_path: Path) -> None:
    folder, _ = sizes
    job = SpreadJob(tmp_path, checkpoints=CheckpointDirectory(folder / "checkpoints"))
    assert job.guard.resume() == 15
    assert equal_to_saved(job, folder / "whole-15.pt")
    job.guard.finish()


class OfThisRank:
    """A part of the training state that each rank has for itself."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def state_dict(self) -> dict[str, int]:
        return {"rank": self.rank}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.rank = state["rank"]


def apart(folder: Path, rank: int, size: int) -> None:
    """One checkpoint of a run whose `state=` is another on each rank."""
    kept = CheckpointDirectory(folder / "kept", every=5, background=False)
    job = SpreadJob(folder, rank, size, checkpoints=kept, state=[OfThisRank(rank)]).train_to(5)
    job.guard.finish()


def test_what_each_rank_had_for_itself_is_given_to_no_other(tmp_path: Path) -> None:
    """The checkpoint is refused with the place of it; the state stays as it was."""
    play(tmp_path, 2, named(apart))
    own = [OfThisRank(7)]
    kept = CheckpointDirectory(tmp_path / "apart/kept")
    job = SpreadJob(tmp_path / "one", checkpoints=kept, state=own)
    before = job.whole_state()
    with pytest.raises(ResumeError, match=r"extra\.0\.rank is not the same on ranks 0 and 1"):
        job.guard.resume()
    job.guard.finish()
    assert own[0].rank == 7
    assert all(torch.equal(t, before[n]) for n, t in job.whole_state().items())


def test_torch_reads_a_checkpoint_by_the_names_of_parameters(sizes: Any) -> None:
    """As `get_model_state_dict` and `get_optimizer_state_dict` call them."""
    folder, _ = sizes
    kept = CheckpointDirectory(folder / "checkpoints").targets()[-1]
    whole = torch.load(folder / f"whole-{kept.step}.pt")
    moments = {n: t for n, t in whole.items() if n.endswith((".exp_avg", ".exp_avg_sq"))}
    assert len(moments) > 10
    state: dict[str, Any] = {}
    for name, moment in moments.items():
        parameter, _, key = name.rpartition(".")
        state.setdefault(parameter, {})[key] = torch.zeros_like(moment)
    read = {"optimizer": {"state": state}}
    dcp_load(read, checkpoint_id=folder / "checkpoints" / kept.name, no_dist=True)
    for name, moment in moments.items():
        parameter, _, key = name.rpartition(".")
        assert torch.equal(state[parameter][key], moment), name
