"""Signals of the user's own: `guard.log` in the loop."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spikeguard_protocol import Samples

from .job import Job
from .wire import Wire, served


def test_what_the_loop_logs_arrives_with_the_step_that_it_was_logged_in(tmp_path: Path) -> None:
    """Numbers and tensors; what the loop changes afterwards does not change what was logged."""
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        running = torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)
        for step in range(1, 6):
            job.guard.log({"router_entropy": 99.0})
            job.guard.log({"router_entropy": 1.0 / step, "scale": np.float64(step), "on": True})
            other: Any = {"count": np.int64(step)}  # of numpy: a number, and no float
            job.guard.log(other)
            if step % 2:
                job.guard.log({"share": running, "odd": math.nan})
            with torch.no_grad():
                running += 1.0
            job.train_step()
        job.guard.finish()
        assert job.guard.faults == {}
    assert wire.column("router_entropy") == {(0, n): 1.0 / n for n in range(1, 6)}
    assert wire.column("scale") == {(0, n): float(n) for n in range(1, 6)}
    assert wire.column("share") == {(0, 1): 0.5, (0, 3): 2.5, (0, 5): 4.5}
    assert wire.column("count") == wire.column("scale")
    assert set(wire.column("on").values()) == {1.0}
    assert [math.isnan(v) for v in wire.column("odd").values()] == [True] * 3
    assert len(wire.column("loss")) == 5


BAD: dict[str, tuple[Any, Any]] = {
    "a name with a space": ("router entropy", 1.0),
    "a name that is too long": ("a" * 65, 1.0),
    "a name that is none": (7, 1.0),
    "a signal of the agent's": ("loss", 1.0),
    "what the agent says of its ranks": ("replicas_apart", 1.0),
    "text": ("text", "1.0"),
    "nothing": ("nothing", None),
    "a vector": ("vector", torch.ones(3)),
    "a complex number": ("complex", torch.tensor(1j)),
    "a tensor without values": ("meta", torch.ones((), device="meta")),
}


@pytest.mark.parametrize("case", BAD)
def test_a_name_or_value_that_cannot_be_taken_is_told_once_and_harms_nothing(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, value = BAD[case]
    caplog.set_level(logging.WARNING, "spikeguard")
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        for step in range(3):
            job.guard.log({name: value, "good": float(step)})
            job.train_step()
        job.guard.finish()
    assert job.guard.faults == {"log": 1}
    assert sum("guard.log" in line for line in caplog.messages) == 1
    assert list(wire.column("good").values()) == [0.0, 1.0, 2.0]
    assert max(wire.column("loss").values()) != 1.0
    known = {"good", "loss"} if name == "loss" else {"good"}
    assert not {str(name)} & {n for s in wire.records(Samples) for n in s.signals} - known


def test_no_more_than_sixteen_names_are_taken_and_a_log_that_is_no_table_is_a_fault(
    tmp_path: Path,
) -> None:
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        for _ in range(2):
            job.guard.log({f"expert_{n}": float(n) for n in range(18)})
            job.train_step()
        assert job.guard.faults == {"log": 2}  # each of the two names that are too many
        job.guard.log(3.0)  # type: ignore[arg-type]
        job.train_step()
        job.guard.finish()
    assert job.guard.faults == {"log": 3}
    names = {n for s in wire.records(Samples) for n in s.signals if n.startswith("expert_")}
    assert names == {f"expert_{n}" for n in range(16)}
