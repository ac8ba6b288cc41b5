"""What can be done in a job is said in its log and to the server, and again when it changes."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from spikeguard import Guard, Settings, attach
from spikeguard_protocol import (
    Ability,
    Answer,
    ResultState,
    ScaleLr,
    Verb,
)

from .job import FAST, Job, Loader, order, result

TABLE = "what can be done in this job:"


def told(guard: Guard) -> dict[str, str]:
    return {ability.name: ability.answer.value for ability in guard.state().abilities}


def tables(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message.startswith(TABLE)]


def test_attach_ends_with_one_table_and_the_loop_fills_it_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "spikeguard"):
        job = Job(tmp_path)
        (table,) = tables(caplog)
        assert table is caplog.records[-1]
        assert table.levelno == logging.INFO  # nothing that somebody has to do
        for name in ("skip update", "clip", "scale lr", "rollback", "rewind from memory"):
            assert f"\n  {name} " in table.message
        assert told(job.guard)["rollback"] == "not known yet"
        job.train_to(2)
    rows = told(job.guard)
    assert set(rows.values()) == {"yes"}
    assert len(tables(caplog)) == 1
    assert any(
        record.message.startswith("rollback: yes. to snapshots") for record in caplog.records
    )
    job.guard.finish()


class Outer(torch.optim.SGD):
    """Its `second_step()` makes the update, as SAM's does; nobody calls `step()`."""

    def second_step(self) -> None:
        with torch.no_grad():
            for p in (p for group in self.param_groups for p in group["params"]):
                p.sub_(p.grad, alpha=self.param_groups[0]["lr"])


@pytest.mark.parametrize(("own", "last"), [(0, 2), (0, 40), (20, 40), (20, 70)])
def test_a_rate_that_no_step_would_take_is_not_scaled(own: int, last: int, tmp_path: Path) -> None:
    """Whether the loop never called `step()` or does so no more after `own` steps, and however
    soon the order comes; the table says so once it is sure."""
    model = nn.Linear(8, 8)
    optimizer = Outer(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, run="test", directory=tmp_path, settings=FAST)
    for batch in guard.batches(Loader()):
        guard.loss(model(batch).square().mean()).backward()
        if guard.steps < own:
            optimizer.step()
        else:
            optimizer.second_step()
        optimizer.zero_grad()
        guard.step()
        if guard.steps == last:
            break
    assert Verb.SCALE_LR not in guard.capabilities
    command = order(guard, ScaleLr(0.5, 30))
    guard.step()
    answer = result(guard, command)
    guard.finish()
    assert (told(guard)["scale_lr"] == "no") is (last - own >= 40)
    assert answer.state is ResultState.REFUSED
    assert "step() of the Outer" in answer.reason


@pytest.mark.parametrize("settings", [FAST, replace(FAST, allowed_verbs=("rollback", "stop"))])
def test_every_yes_of_the_table_is_offered_and_nothing_else(
    tmp_path: Path, settings: Settings
) -> None:
    job = Job(tmp_path, settings=settings)
    for steps in (0, 2):
        job.train_to(steps)
        rows = told(job.guard)
        for verb in (Verb.SKIP_BATCHES, Verb.ROLLBACK, Verb.SCALE_LR):
            assert (rows[verb] == "yes") is (verb in job.guard.capabilities), verb
    job.guard.finish()


class Counting(torch.optim.SGD):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.steps, self.noise, self.held = (
            0,
            torch.Generator(),
            list(self.param_groups[0]["params"]),
        )
        self.recent: deque[float] = deque(maxlen=8)

    def step(self, closure: Any = None) -> Any:
        self.steps += int(torch.ones(1, dtype=torch.int64).item())
        torch.rand(1, generator=self.noise)
        self.recent.append(float(self.steps))
        return super().step(closure)


def restored(guard: Guard) -> Ability | None:
    guard.finish()
    return next((row for row in guard.state().abilities if row.name == "restore_all"), None)


def test_an_optimizers_queue_is_named_and_what_is_restored_is_not(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    optimizer = Counting(model.parameters())
    row = restored(attach(model, optimizer, run="test", directory=tmp_path))
    assert row is not None
    assert row.answer is Answer.NO
    assert row.reason == "state that is not restored: attribute Counting.recent"
    assert "attach(state=[...])" in row.remedy


def test_a_tensor_in_a_modules_attribute_is_named_and_a_buffer_is_not(tmp_path: Path) -> None:
    """Nobody knows whether training changes it; torch's own checkpoints do not hold it either."""

    class Averaged(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 8)
            self.average = torch.zeros(8)
            self.register_buffer("seen", torch.zeros(8))

    model = Averaged()
    optimizer = torch.optim.AdamW(model.parameters())
    row = restored(attach(model, optimizer, run="test", directory=tmp_path))
    assert row is not None
    assert row.answer is Answer.UNKNOWN
    assert row.reason == (
        "attribute Averaged.average is not restored: make it a buffer if training changes it"
    )


def test_an_entry_of_state_answers_for_what_it_reaches(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    optimizer = Counting(model.parameters())

    class Adapter:
        def state_dict(self) -> dict[str, Any]:
            return {"recent": optimizer.recent}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError(state)

    guard = attach(model, optimizer, run="test", directory=tmp_path, state=[Adapter()])
    assert restored(guard) is None


@pytest.mark.parametrize("given", ["", "scheduler", "state"])
def test_a_schedule_that_nobody_gave_is_named(tmp_path: Path, given: str) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    named: Any = {given: [schedule] if given == "state" else schedule} if given else {}
    row = restored(attach(model, optimizer, run="test", directory=tmp_path, **named))
    assert (row is None) is bool(given)
    assert row is None or row.reason.endswith(": the learning-rate schedule of AdamW")


def test_a_hook_with_state_of_its_own_is_named(tmp_path: Path) -> None:
    """PowerSGD's errors; a hook of a process group alone has no state."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for hook, state in (
            (allreduce_hook, None),
            (powerSGD_hook, PowerSGDState(None, matrix_approximation_rank=1)),
        ):
            model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
            model.register_comm_hook(state, hook)
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            row = restored(attach(model, optimizer, run="test", directory=tmp_path))
            named = row is not None and "PowerSGDState of a DDP communication hook" in row.reason
            assert named is (state is not None)
    finally:
        dist.destroy_process_group()
