"""Copies that leave beside the loop hold what stood at the boundary, in the order of the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from spikeguard import Settings, attach

from .device import CUDA, Event, device, model

MAIN = "the loop's stream"
Line = tuple[Any, ...]


class Stream:
    """What would be queued, in order; one log for all streams."""

    log: list[Line]

    def __init__(self, name: object = "a stream beside it") -> None:
        self.name = MAIN if name == MAIN else "a stream beside it"

    def wait_stream(self, other: Stream) -> None:
        self.log.append((self.name, "waits for", other.name))

    def wait_event(self, event: Marked) -> None:
        self.log.append((self.name, "waits for", event))


class Marked(Event):
    """An event that knows when it was recorded."""

    def record(self, stream: Any = None) -> None:
        Stream.log.append((stream.name if stream else MAIN, "records", self))


class Queue(TorchDispatchMode):
    """Notes copies to the host and updates of the weights with their stream."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = Stream(MAIN)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.copy_.default and args[1].is_cuda and not args[0].is_cuda:
            Stream.log.append((self.stream.name, "copies", args[1].untyped_storage()._cdata))
        if "_fused_adamw_" in str(func):
            Stream.log.append((self.stream.name, "updates", None))
        return func(*args, **(kwargs or {}))


def trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> tuple[list[Line], set[int]]:
    """What was queued from the first snapshot on, and the storages that the optimizer changes."""
    Stream.log = []
    queue = Queue()

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        before, queue.stream = queue.stream, stream
        yield
        queue.stream = before

    settings = Settings(snapshot_every=2, copy_beside=beside)
    with device(monkeypatch):
        monkeypatch.setattr(torch.cuda, "Event", Marked)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", on)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: queue.stream)
        network = model()
        network.register_buffer("seen", torch.empty((), device=CUDA))
        optimizer = AdamW(network.parameters(), fused=True)
        guard = attach(network, optimizer, run="gpu", directory=folder, settings=settings)
        with queue:
            for step in range(1, 5):
                optimizer.step()
                if step == 2:
                    Stream.log.clear()
                guard.step()
        assert guard.faults == {}
        moments = [t for kept in optimizer.state.values() for t in kept.values()]
        tensors: list[Tensor] = [*network.parameters(), *moments]
        return Stream.log, {t.untyped_storage()._cdata for t in tensors}


def test_what_the_optimizer_trains_leaves_beside_the_loop_between_two_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the update it has to hold and before the next, which waits on the device; what others
    may change leaves on the loop's own stream."""
    log, own = trained(tmp_path, monkeypatch, beside=True)
    update = log.index((MAIN, "updates", None))
    first = log[:update]
    copied = {line[2]: line[0] for line in first if line[1] == "copies"}
    assert {where for what, where in copied.items() if what in own} == {"a stream beside it"}
    assert {where for what, where in copied.items() if what not in own} == {MAIN}
    assert own <= copied.keys()
    begins = next(n for n, line in enumerate(first) if line[0] != MAIN)
    assert first[begins][1:] == ("waits for", MAIN)
    beside = [line for line in first if line[0] != MAIN]
    assert beside[-1][1] == "records"
    assert (MAIN, "waits for", beside[-1][2]) in first
