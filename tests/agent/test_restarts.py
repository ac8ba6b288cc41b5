"""A restart, by one process or by several ranks that go back together."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spikeguard import CheckpointDirectory, Guard, ResumeError, Settings, attach
from spikeguard.errors import (
    EXIT_CANNOT_RESTORE,
    EXIT_HALF_APPLIED,
    EXIT_ROLL_BACK,
    RollbackByRestart,
)
from spikeguard.integrations.framework_loop import (
    HostedCheckpoints,
    LeavingOut,
    continue_from,
    resumable,
    step_or_end,
)
from spikeguard.state.random_numbers import (
    forget_gpus,
    random_refusal,
    random_state,
    restore_random_state,
)
from spikeguard_protocol import (
    AttemptStarted,
    BatchRange,
    CommandResult,
    ResultState,
    Rollback,
    RunId,
    SegmentReason,
    SegmentStarted,
)

from .forks import ended
from .heard import parts_of
from .job import Job, order
from .ranks import begin
from .wire import Wire, served


class Gpus:
    """Stands for `torch.cuda` of a host without one: `visible` GPUs, `current` among them."""

    def __init__(self, visible: int, current: int, used: set[int]) -> None:
        self.visible, self.current, self.used = visible, current, used
        self.states = {gpu: torch.full((16,), gpu, dtype=torch.uint8) for gpu in range(visible)}

    def in_place_of_torchs(self, patch: pytest.MonkeyPatch) -> None:
        def set_rng_state(state: Tensor, gpu: int) -> None:
            self.states[range(self.visible)[gpu]] = state.clone()

        for name, function in {
            "is_available": lambda: self.visible > 0,
            "is_initialized": lambda: self.visible > 0,
            "device_count": lambda: self.visible,
            "current_device": lambda: self.current,
            "memory_allocated": lambda gpu: int(gpu in self.used),
            "get_rng_state": lambda gpu: self.states[gpu],
            "set_rng_state": set_rng_state,
        }.items():
            patch.setattr(torch.cuda, name, function)


@pytest.mark.parametrize(
    ("saved", "here", "expected"),
    [
        (Gpus(2, 1, {1}), Gpus(1, 0, {0}), {0: 1}),  # its own, whatever else is visible
        (Gpus(2, 0, {0, 1}), Gpus(2, 0, {0, 1}), {0: 0, 1: 1}),  # a model in two parts
        (Gpus(2, 0, {0, 1}), Gpus(1, 0, {0}), {0: 0}),
        (Gpus(8, 3, {3}), Gpus(8, 5, {5}), {5: 3, 3: 3, 0: 0}),
    ],
)
def test_a_rank_puts_back_the_generators_of_its_own_gpus(
    saved: Gpus, here: Gpus, expected: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.in_place_of_torchs(monkeypatch)
    forget_gpus()
    tree = copy.deepcopy(random_state())
    here.in_place_of_torchs(monkeypatch)
    forget_gpus()
    restore_random_state(tree)
    assert {gpu: int(here.states[gpu][0]) for gpu in expected} == expected
    Gpus(0, 0, set()).in_place_of_torchs(monkeypatch)
    assert random_refusal(tree) == "it holds the random numbers of a GPU, and there is none here"
    forget_gpus()


def test_a_restart_that_fails_twice_in_the_same_way_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 75 asks for another start; the second failure ends with 78 and says what to do."""
    job = Job(tmp_path).train_to(50)
    job.guard.finish()
    ended = []
    for _ in range(3):
        again = Job(tmp_path)
        monkeypatch.setattr(again.ema, "load_state_dict", {}.pop)
        with pytest.raises(SystemExit, match="restoring checkpoint-00000050") as raised:
            again.guard.resume()
        ended.append(raised.value.code)
        again.guard.finish()
    assert ended == [EXIT_HALF_APPLIED, EXIT_CANNOT_RESTORE, EXIT_CANNOT_RESTORE]
    assert "move this checkpoint away" in str(raised.value)
    mended = Job(tmp_path)
    assert mended.guard.resume() == 50
    mended.guard.finish()
    assert not (tmp_path / "guard/restore_failed.txt").exists()


