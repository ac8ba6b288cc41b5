"""How a loop takes its items: what is fetched ahead is not lost, what cannot be counted is said."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchdata.stateful_dataloader import StatefulDataLoader

from spikeguard import CheckpointDirectory, Guard, attach
from spikeguard_protocol import (
    Ability,
    Answer,
    AttemptStarted,
    BatchRange,
    Medium,
    ResultState,
    Rollback,
    Verb,
    abilities_from_settings,
)

from .job import FAST, Counted, order, result, target_at
from .test_pass_loops import cycle
from .wire import Wire, await_that, served

pytestmark = pytest.mark.slow

THREAD = 3  # as depth: items that another thread has fetched
OFTEN = replace(FAST, snapshot_every=5, slow_signals_every=20)


class Numbers:
    """Items that are their own numbers; begins anew with each `iter()`."""

    def __init__(self, count: int = 400) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.full((1, 1), float(number)) for number in range(self.count))


class Stateful(Counted, Numbers):
    """The same with a state."""

    def __iter__(self) -> Iterator[Tensor]:
        while self.read < self.count:
            self.read += 1
            yield torch.full((1, 1), float(self.read - 1))


def rows() -> StatefulDataLoader[Tensor]:
    data: Any = [torch.full((1,), float(number)) for number in range(400)]
    return StatefulDataLoader(data, batch_size=1, num_workers=1, prefetch_factor=3)


class Loop:
    """A loop that trains on numbers and remembers which."""

    def __init__(self, folder: Path, every: int = 5, **attaching: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        checkpoints = CheckpointDirectory(folder / "checkpoints", every=every, background=False)
        self.guard: Guard = attach(
            self.model,
            self.optimizer,
            run="test",
            checkpoints=checkpoints,
            **{"settings": OFTEN, **attaching},
        )
        self.trained: list[int] = []

    def train(self, *items: Tensor, stepped: bool = True) -> None:
        """One optimizer step of `items`."""
        for item in items:
            self.trained.append(int(item))
            self.guard.loss(self.model(item).mean()).backward()
        self.guard.clip_grad_norm_(1.0)
        if stepped:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.guard.step()

    def row(self, name: str) -> Ability:
        return next(each for each in self.guard.state().abilities if each.name == name)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [r for r in caplog.records if r.levelno >= logging.WARNING]
    return [r.getMessage() for r in records if "no server" not in r.getMessage()]


# --- fetched ahead ---


@pytest.mark.parametrize(
    ("loader", "count", "micro", "depth"),
    [
        (Numbers, 400, 1, 1),
        (Stateful, 400, 3, 1),
        (rows, 400, 3, 1),
        *((lambda: Numbers(25), 25, 2, depth) for depth in (0, 1, 3, 8)),
    ],
)
def test_what_was_fetched_ahead_is_fetched_again_after_a_restart(
    tmp_path: Path, loader: Any, count: int, micro: int, depth: int
) -> None:
    trained: list[int] = []
    for steps in (10, 20, 30, 40):
        loop = Loop(tmp_path, micro_batches=micro)
        loop.guard.resume()
        items = cycle(loop.guard.batches(loader()))
        held = list(islice(items, depth))
        while loop.guard.steps < steps:
            held += islice(items, micro)
            loop.train(*(held.pop(0) for _ in range(micro)))
        trained += loop.trained
        assert loop.guard.position == steps
        loop.guard.finish()
        assert loop.guard.faults == {}
    assert trained == [number % count for number in range(40 * micro)]


def test_a_loop_whose_steps_grow_goes_on_after_the_items_that_it_took(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    items = iter(loop.guard.batches(Numbers()))
    while loop.guard.steps < 28:
        loop.train(*islice(items, 1 if loop.guard.steps < 20 else 2))
    loop.guard.finish()
    again = Loop(tmp_path)
    assert again.guard.resume() == 25
    again.train(*islice(again.guard.batches(Numbers()), 2))
    assert again.trained == [30, 31]
    again.guard.finish()


class Chosen(Numbers):
    """Some numbers only."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers = list(numbers)

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.full((1, 1), float(number)) for number in self.numbers)


