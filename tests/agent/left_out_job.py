"""Jobs of the tests of what was left out: one that is killed by SIGKILL on the way from a skip to
its report, and the two ranks of one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spikeguard import CheckpointDirectory, Settings, attach
from spikeguard.data import skip_log as left_out_log
from spikeguard.data.line_files import sealed_line
from spikeguard.uplink.skip_upload import SkipUpload
from spikeguard_protocol import Action, BatchRange, Medium, Rollback
from tests.agent.job import FAST, Job, batch_at, order, target_at

SKIP = BatchRange(22, 25)
HELD = threading.Event()  # never set: the disk that hangs


class Named:
    """Micro-batches that know their number."""

    def __init__(self) -> None:
        self.read = 0
        self.batches: list[Tensor] = []

    def __iter__(self) -> Named:
        return self

    def __next__(self) -> Tensor:
        self.read += 1
        self.batches.append(batch_at(self.read - 1))
        return self.batches[-1]

    def name(self, batch: Tensor) -> str:
        """Of the item that was read last, and only of that one."""
        assert batch is self.batches[-1]
        return f"doc-{self.read - 1}"

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


def make(folder: Path, url: str | None) -> Job:
    """The job of either attempt: checkpoints every 5 steps."""
    disk = CheckpointDirectory(folder / "checkpoints", every=5, keep=9, background=False)
    loader = Named()
    return Job(folder, server=url, checkpoints=disk, loader=loader, name_batch=loader.name)


def main(folder: str, url: str, point: str) -> None:
    """Go back, leave `SKIP` out, and end by SIGKILL before this returns."""
    job = make(Path(folder), url)
    POINTS[point]()
    job.train_to(30)
    carried_out(job, Rollback(target_at(job, 20, Medium.MEMORY), 20, SKIP))
    job.train_to(27)  # with a checkpoint at 25, behind the skip
    if point == "the disk hangs":
        die()
    HELD.wait(60)  # the thread dies meanwhile


def carried_out(job: Job, action: Action) -> None:
    """Ordered until it is done: what the server says meanwhile knows nothing of it."""
    for _ in range(100):
        command = order(job, action)
        job.train_step()
        if command in job.guard._p.journal.results:
            return
    raise AssertionError("it was never carried out")


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(*_: object) -> None:
    HELD.wait(60)


def half(path: Path, entries: list[dict[str, Any]]) -> None:
    line = sealed_line(entries[0], 1, path.name)
    path.write_bytes(line[: len(line) // 2])
    die()


def dies_after(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def call(*given: Any) -> None:
        original(*given)
        die()

    setattr(owner, name, call)


POINTS: dict[str, Callable[[], None]] = {
    "the disk hangs": lambda: setattr(left_out_log, "append_lines", hangs),
    "half written": lambda: setattr(left_out_log, "append_lines", half),
    "written": lambda: dies_after(left_out_log, "append_lines"),
    "told": lambda: dies_after(SkipUpload, "_tell_some"),
}


def train_rank(folder: Path) -> None:
    """30 steps of a rank, the batches of `SKIP` left out by an order that both ranks know."""
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    network = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, fused=True)
    loader = Named()
    guard = attach(
        network,
        optimizer,
        run="test",
        directory=folder / "guard",
        settings=Settings(send_interval_s=0.02, snapshot_every=0, flush_s=FAST.flush_s),
        name_batch=lambda batch: (f"rank-{rank}", loader.name(batch)),
    )
    guard._p.journal.begin("test#1.1", 0, SKIP)  # on rank 0 durable, as an order makes it
    for batch in guard.batches(loader):
        guard.loss(network(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        guard.step()
        if guard.steps == 30:
            break
    dist.barrier()  # rank 1 has written: rank 0 finds it there
    guard.finish()
    (folder / f"rank{rank}.json").write_text(f'{{"faults": {len(guard.faults)}}}')
    dist.destroy_process_group()


if plan := globals().get("PLAN"):  # one of two processes of the test's own
    os.environ.update(plan["environment"])
    meeting = f"file://{plan['meeting']}"
    dist.init_process_group("gloo", init_method=meeting, rank=plan["rank"], world_size=2)
    train_rank(Path(plan["folder"]))
