"""A model sharded over ranks (FSDP2) is measured, clipped and guarded as on a single device."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from spikeguard import CheckpointDirectory, ResumeError

from . import sharded_job
from .forks import FORKED, ended, fork_ranks, torchrun
from .wire import await_that

pytestmark = pytest.mark.slow

JOB = Path(sharded_job.__file__)
CLOSE = 1e-4  # fp32, six steps, gradients added up in another order


def run_ranks(folder: Path, size: int, scenes: list[str]) -> list[Any]:
    """What each of `size` ranks told after `scenes`."""
    assert ended(fork_ranks(JOB, folder, size, scenes=scenes)) == [0] * size
    return heard(folder, size)


def heard(folder: Path, size: int) -> list[Any]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)
    return sharded_job.measured(tmp_path_factory.mktemp("alone"), 0, 1)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Under the launcher that people use."""
    scenes = ["measured", "mixed", "watched", "dropped", "recovered"]
    folder, size = tmp_path_factory.mktemp("ranks"), 4
    said = folder / "said.txt"
    assert torchrun(said, *FORKED, str(JOB), str(folder), *scenes, ranks=size) == 0, (
        said.read_text()[-2000:]
    )
    return heard(folder, size)


RAW, SAMPLED = "train/grad_norm_raw", "train/update_norm_sampled"
GLOBAL = {
    RAW,
    "train/param_norm",
    "train/adam_v_norm",
    "train/update_norm",
    "train/loss",
    "train/grad_norm_clipped",
    "train/lambda",
}


def test_every_norm_is_that_of_a_single_process(ranks: Any, alone: Any) -> None:
    """Tied once, frozen never, two groups with rates of their own, two micro-batches a step;
    11 words and 13 features are divided by neither 2 nor 4 ranks."""
    for rule, told in ranks[0]["measured"].items():
        assert told["faults"] == ranks[1]["measured"][rule]["faults"] == {}
        assert [s["step"] for s in told["seen"]] == list(range(1, 7))
        for one, other in zip(told["seen"], alone[rule]["seen"], strict=True):
            assert one.keys() >= GLOBAL
            for name in GLOBAL:
                assert one[name] == pytest.approx(other[name], rel=CLOSE), (rule, name, one["step"])
            assert min(one[SAMPLED], other[SAMPLED]) > 0.0


def test_a_rule_clips_shards_as_it_clips_the_whole(ranks: Any, alone: Any) -> None:
    for told in ranks:
        for rule, scene in told["measured"].items():
            for name, weights in alone[rule]["weights"].items():
                sharded = torch.tensor(scene["weights"][name])
                assert torch.allclose(sharded, torch.tensor(weights), rtol=1e-3, atol=1e-5), name
    for scene in alone.values():
        assert any(s["train/grad_norm_clipped"] < 0.95 * s[RAW] for s in scene["seen"])


def test_half_precision_shards_are_measured_to_full_precision(ranks: Any) -> None:
    told = ranks[0]["mixed"]
    assert told["faults"] == {}
    for one, expected in zip(told["seen"], told["expected"], strict=True):
        for name, value in expected.items():
            assert one[f"train/{name}"] == pytest.approx(value, rel=1e-5), (name, one["step"])


def test_ranks_meet_once_for_all_gradients_and_once_for_each_ones_norm(ranks: Any) -> None:
    """With a flight recorder norms are taken one by one, still in one reduction."""
    assert ranks[0]["mixed"]["reductions"] == [1, 1] * 3


def test_optional_signals_and_the_flight_recorder_see_a_sharded_model(ranks: Any) -> None:
    told = ranks[0]["mixed"]
    assert [0.0 <= seen["train/unchanged_parameters"] < 0.5 for seen in told["seen"]] == [True] * 3
    assert [told["recorded"], ranks[1]["mixed"]["recorded"]] == [2, 0]  # rank 0 alone sends


def test_each_steps_layers_are_told_while_the_server_watches(ranks: Any) -> None:
    """Rank 0 alone hears of it. The job's own reduction stays as small as ever.
    What is put together once the server is content again is kept for another time."""
    told = ranks[0]["watched"]
    for rank in ranks:
        assert rank["watched"]["faults"] == {}
        assert rank["watched"]["sizes"] == [2] * 17
    assert sorted(map(int, told["told"])) == list(range(6, 14))
    for step, norms in told["told"].items():
        measured = {name: norm for name, norm in norms.items() if norm}
        assert measured == pytest.approx(told["expected"][step], rel=CLOSE), step


def test_a_nan_in_one_shard_is_dropped_on_every_rank(ranks: Any) -> None:
    """Weights, moments and step counters keep their bits; the step after moves them again."""
    for told in ranks:
        assert told["dropped"]["same"] == [False, False, True, False]
    flags = [s["train/update_dropped"] for s in ranks[0]["dropped"]["seen"]]
    assert flags == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert math.isnan(ranks[0]["dropped"]["seen"][3]["train/grad_norm_raw"])


