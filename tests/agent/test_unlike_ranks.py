"""Ranks that are not alike although DDP wraps their model: told at once, and nobody waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from spikeguard import Ranks, Settings, attach
from spikeguard.commands.recovery import Recovery
from spikeguard.loop import snapshot_cadence
from spikeguard.ranks import agreement

from .ranks import Told, play
from .wire import Wire, served

pytestmark = pytest.mark.slow

AVERAGED_EVERY = 10  # steps, of the weights in local SGD
SPOILT_AT = 15  # step at which rank 1 alone has a gradient that is not finite
BATCHES = (20, 29)  # of each rank, where they have not equally many
PASSES = 3
TARGET = 20  # step of a snapshot
SETTINGS = {"snapshot_every": TARGET}
BUDGETED = 110  # steps
STEP_S, COPY_S = 0.01, 0.25  # by the clock of the test; a snapshot takes as long on rank 1 alone


def item(number: int, rank: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1_000 * rank + number)
    x = torch.randn(8, 16, generator=made)
    return x, x[:, :1] * x[:, 1:2]


class Scene:
    """A model under DDP, and what its loop saw."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        server: str,
        settings: Mapping[str, Any] = SETTINGS,
        **said: Any,
    ) -> None:
        torch.manual_seed(0)
        self.rank = rank
        self.first = nn.Linear(16, 32)
        self.inner = nn.Sequential(self.first, nn.GELU(), nn.Linear(32, 1))
        self.model = DistributedDataParallel(self.inner)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.guard = attach(
            self.model,
            self.optimizer,
            run="test",
            directory=folder,
            server=server if rank == 0 else None,
            settings=Settings(
                send_interval_s=0.02, flush_s=60.0, agreement_timeout_s=600, **settings
            ),
            **said,
        )

    def train(self, data: Any, averaged: bool = False, spoilt: int | None = None) -> None:
        for x, y in self.guard.batches(data):
            with self.model.no_sync() if averaged else nullcontext():
                self.guard.loss(nn.functional.mse_loss(self.model(x), y)).backward()
            if self.rank == 1 and self.guard.steps + 1 == spoilt:
                assert self.first.weight.grad is not None
                self.first.weight.grad[0, 0] = float("nan")  # after the all-reduce
            self.guard.clip_grad_norm_(1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.guard.step()
            if averaged and self.guard.steps % AVERAGED_EVERY == 0:
                for p in self.inner.parameters():
                    dist.all_reduce(p.data)
                    p.data /= 2

    def told(self) -> dict[str, Any]:
        self.guard.finish()
        state = self.guard.state()
        return {
            "steps": self.guard.steps,
            "faults": self.guard.faults,
            "newest": state.newest_fault,
            "table": {row.name: str(row.answer) for row in state.abilities},
            "snapshots": [target.step for target in state.snapshots or ()],
        }


def local_sgd(folder: Path, rank: int, _: int, server: str) -> dict[str, Any]:
    """`no_sync()` in every step, weights averaged now and then: DDP is a mere wrapper."""
    scene = Scene(folder, rank, server)
    scene.train([item(n, rank) for n in range(2 * TARGET)], averaged=True)
    return scene.told()


def local_sgd_said(folder: Path, rank: int, _: int, server: str) -> dict[str, Any]:
    """The same, where the loop says so."""
    scene = Scene(folder, rank, server, ranks=Ranks(replicated=False))
    scene.train([item(n, rank) for n in range(2 * TARGET)], averaged=True)
    return scene.told()


def nan_on_one(folder: Path, rank: int, _: int, server: str) -> dict[str, Any]:
    scene = Scene(folder, rank, server)
    scene.train([item(n, rank) for n in range(SPOILT_AT + 5)], spoilt=SPOILT_AT)
    return scene.told()


def joined(folder: Path, rank: int, _: int, server: str, inside: bool = False) -> dict[str, Any]:
    """`inside`: `finish()` is called before the context is left."""
    scene = Scene(folder, rank, server)
    with pytest.MonkeyPatch.context() as patch, Join([scene.model]):
        patch.setattr(agreement, "LEAVING", timedelta(seconds=1))
        scene.train([item(n, rank) for n in range(BATCHES[rank])])
        if inside:
            scene.guard.finish()
    return scene.told()


def in_passes(folder: Path, rank: int, _: int, server: str) -> dict[str, Any]:
    """Equally long ones: the ranks vote on after each, and an evaluation of one rank is none."""
    scene = Scene(folder, rank, server)
    for _ in range(PASSES):
        scene.train([item(n, rank) for n in range(7)])
        if rank == 0:
            for batch in scene.guard.batches([item(900, 0)]):
                with torch.no_grad():
                    scene.inner(batch[0])
    return scene.told()


def budgeted(folder: Path, rank: int, _: int, server: str) -> dict[str, Any]:
    """By default: rank 1's copies take longer than the budget allows at every 20 steps."""
    scene = Scene(folder, rank, server, settings={"snapshot_budget": 0.05})
    take, copied_s = Recovery.snapshot, [0.0]
    clock = SimpleNamespace(monotonic=lambda: STEP_S * scene.guard.steps + sum(copied_s))

    def slowly(recovery: Recovery) -> None:
        copied_s.append(COPY_S * rank)
        take(recovery)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recovery, "snapshot", slowly)
        patch.setattr(snapshot_cadence, "time", clock)
        scene.train([item(n, rank) for n in range(BUDGETED)])
    reason = next(r.reason for r in scene.guard.state().abilities if r.name == "rewind_from_memory")
    return {**scene.told(), "reason": reason}


SCENES: dict[str, Any] = {
    **{f.__name__: f for f in (local_sgd, local_sgd_said, nan_on_one, joined, in_passes, budgeted)},
    "joined_inside": partial(joined, inside=True),
}
Seen = tuple[Told, dict[str, Wire]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """What each of two ranks told of every scene, and what the server of each scene stored."""
    with ExitStack() as stack:
        wires = {name: stack.enter_context(served(Wire())) for name in SCENES}
        scenes = {name: partial(f, server=wires[name].url) for name, f in SCENES.items()}
        yield play(tmp_path_factory.mktemp("ranks"), 2, scenes), wires


def test_local_sgd_behind_ddp_is_found_before_the_first_snapshot(seen: Seen) -> None:
    """One copy for all ranks would be a mixture of them, so there is none."""
    for rank in (each["local_sgd"] for each in seen[0]):
        assert rank["faults"]["replicas"] == 3  # other weights, other gradients, no replicas
        assert "Ranks(replicated=False)" in rank["newest"]
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
    """Under torch's `Join`, where nobody votes any more."""
    ranks = [each[scene] for each in seen[0]]
    assert [rank["steps"] for rank in ranks] == list(BATCHES)
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
    assert "every 20 steps" not in ranks[0]["reason"]
    for rank in ranks:
        assert "a copy takes" in rank["reason"]
        assert "(Settings.snapshot_budget is 5 %)" in rank["reason"]
        assert not [name for name in rank["faults"] if not name.startswith("server")]
