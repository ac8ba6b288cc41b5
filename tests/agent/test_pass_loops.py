"""Loops that go over their data as public training scripts do; none loses a step by the guard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spikeguard.errors import Stopped
from spikeguard_protocol import Stop

from .job import order
from .test_passes import STEPS, Loop, rows

pytestmark = pytest.mark.slow  # seconds of restarts

Items = Callable[[Any], Iterable[Tensor]]  # `guard.batches`, or what leaves a loader as it is


def cycle(items: Iterable[Tensor]) -> Iterator[Tensor]:
    while True:
        yield from items


def wrapped_once(_: Loop, items: Items) -> Iterator[Tensor]:
    loader = items(rows(shuffle=True))
    for _epoch in range(3):
        yield from loader


def without_end(_: Loop, items: Items) -> Iterator[Tensor]:
    return cycle(items(rows(shuffle=True)))


def one_item_a_pass(_: Loop, items: Items) -> Iterator[Tensor]:
    loader = rows(shuffle=True)
    while True:
        yield next(iter(items(loader)))


def a_loader_a_pass(loop: Loop, items: Items) -> Iterator[Tensor]:
    for _epoch in loop.guard.epochs(9):
        yield from items(rows(shuffle=True))


def a_loader_a_shard(_: Loop, items: Items) -> Iterator[Tensor]:
    for shard in range(5):  # counted by the loop, from the first at each start
        yield from items([item + 100 * shard for item in rows()])


def passes_broken_off(loop: Loop, items: Items) -> Iterator[Tensor]:
    loader = rows(shuffle=True)
    for _epoch in loop.guard.epochs(9):
        for number, batch in enumerate(items(loader)):
            if number and loop.guard.steps % 15 == 0:
                break
            yield batch


def evaluated(loop: Loop, items: Items) -> Iterator[Tensor]:
    loader, held_out = rows(shuffle=True), rows()
    for _epoch in loop.guard.epochs(9):
        yield from items(loader)
        for batch in islice(items(held_out), 3):
            loop.model(batch)


LOOPS = [
    wrapped_once,
    without_end,
    one_item_a_pass,
    a_loader_a_pass,
    a_loader_a_shard,
    passes_broken_off,
    evaluated,
]


@pytest.mark.parametrize("items_of", LOOPS)
@pytest.mark.parametrize("stop", [48, 50])  # at the end of a pass, within one
def test_a_loop_reads_what_it_reads_without_a_guard_and_goes_on_after_a_restart(
    tmp_path: Path, items_of: Callable[[Loop, Items], Iterator[Tensor]], stop: int
) -> None:
    def trained(name: str, last: int, bare: bool = False) -> Loop:
        loop = Loop(tmp_path / name, rows(), every=stop)
        loop.guard.resume()
        for batch in items_of(loop, (lambda loader: loader) if bare else loop.guard.batches):
            loop.train(batch)
            if loop.guard.steps == last:
                break
        loop.guard.finish()
        return loop

    bare, guarded = trained("bare", STEPS, bare=True), trained("whole", STEPS)
    assert len(bare.seen) == STEPS
    assert guarded.seen == bare.seen
    first, again = trained("restarted", stop), trained("restarted", STEPS)
    assert {**first.seen, **again.seen} == bare.seen
    assert again.guard.faults == {}
    assert torch.equal(again.model.weight, bare.model.weight)


def test_a_stop_ends_a_loop_without_end(tmp_path: Path) -> None:
    loop = Loop(tmp_path, rows())
    batches = cycle(loop.guard.batches(loop.loader))
    for batch in islice(batches, 30):
        loop.train(batch)
    order(loop, Stop())
    with pytest.raises(Stopped) as ending:
        list(map(loop.train, batches))
    assert ending.value.code == 0
    assert loop.guard.ended
    assert loop.guard.steps == 31