class Noisy(Loop):
    """Draws random numbers in each step, has momentum, a schedule and something else in state."""

    def __init__(self, folder: Path, micro: int) -> None:
        self.average = torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1))
        super().__init__(folder, 0, micro_batches=micro, state=[self.average])

    def train(self, *items: Tensor, stepped: bool = True) -> None:
        noisy = [item + torch.rand(1, 1) for item in items]
        for item in items:
            item.zero_()  # a loop may change what it was given
        super().train(*noisy, stepped=stepped)
        self.average.update_parameters(self.model)

    def bits(self) -> list[Tensor]:
        moments = [v for s in self.optimizer.state.values() for v in s.values()]
        kept = [*self.model.parameters(), *self.average.parameters(), *moments]
        return [tensor.detach().clone() for tensor in kept]


@pytest.mark.parametrize(("micro", "depth"), [(1, 1), (3, 2), (1, THREAD)])
def test_a_rollback_of_a_loop_that_fetches_ahead_equals_a_run_without_the_batches(
    tmp_path: Path, micro: int, depth: int
) -> None:
    """However many items it holds then, in a thread of its own too: no bit of them is left."""

    def train(loop: Noisy, numbers: Iterable[int], steps: int) -> None:
        items = iter(loop.guard.batches(Chosen(numbers)))
        if depth == THREAD:
            items = prefetched(items, 5)
        held = [next(items) for _ in range(depth)]
        made = 0
        while loop.guard.steps < steps:
            using = []
            for _ in range(micro):
                using.append(held.pop(0))
                held.append(next(items))
            made += 1
            if made == 14:
                order(loop, Rollback(target_at(loop, 10, Medium.MEMORY), 10, BatchRange(11, 13)))
            loop.train(*using)
        assert loop.guard.faults == {}
        loop.guard.finish()

    numbers = range(60 * micro)
    loop = Noisy(tmp_path / "a", micro)
    train(loop, numbers, 30)
    other = Noisy(tmp_path / "b", micro)
    chosen = Chosen([n for n in numbers if not 11 <= n // micro < 13])
    items = iter(other.guard.batches(chosen))
    while other.guard.steps < 30:
        other.train(*islice(items, micro))
    other.guard.finish()
    assert all(map(torch.equal, loop.bits(), other.bits()))


def test_a_loop_that_ends_before_its_rollback_says_so_and_the_next_start_carries_it_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(tmp_path, every=4)
    items = iter(loop.guard.batches(Numbers()))
    held = [next(items) for _ in range(20)]
    with caplog.at_level(logging.INFO, "spikeguard"):
        for made in range(14):
            if made == 11:
                command = order(loop, Rollback(target_at(loop, 8, Medium.DISK), 8))
            held.append(next(items))
            loop.train(held.pop(0))
    (said,) = (r.getMessage() for r in caplog.records if command in r.getMessage())
    assert "rollback to step 8 is carried out after 20 more steps" in said
    (row,) = (each for each in loop.guard.state().abilities if each.name == "rollback")
    assert "the loop fetches up to 20 items ahead" in row.reason
    assert "the next start carries it out" in said
    loop.guard.finish()
    again = Loop(tmp_path, every=4)
    assert again.guard.resume() == 8
    again.train(torch.ones(1, 1))
    assert result(again, command).state is ResultState.APPLIED
    again.guard.finish()


def prefetched(items: Iterable[Tensor], depth: int) -> Iterator[Tensor]:
    """By a thread of its own."""
    waiting: queue.Queue[Tensor | None] = queue.Queue(depth)

    def fetch() -> None:
        for item in items:
            waiting.put(item)
        waiting.put(None)

    threading.Thread(target=fetch, daemon=True).start()
    while (item := waiting.get()) is not None:
        yield item


# --- ordinary loops: nothing to say ---


def test_a_loop_that_evaluates_wraps_and_accumulates_over_passes_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last items of a pass make no whole step; an evaluation may take its items anywhere."""
    with caplog.at_level(logging.WARNING, "spikeguard"):
        loop = Loop(tmp_path, micro_batches=4)
        for _ in range(6):
            using: list[Tensor] = []
            for number, item in enumerate(islice(loop.guard.batches(Numbers(42)), 42), 1):
                using.append(item)
                if number % 4 == 0:
                    loop.train(*using)
                    using = []
                if number % 16 == 0:
                    for seen in Numbers(3):
                        loop.model(seen)
                    for seen in loop.guard.batches(Numbers(5)):  # by mistake: it does not count
                        loop.model(seen)
        assert loop.guard.steps == loop.guard.position == 60
        assert warned(caplog) == []
        assert {each.answer for each in loop.guard.state().abilities} == {Answer.YES}
        loop.guard.finish()


# --- loops that the guard cannot follow ---


def test_a_loop_without_batches_is_told_so_with_the_remedy_until_it_uses_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(Wire()) as wire, caplog.at_level(logging.INFO, "spikeguard"):
        loop = Loop(tmp_path, server=wire.url, token="t")
        assert loop.row("rollback").answer is Answer.UNKNOWN
        for item in islice(Numbers(), 40):
            loop.train(item)
        (said,) = warned(caplog)
        assert "rollback" in said
        assert "does not take its items from guard.batches()" in said
        assert "Iterate over guard.batches(loader)" in said
        assert Verb.ROLLBACK not in loop.guard.capabilities
        assert loop.row("rollback").answer is Answer.NO
        for item in islice(loop.guard.batches(Numbers()), 4):
            loop.train(item)
        assert loop.row("rollback").answer is Answer.YES
        await_that(lambda: len(wire.records(AttemptStarted)) == 2)
        first, last = (
            {a.name: a.answer for a in abilities_from_settings(started.settings)}
            for started in wire.records(AttemptStarted)
        )
        assert (first["rollback"], last["rollback"]) == (Answer.NO, Answer.YES)
        assert Verb.ROLLBACK in wire.records(AttemptStarted)[-1].capabilities
        loop.guard.finish()


def test_two_loaders_for_one_step_are_told_of_and_nothing_goes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "spikeguard"):
        loop = Loop(tmp_path)
        text, code = loop.guard.batches(Numbers()), loop.guard.batches(Stateful())
        for one, other in islice(zip(text, code, strict=False), 12):
            loop.train(one + other)
        assert not {Verb.ROLLBACK, Verb.SKIP_BATCHES} & set(loop.guard.capabilities)
        (said,) = warned(caplog)
        assert "Join the loaders to one before guard.batches()" in said
        name = target_at(loop, 5, Medium.MEMORY)
        command = order(loop, Rollback(name, 5))
        loop.train(torch.ones(1, 1))
        assert result(loop, command).state is ResultState.REFUSED
        loop.guard.finish()


@pytest.mark.parametrize(("said", "taken"), [(1, 2), (8, 7), (8, 1)])
def test_items_of_a_step_that_are_not_micro_batches_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: int, taken: int
) -> None:
    with caplog.at_level(logging.WARNING, "spikeguard"):
        loop = Loop(tmp_path, micro_batches=said)
        items = iter(loop.guard.batches(Numbers()))
        for _ in range(33):
            loop.train(*islice(items, taken))
        (text,) = [text for text in warned(caplog) if "rollback" in text]
        assert f"takes {taken} items of guard.batches() for each guard.step()" in text
        assert text.endswith(f"Say attach(micro_batches={taken})")
        assert Verb.SKIP_BATCHES not in loop.guard.capabilities
        assert loop.guard.position == loop.guard.steps  # as ever where it is wrong
        loop.guard.finish()
    again = Loop(tmp_path, micro_batches=said)
    assert again.guard.resume() == 30
    again.train(*islice(again.guard.batches(Numbers()), taken))
    assert again.trained == [*range(30 * taken, 31 * taken)]
    again.guard.finish()


def test_steps_without_the_optimizers_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "spikeguard"):
        loop = Loop(tmp_path)
        for number, item in enumerate(islice(loop.guard.batches(Numbers()), 48), 1):
            loop.train(item, stepped=number % 4 == 0)
        (said,) = warned(caplog)
        assert said.startswith("count steps: no. guard.step() is called 4 times for each optimizer")
        loop.guard.finish()


def test_a_target_in_an_earlier_loader_with_a_state_is_refused(tmp_path: Path) -> None:
    """Its state is another loader's."""
    loop = Loop(tmp_path)
    for item in loop.guard.batches(Stateful(12)):
        loop.train(item)
    name = target_at(loop, 10, Medium.MEMORY)
    items = iter(loop.guard.batches(Stateful(50)))
    loop.train(next(items))
    command = order(loop, Rollback(name, 10))
    loop.train(next(items))
    assert result(loop, command).state is ResultState.REFUSED
    assert "earlier loader" in result(loop, command).reason
    loop.guard.finish()
