"""What each rank of `test_ranks` trains; writes what it saw to a file of its own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spikeguard import AttemptAborted, CheckpointDirectory, Mitigation, Settings, attach
from spikeguard.commands.recovery import Recovery
from spikeguard.ranks.agreement import Agreement
from tests.agent.job import Counted
from tests.agent.wire import await_that

FACTOR = {"by": 1.0}  # of the loss, while the mitigation is on
ROWS = 8  # of a position, on all ranks together
PACE_S = 0.005
LATE_S = 4  # that a rank is waited for in the case of that name
HELD = {  # the step at which rank 0 waits until what the server orders has come
    **dict.fromkeys(("broken_drain", "broken_load", "restarted"), 40),
    **dict.fromkeys(("mitigation", "broken_mitigation"), 40),
    "late": 100,
}
SPOILT = {"nan": (29,), "drops": range(20, 24)}  # steps before those whose gradients are not finite


class RankLoader(Counted):
    """This rank's rows of each position."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def __iter__(self) -> RankLoader:
        return self

    def __next__(self) -> Tensor:
        self.read += 1
        whole = np.random.default_rng(self.read - 1).standard_normal((ROWS, 8))
        return torch.from_numpy(np.split(whole, self.size)[self.rank]).float()


def train(
    folder: Path, rank: int, size: int, *, steps: int, case: str = "", server: str | None = None
) -> dict[str, Any]:
    """To `steps`, or to whatever end; `case`: what goes wrong."""
    torch.set_num_threads(1)
    model, optimizer = model_and_optimizer()
    network = DistributedDataParallel(model)
    threads, average = sorted(_threads()), Average(rank)
    broken = rank if case == "broken_mitigation" else 0
    scaled = Mitigation("scaled", lambda: _scaled(rank, broken), lambda: FACTOR.update(by=1.0))
    guard = attach(
        network,
        optimizer,
        run="test",
        server=server,
        checkpoints=CheckpointDirectory(folder / "checkpoints", every=20, keep=5, background=False),
        directory=folder / "guard",
        settings=Settings(
            send_interval_s=0.02,
            flush_s=60.0,
            snapshot_every=10,
            replica_checksum_every=10,
            agreement_timeout_s=LATE_S if case == "late" else 600,
            emergency_drops=4 if case == "drops" else 0,
            emergency_steps=10,
        ),
        state=[average] if case == "broken_state" else [],
        mitigations=[scaled] if "mitigation" in case else [],
    )
    seen: dict[str, Any] = {"resumed": guard.resume(), "trail": [], "dropped": [], "held": 0}
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1 and case in BROKEN:
            place, name, error = BROKEN[case]
            patch.setattr(place, name, _raising(error))
        try:
            _train(guard, network, model, optimizer, rank, size, steps, case, seen, folder, average)
            guard.finish()
            seen["bits"] = bits(model)
            seen["threads"] = [threads, sorted(_threads())]
            seen["ended"] = "finished"
        except AttemptAborted as aborted:
            seen["ended"] = str(aborted)
            raise
        finally:
            seen["faults"] = guard.faults
            (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    return seen


def _raising(error: Exception) -> Any:
    def fail(*_: object) -> None:
        raise error

    return fail


BROKEN: dict[str, tuple[Any, str, Exception]] = {  # what fails on rank 1
    "broken_load": (Recovery, "load", OSError("this rank's disk is gone")),
    "broken_restore": (Recovery, "restore", RuntimeError("this rank ran out of memory")),
    "broken_drain": (Agreement, "drain", RuntimeError("a wait for the other ranks failed")),
}


def model_and_optimizer() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """The same at every start and on every rank."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def bits(model: nn.Module) -> str:
    """One number for all bits of the weights."""
    held = (p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(b"".join(held)).hexdigest()


def _threads() -> list[str]:
    """Names of this process's threads, those of C++ too."""
    found = []
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended since it was listed
            found.append(name.read_text().strip())
    return found


def _scaled(rank: int, broken: int = 0) -> None:
    """Another loss from here on; on rank 1 it may fail."""
    if broken:
        raise RuntimeError(f"not on rank {rank}")
    FACTOR["by"] = 0.1


def _train(
    guard: Any,
    network: Any,
    model: Any,
    optimizer: Any,
    rank: int,
    size: int,
    steps: int,
    case: str,
    seen: Any,
    folder: Path,
    average: Average,
) -> None:
    for batch in guard.batches(RankLoader(rank, size)):
        losses = guard.sequence_losses((network(batch) - batch.roll(1, 1)).square().mean(1))
        guard.tokens(words_of(batch))
        guard.log({"router_entropy": batch.mean(), "share": rank + 1.0})
        guard.log({"attention_logit_max": torch.tensor(rank + 1.0)})
        if guard.steps == 4 and rank == 1:
            guard.log({"only_here": 1.0})
        loss = guard.loss(losses.mean())
        (loss * FACTOR["by"]).backward()
        if guard.steps in SPOILT.get(case, ()):
            if rank == 1:  # before the norm, on one rank alone
                model[0].weight.grad[0, 0] = float("nan")
            dist.all_reduce(model[0].weight.grad)
        guard.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        before = guard.steps
        average.steps = before + 1
        time.sleep(PACE_S)  # two ranks that wait for a server would keep two cores busy
        if case == "late" and rank == 0 and before == 24:  # it saves, or evaluates, alone
            await_that((folder / "voted").exists)
            time.sleep(1.5 * LATE_S)  # from when rank 1 has begun to wait
        if rank == 0 and before == HELD.get(case):
            await_that(lambda: guard.state().orders or guard.state().results)
        guard.step()
        if case == "late" and rank == 1 and before == 24:
            (folder / "voted").touch()
        seen["held"] = max(seen["held"], len(guard._reporter._rows))
        if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            _follow(folder, rank, [before + 1, guard.steps])
        if case == "flipped" and rank == 1 and guard.steps == 25:
            model[0].weight.detach().view(torch.int32)[3, 3] ^= 1 << 12
        weights = float(sum(p.double().sum() for p in model.parameters()))
        seen["trail"].append([before + 1, guard.steps, guard.position, weights])
        if guard.steps >= steps:
            return


class Average:
    """A part of the training state that rank 1 has no memory for at step 20."""

    def __init__(self, rank: int) -> None:
        self.rank, self.steps = rank, 0

    def state_dict(self) -> dict[str, int]:
        if self.rank == 1 and self.steps == 20:
            raise MemoryError
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def words_of(batch: Tensor) -> Tensor:
    """Whole numbers from 0 on, made of real ones."""
    return batch.mul(2.0).long() + 10


def _follow(folder: Path, rank: int, row: list[int]) -> None:
    """Note each step of a first attempt; rank 1 is killed 30 steps after going back."""
    path = folder / f"first{rank}.jsonl"
    with path.open("a") as file:
        file.write(f"{json.dumps(row)}\n")
    rows = [json.loads(line) for line in path.read_text().splitlines()] if rank == 1 else []
    if any(after == row[1] - 30 for before, after in rows if after < before):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":  # under torchrun
    dist.init_process_group("gloo")
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    train(
        Path(sys.argv[1]),
        dist.get_rank(),
        dist.get_world_size(),
        steps=int(sys.argv[2]),
        case="restarted" if first else "",
    )
    dist.destroy_process_group()