def test_a_rank_that_cannot_write_leaves_no_checkpoint_and_stops_nobody(ranks: Any) -> None:
    for told in ranks:
        assert told["dropped"]["checkpoints"] == []
        assert told["dropped"]["faults"] == {"checkpoint": 2}


def test_a_sharded_run_goes_back_bit_for_bit(ranks: Any) -> None:
    """To memory and to disk with batches left out, and on from a checkpoint at a restart: weights,
    moments and counters of every shard are those of a run that never saw the batches."""
    for told in ranks:
        scene = told["recovered"]
        assert scene["steps"] == [8, 5]
        assert scene["same"] == [True, True, True]
        assert scene["resumed"] == 10
        assert scene["faults"] == [{}, {}]


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run in four attempts: of 4 ranks, 2, 4 and 3, each going on where the last ended."""
    folder = tmp_path_factory.mktemp("sizes")
    return folder, [run_ranks(folder, size, ["another_size"]) for size in (4, 2, 4, 3)]


def test_a_run_goes_on_with_another_number_of_ranks(sizes: Any, tmp_path: Path) -> None:
    """Weights, moments and counters to the bit; losses as of one process that never stopped."""
    torch.set_num_threads(1)
    alone = sharded_job.ShardedJob(tmp_path)
    alone.train_to(10)
    alone.guard.finish()
    _, attempts = sizes
    for number, ranks in enumerate(attempts):
        for told in ranks:
            scene = told["another_size"]
            assert scene["resumed"] == 5 * number
            assert scene.get("same", not number)
            assert scene["faults"] == {}
    assert attempts[0][0]["another_size"]["states"] > 20
    losses = [loss for ranks in attempts[:2] for loss in ranks[0]["another_size"]["losses"]]
    assert losses == pytest.approx([seen["train/loss"] for seen in alone.seen], rel=CLOSE)


def test_a_rollback_goes_to_a_checkpoint_of_another_number_of_ranks(sizes: Any) -> None:
    _, attempts = sizes
    for told in attempts[2]:
        assert told["another_size"]["back"] == [10, True]


def test_one_process_goes_on_from_a_checkpoint_of_several_ranks(sizes: Any, tmp_path: Path) -> None:
    folder, _ = sizes
    job = sharded_job.ShardedJob(tmp_path, checkpoints=CheckpointDirectory(folder / "checkpoints"))
    assert job.guard.resume() == 20
    state = sharded_job.whole_state(job)
    job.guard.finish()
    assert sharded_job.equal_to_saved(state, folder / "whole-20.pt")


def test_what_each_rank_had_for_itself_is_given_to_no_other(tmp_path: Path) -> None:
    """The checkpoint is refused with the place of it; the state stays as it was."""
    run_ranks(tmp_path, 2, ["apart"])
    own = [sharded_job.OfThisRank(7)]
    kept = CheckpointDirectory(tmp_path / "apart")
    job = sharded_job.ShardedJob(tmp_path / "one", checkpoints=kept, state=own)
    before = sharded_job.whole_state(job)
    with pytest.raises(ResumeError, match=r"extra\.0\.rank is not the same on ranks 0 and 1"):
        job.guard.resume()
    job.guard.finish()
    assert own[0].rank == 7
    assert all(torch.equal(t, before[n]) for n, t in sharded_job.whole_state(job).items())


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


def test_a_rank_killed_while_it_writes_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    """Meanwhile the loop trains on, and leaves the next checkpoint out: one is in flight."""
    ranks = fork_ranks(JOB, tmp_path, 2, scenes=["stalled"])
    steps = tmp_path / "step-1"
    try:
        await_that(lambda: steps.exists() and json.loads(steps.read_text())["step"] >= 16, 120.0)
        assert (tmp_path / "started-1").exists()
        assert json.loads(steps.read_text())["faults"] == {}
    finally:
        ranks[1].kill()
    assert ended(ranks) == [1, -signal.SIGKILL]  # rank 0: the job's own collective failed
    (tmp_path / "gate-1").unlink()
    kept = CheckpointDirectory(tmp_path / "checkpoints")
    assert [target.step for target in kept.targets()] == [5]
    assert len(list(kept.path.iterdir())) == 2  # the one that was never whole lies beside it
    for told in run_ranks(tmp_path, 2, ["stalled"]):
        assert told["stalled"] == {"resumed": 5, "same": True}
    model = sharded_job.Network(torch.float32)
    whole = {"model": model.state_dict()}
    dcp_load(whole, checkpoint_id=kept.path / kept.targets()[0].name, no_dist=True)
    for name, weight in torch.load(tmp_path / "weights.pt").items():
        assert torch.equal(whole["model"][name].double(), weight), name
