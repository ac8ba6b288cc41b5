"""An order is carried out once and answered, wherever between the two the process is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spikeguard_protocol import (
    Action,
    BatchRange,
    CommandResult,
    ResultState,
    Rollback,
    SegmentStarted,
    TargetSaved,
)

from .forks import FORKS
from .job import Job, Loader, assert_same
from .killed_job import ORDERED_AT, POINTS, main, make
from .test_exactness import Without
from .wire import Wire, await_that, served

pytestmark = pytest.mark.slow

SKIP = BatchRange(12, 15)
LAST = 25
UNTOUCHED = ("before it is written down", "half written down")  # as if it had never come


@pytest.fixture(scope="module")
def trained() -> dict[bool, Any]:
    """The whole state after `LAST` steps, with and without the batches of `SKIP`."""
    found = {}
    for without, loader in ((False, Loader()), (True, Without([(SKIP.first, SKIP.end)]))):
        job = Job(loader=loader)
        job.train_to(LAST)
        job.guard.finish()
        found[without] = job.everything()
    return found


@pytest.fixture
def wire() -> Iterator[Wire]:
    with served(Wire()) as wire:
        yield wire


def killed(wire: Wire, folder: Path, point: str, choose: Callable[[Wire], Action]) -> None:
    """Train a first attempt, order what `choose` says, see it die at `point`."""
    job = FORKS.Process(target=main, args=(str(folder), wire.url, point))
    job.start()
    await_that(lambda: wire.messages and (0, ORDERED_AT) in wire.column("loss"))
    wire.order(choose(wire))
    job.join(300)
    if job.exitcode is None:
        job.kill()
        job.join()
    assert job.exitcode == -signal.SIGKILL


def going_back(wire: Wire) -> Action:
    """To the snapshot of step 10, without three batches behind it."""
    saved = [t for t in wire.records(TargetSaved) if t.step == 10 and t.name.startswith("memory")]
    return Rollback(saved[0].name, 10, SKIP)


@pytest.mark.parametrize("point", POINTS)
def test_a_rollback_is_carried_out_and_answered_once_wherever_the_job_is_killed(
    tmp_path: Path, wire: Wire, trained: dict[bool, Any], point: str
) -> None:
    killed(wire, tmp_path, point, going_back)
    done = point not in UNTOUCHED
    if done:  # a server delivers nothing to another attempt; where it did, that is refused
        wire.orders.clear()
    again = make(tmp_path, wire.url)
    assert again.guard.resume() == (10 if done else 15)  # that of step 15 was left behind
    again.train_step()
    await_that(lambda: again.guard.state().orders or done)
    again.train_to(LAST)
    again.guard.finish()
    (answer,) = set(wire.records(CommandResult))
    assert answer.state is (ResultState.APPLIED if done else ResultState.REFUSED)
    assert_same(again.everything(), trained[done])
    journal = (tmp_path / "guard/journal.jsonl").read_text().splitlines()
    assert sum('"entry": "begun"' in line for line in journal if line.endswith("}")) == done
    assert [name for name in again.guard.faults if not name.startswith("server")] == []
    (segment,) = wire.records(SegmentStarted, again.guard.attempt)
    assert segment.parent is not None
    assert (segment.parent.step, segment.position) == (10, 10) if done else (15, 15)
