"""How long the loop waits to go back, beside a step of the same run.

One process, on a GPU where there is one, the loop of `agent_overhead_loops`: from the call of
`guard.step` in which the order is carried out until the loop has its next batch in hand, and the
device is done. To the newest memory snapshot
that is `BACK` steps old, and to a checkpoint on disk (just written, so read from the page cache);
in turns. Between them come updates on gradients that are kept, so that steps pass; whole steps are
timed by themselves. What was restored is compared with what was saved, to the bit.
    python -m benchmarks.rewind [--quick] [--json]
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.agent_overhead_loops import LARGE, REFERENCE, SMALL, Loop, Size
from benchmarks.machine import machine
from benchmarks.spread import Spread
from spikeguard import CheckpointDirectory, Settings, attach
from spikeguard.state.lineage import Target
from spikeguard_protocol import Ack, Medium, Order, ResultState, Rollback

BACK = 30  # steps, at least
MEMORY, DISK, STEP = "to a snapshot in memory", "to a checkpoint on disk", "a whole step"


class Positions:
    """A loader of nothing but its own place; the loop's batch is always the same."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.read += 1
        return self.read - 1

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class Run:
    """The loop, its guard and its data."""

    def __init__(self, size: Size, device: str, folder: Path) -> None:
        self.loop, self._on_gpu = Loop(size, device), device == "cuda"
        self.guard = attach(
            self.loop.model,
            self.loop.optimizer,
            run="rewind",
            directory=folder / "guard",
            checkpoints=CheckpointDirectory(folder / "kept", every=0, keep=2, healthy_after=0),
            settings=Settings(snapshot_every=10, rollbacks_a_day=100),
        )
        self.loop.guard = self.guard
        self.loop.clip = lambda: self.guard.clip_grad_norm_(1.0)
        self._batches = iter(self.guard.batches(Positions()))
        self._orders = 0
        next(self._batches)

    def settle(self) -> None:
        """Wait for the device."""
        if self._on_gpu:
            torch.cuda.synchronize()

    def whole_step(self) -> float:
        """Seconds of a step of the user's, forward and backward included."""
        self.settle()
        began = time.perf_counter()
        self.loop.step()
        next(self._batches)
        self.settle()
        return time.perf_counter() - began

    def updates(self, count: int) -> None:
        """So many steps without forward and backward."""
        for _ in range(count):
            self.loop.step_on_held()
            next(self._batches)

    def go_back(self, target: Target) -> float:
        """Seconds from the boundary at which the order is carried out to the next batch."""
        self._orders += 1
        command = f"rewind#1.{self._orders}"
        action = Rollback(target.name, target.step)
        order = Order(command, self.guard.attempt, action, 60.0, None)
        self.loop.calls.clear()
        self.guard._p.inbox.hear(Ack(1, (order,)))
        self.settle()
        self.loop.step_on_held()
        began = time.perf_counter()
        next(self._batches)
        self.settle()
        opened = time.perf_counter() - began
        assert self.guard.state().results[command].state is ResultState.APPLIED
        assert self.guard.steps == target.step
        return self.loop.calls["guard.step"][-1] + opened

    def state(self) -> Any:
        return copy.deepcopy((self.loop.model.state_dict(), self.loop.optimizer.state_dict()))

    def snapshot(self) -> Target:
        """The newest that is `BACK` steps old."""
        snapshots = self.guard._p.recovery.snapshots
        assert snapshots is not None
        return [t for t in snapshots.targets if self.guard.steps - t.step >= BACK][-1]


def measure(options: Namespace) -> dict[str, Any]:
    """Seconds of each, and their ratio to the median step."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    large = LARGE if device == "cuda" else REFERENCE
    size, steps, turns = (SMALL, 15, 7) if options.quick else (large, 7, 7)
    seconds: dict[str, list[float]] = {STEP: [], MEMORY: [], DISK: []}
    with tempfile.TemporaryDirectory() as folder:
        run = Run(size, device, Path(folder))
        run.whole_step()  # the first makes moments and buffers
        seconds[STEP] = [run.whole_step() for _ in range(steps)]
        run.loop.hold_gradients()
        run.updates(10 - run.guard.steps % 10)
        for turn in range(turns + 1):
            found = _turn(run)
            for name, value in found.items() if turn else ():
                seconds[name].append(value)
        held = 3 * sum(p.numel() * p.element_size() for p in run.loop.parameters)
        parameters = sum(p.numel() for p in run.loop.parameters)
        run.loop.end()
    spreads = {name: Spread.of(values) for name, values in seconds.items()}
    step = spreads[STEP]
    assert step is not None
    return {
        **{name: asdict(spread) for name, spread in spreads.items() if spread is not None},
        "steps to go back to memory": max(seconds[MEMORY]) / step.median,
        "steps to go back to disk": max(seconds[DISK]) / step.median,
        "parameters": parameters,
        "bytes": held,
        "back": BACK,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "machine": machine(),
    }


def _turn(run: Run) -> dict[str, float]:
    """Once to memory, then once to disk; each must be what it was."""
    before = run.state()
    run.updates(BACK)
    to_memory = run.go_back(run.snapshot())
    _assert_same(before, run.state())
    name = run.guard.checkpoint()
    assert name is not None
    target = run.guard._p.recovery.find(name)
    assert target is not None
    assert target.medium is Medium.DISK
    run.updates(BACK)
    to_disk = run.go_back(target)
    _assert_same(before, run.state())
    run.updates(10)  # on to another snapshot: the next turn goes back to that
    return {MEMORY: to_memory, DISK: to_disk}


def _assert_same(one: Any, other: Any) -> None:
    """Equal to the bit."""
    for (name, a), (_, b) in zip(_tensors(one), _tensors(other), strict=True):
        assert torch.equal(a, b), name


def _tensors(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _tensors(value, f"{path}.{key}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.rewind", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="0.7 M parameters instead of 24 M (361 M on a GPU)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    found = measure(options)
    if options.json:
        print(json.dumps(found))
        return 0
    size = f"{found['parameters'] / 1e6:.1f} M parameters, {found['bytes'] / 1e6:.0f} MB of state"
    print(f"{size}, {found['device']}")
    for name in (STEP, MEMORY, DISK):
        some = found[name]
        low, mid, high = (1e3 * some[k] for k in ("least", "median", "most"))
        print(f"{name:26} {mid:9.1f} ms ({low:.1f} to {high:.1f}, n={some['count']})")
    for where in ("memory", "disk"):
        print(f"at worst {found[f'steps to go back to {where}']:.3f} of a step to {where}")
    print(", ".join(f"{key}: {value}" for key, value in found["machine"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
