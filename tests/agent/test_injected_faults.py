"""Nothing is raised into the loop, whichever call inside the agent fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

import spikeguard
from spikeguard import AttemptAborted, CheckpointDirectory, Settings
from spikeguard.optim.clipping import ZClip
from spikeguard_protocol import Action, BatchRange, Rollback, ScaleLr, Watch

from .job import Job, order

pytestmark = pytest.mark.slow

HOME = f"{Path(spikeguard.__file__).parent}/"
THE_LOOPS_OWN = (
    frozenset(  # between the loop and its loader: without them no batch
        f"DataFeed.{name}"
        for name in (
            "batches",
            "take",
            "read_once",
            "_opened",
            "_reopened",
            "_past_skips",
        )
    )
    | frozenset(
        f"Reading.{name}"
        for name in (
            *("__init__", "_begin", "_begin_from", "_go_back", "_read", "next", "pass_by", "jump"),
        )
    )
    | {"has_state", "Reading.read_past"}
)
DOORS = frozenset(  # what loop and optimizer call, and what swallows: a fault is behind them
    {
        "Guard._pass",
        "Guard.ended",
        "Guard.loss",
        "Guard.clip_grad_norm_",
        "Guard.clip_",
        "Guard.tokens",
        "Guard.sequence_losses",
        "Guard.step",
        "Guard.finish",
        "_Watched._before",
    }
    | {"_Watched._after", "Shield.__enter__", "Shield.__exit__", "Shield.__init__"}
    | {"Faults.shield", "Faults.note"}
    | THE_LOOPS_OWN
)
BUSY = Settings(send_interval_s=0.02, snapshot_every=2, slow_signals_every=5)
EVERYTHING = replace(
    BUSY,
    flight_recorder=4,
    slow_signals_every=2,
)
LONGEST = 7  # steps until a function has been called again
RENEWED = 60  # faults that one job goes through


WELL = "it trained on, or ended what was half done"


class Injected(Exception):
    """What fails."""


class Disturbed:
    """A job that is told to do something every few steps; made anew where an attempt ended."""

    def __init__(self, folder: Path, everything: bool = False) -> None:
        self.folder, self.jobs, self.orders = folder, 0, 0
        self.everything = everything  # that is optional
        self.renew()

    def renew(self) -> None:
        self.jobs += 1
        home = self.folder / str(self.jobs)
        directory = CheckpointDirectory(home / "checkpoints", every=0)
        if self.everything:
            self.job = watched_closely(home, directory)
        else:
            self.job = Job(home, settings=BUSY, checkpoints=directory)
        self.job.train_to(5)

    def prepare(self) -> None:
        """An order for every second step."""
        self.orders += 1
        if self.orders % 2:
            order(self.job, self._action(), self.orders)

    def _action(self) -> Action:
        held = self.job.guard.state().snapshots
        if self.orders % 6 != 5 and held:
            first = held[0].position + 1 if self.everything else 900_000
            return Rollback(held[0].name, held[0].step, BatchRange(first, first + 1), 0.5, 4)
        return (ScaleLr(0.5, 4), Watch(2))[self.orders // 6 % 2]


def watched_closely(home: Path, directory: CheckpointDirectory) -> Job:
    """A job that shows all it has, clips by a rule, and forwards; what it leaves out has a name."""
    rule = ZClip(warm_up=2)
    job = Job(
        home,
        settings=EVERYTHING,
        checkpoints=directory,
        forward=lambda *_: None,
        name_batch=lambda _: "it",
        clip=rule,
    )
    guard, shown, clipped = job.guard, torch.arange(8), job.guard.clip_grad_norm_

    def clip(_: float | None) -> torch.Tensor:
        guard.tokens(shown)
        guard.sequence_losses(shown.float())
        return clipped(None)

    guard.clip_grad_norm_ = clip  # type: ignore[method-assign, assignment]
    return job


@contextmanager
def profiled(look: Callable[[CodeType], None]) -> Iterator[None]:
    """`look` is told of every call in this thread, and may raise in its place.

    By the trace, which tells of calls alone: a profile also tells of returns and of C's functions.
    """

    def seen(frame: FrameType, _event: str, _: Any) -> None:
        look(frame.f_code)

    sys.settrace(seen)
    try:
        yield
    finally:
        sys.settrace(None)


def calls_of(disturbed: Disturbed, steps: int) -> dict[str, CodeType]:
    """The agent's functions that the loop's own thread goes through, by name."""
    found: dict[str, CodeType] = {}

    def look(code: CodeType) -> None:
        if code.co_filename.startswith(HOME):
            found[code.co_qualname] = code

    for _ in range(steps):
        disturbed.prepare()
        with profiled(look):
            disturbed.job.train_step()
    return {n: c for n, c in found.items() if n not in DOORS and not n.endswith(">")}


def fails_in(disturbed: Disturbed, code: CodeType) -> str | None:
    """Train on until `code` was called, which raises that once; what became of the loop, None if
    it never was (what is computed once and kept)."""
    hits: list[str] = []

    def look(called: CodeType) -> None:
        if called is code and not hits:
            hits.append(code.co_qualname)
            raise Injected(code.co_qualname)

    for _ in range(LONGEST):
        disturbed.prepare()
        job = disturbed.job
        before, steps = [p.detach().clone() for p in job.model.parameters()], job.guard.steps
        try:
            with profiled(look):
                job.train_step()
        except AttemptAborted:
            disturbed.renew()
            return WELL
        except Injected:
            disturbed.renew()
            return f"{code.co_qualname} was raised into the loop"
        if not hits:
            continue
        same = all(map(torch.equal, before, job.model.parameters()))
        forward = job.guard.steps == steps + 1
        return f"{code.co_qualname} kept the update out" if same and forward else WELL
    return None


def test_whichever_call_fails_the_loop_trains_on(tmp_path: Path) -> None:
    """Every function of the agent that a busy loop's thread goes through fails once, one at a time,
    in steps, snapshots, orders, rollbacks and skips; those that only a job with everything on goes
    through fail in such a one. Only a half-applied rollback ends it."""
    plain, full = Disturbed(tmp_path / "plain", False), Disturbed(tmp_path / "full", True)
    usual = calls_of(plain, 24)
    more = {name: code for name, code in calls_of(full, 24).items() if name not in usual}
    for disturbed, calls, least in ((plain, usual, 100), (full, more, 20)):
        felt = list[str]()
        for number, code in enumerate(calls.values()):
            if number % RENEWED == 0:
                disturbed.renew()
            felt += [said] if (said := fails_in(disturbed, code)) else []
        assert "; ".join(said for said in felt if said != WELL) == ""
        assert len(felt) > least


def test_whichever_call_fails_in_its_end_the_loop_goes_on(tmp_path: Path) -> None:
    """`finish()` raises nothing, takes its hooks out and makes way for another guard."""
    found: dict[str, CodeType] = {}

    def note(code: CodeType) -> None:
        if code.co_filename.startswith(HOME) and code.co_qualname not in DOORS:
            found[code.co_qualname] = code

    def ended(number: int, look: Callable[[CodeType], None]) -> None:
        job = Job(tmp_path / str(number), settings=replace(EVERYTHING, flush_s=0.2)).train_to(3)
        with profiled(look):
            job.guard.finish()
        assert not job.optimizer._optimizer_step_pre_hooks
        spikeguard.attach(job.model, job.optimizer, run="next", directory=tmp_path / "n").finish()

    ended(0, note)
    for number, code in enumerate(found.values()):
        hits: list[str] = []

        def fail(called: CodeType, code: CodeType = code, hits: list[str] = hits) -> None:
            if called is code and not hits:
                hits.append(code.co_qualname)
                raise Injected(code.co_qualname)

        ended(number + 1, fail)
    assert len(found) > 20