def test_a_schedule_that_a_checkpoint_has_no_state_of_is_told_before_anything_changes(
    tmp_path: Path,
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    kept = CheckpointDirectory(tmp_path / "kept", background=False)
    guard = attach(model, optimizer, run="test", directory=tmp_path, checkpoints=kept)
    guard.step()
    assert guard.checkpoint() is not None
    guard.finish()
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    guard = attach(
        model, optimizer, run="test", directory=tmp_path, checkpoints=kept, scheduler=schedule
    )
    with pytest.raises(ResumeError, match="no state of a scheduler"):
        guard.resume()
    guard.finish()


def test_groups_that_the_loop_added_late_are_named_at_the_restart(tmp_path: Path) -> None:
    def begun() -> tuple[nn.Sequential, torch.optim.Optimizer, Guard]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
        model[1].requires_grad_(False)
        optimizer = torch.optim.AdamW(model[0].parameters(), fused=True)
        kept = CheckpointDirectory(tmp_path / "kept", background=False)
        return (
            model,
            optimizer,
            attach(model, optimizer, run="test", directory=tmp_path, checkpoints=kept),
        )

    model, optimizer, guard = begun()
    model[1].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    guard.step()
    assert guard.checkpoint() is not None
    guard.finish()
    model, optimizer, guard = begun()
    with pytest.raises(ResumeError) as raised:
        guard.resume()
    for said in ("2 parameter groups and has 1", "add_param_group() before guard.resume()"):
        assert said in str(raised.value)
    assert "'1.weight', '1.bias'" in str(raised.value)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    assert guard.resume() == 1
    guard.finish()


STATE, STEPS, EVERY, SKIP = "state.pt", 30, 10, BatchRange(13, 16)


class RankRows:
    """This rank's rows of every position, with its number."""

    def __init__(self, rank: int, without: range) -> None:
        self.rank = rank
        self.positions = [position for position in range(1000) if position not in without]

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        for position in self.positions:
            generator = torch.Generator().manual_seed(position)
            yield position, torch.randn(2, 4, 8, generator=generator)[self.rank]


def train(folder: Path, rank: int, _: int, *, case: str, server: str) -> None:
    """`flipped`: after step 17 rank 1 has a wrong bit, and rank 0 is told to go
    back to equal weights. `without`: the batches are nowhere in the data."""
    flipped = 17 if case == "flipped" else 0
    rows_of = RankRows(rank, range(SKIP.first, SKIP.end) if case == "without" else range(0))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    network = DistributedDataParallel(model)
    directory, home = HostedCheckpoints(folder / "checkpoints", every=0), folder / "guard"
    target = resumable(directory, home, RunId("default", "test"))
    guard = attach(
        network,
        optimizer,
        run="test",
        server=server,
        checkpoints=directory,
        directory=home,
        settings=Settings(replica_checksum_every=5),
    )
    seen: dict[str, Any] = {"from": target.step if target else 0, "read": [], "ended": "finished"}
    if target is not None:
        state = torch.load(directory.path / target.name / STATE)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        continue_from(guard, target)
    try:
        for position, rows in LeavingOut(rows_of, lambda: parts_of(guard).feed):
            seen["read"].append(position)
            guard.loss((network(rows) - rows.roll(1, 1)).square().mean()).backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step_or_end(guard)
            if guard.steps == flipped and rank == 1:
                next(model.parameters()).detach().view(torch.int32)[3, 3] ^= 1 << 12
            if guard.steps == flipped and rank == 0:
                _order(guard, directory)
            if guard.steps % EVERY == 0:
                _save(guard, directory, model, optimizer)
            if guard.steps == STEPS:
                break
        guard.finish()
    except RollbackByRestart as ending:
        seen["ended"] = str(ending)
        raise
    finally:
        seen |= {"steps": guard.steps, "position": guard.position, "faults": guard.faults}
        seen["weights"] = [p.detach().flatten().tolist() for p in model.parameters()]
        (folder / f"rank{rank}.json").write_text(json.dumps(seen))


def _order(guard: Any, directory: HostedCheckpoints) -> None:
    """As the sender does it: back to step 10, on rank 0 alone."""
    name = next(target.name for target in directory.targets() if target.step == EVERY)
    order(guard, Rollback(name, EVERY, SKIP))


def _save(guard: Any, directory: HostedCheckpoints, model: Any, optimizer: Any) -> None:
    """As a framework does it: rank 0 writes, all wait."""
    name = f"checkpoint-{guard.steps}"
    if dist.get_rank() == 0:
        (directory.path / name).mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, directory.path / name / STATE)
    directory.adopt(name, guard)
    dist.barrier()


def run(wire: Wire, home: Path, case: str, status: int = 0) -> list[Any]:
    """What two ranks saw that end with `status`."""
    ranks = begin(home, 2, {"job": partial(train, case=case, server=wire.url)})
    assert ended(ranks, 100) == [status] * 2
    return [json.loads((home / f"job/rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_all_ranks_end_and_go_on_from_the_same_checkpoint_without_the_batches(
    tmp_path: Path,
) -> None:
    """Only rank 0 hears of it. Before, a bit flipped on rank 1; the restart makes them equal, bit
    for bit those of a job that never had the batches."""
    with served(Wire()) as wire:
        first = run(wire, tmp_path, "flipped", EXIT_ROLL_BACK)
        second = run(wire, tmp_path, "")
        assert wire.column("replicas_apart")[0, 16] == 0.0
        started = wire.records(AttemptStarted)
        (segment,) = wire.records(SegmentStarted, wire.attempt)
        (result,) = wire.records(CommandResult)
    assert first[0]["ended"] == first[1]["ended"]
    assert "back to checkpoint-10" in first[0]["ended"]
    assert first[0]["steps"] == first[1]["steps"] < 25
    assert first[0]["weights"] != first[1]["weights"]
    for rank in second:
        assert (rank["from"], rank["steps"], rank["position"]) == (10, 30, 33)
        assert rank["read"] == [*range(10, 13), *range(16, 33)]
        assert rank["faults"] == {}
    assert second[0]["weights"] == second[1]["weights"]
    assert started[1].parent is not None
    assert (started[1].parent.step, started[1].world_size) == (10, 2)
    assert (segment.reason, segment.position) == (SegmentReason.RESUME, 10)
    assert (result.command, result.state) == ("test#1.1", ResultState.APPLIED)
    with served(Wire()) as wire:
        never = run(wire, tmp_path / "never", "without")
    assert second[0]["weights"] == never[0]["weights"]
