"""Snapshots take the memory that is there, and no more time than they may."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from spikeguard import AttachError, Settings
from spikeguard.faults import Faults
from spikeguard.loop import snapshot_cadence
from spikeguard.loop.snapshot_cadence import INTERVALS, SnapshotCadence
from spikeguard.state.lineage import Target
from spikeguard.state.node_memory import MappedMemory, Place, host_memory, neighbours, read_region
from spikeguard.state.replicated_parts import Part
from spikeguard.state.snapshots import StagingBuffers, rank_limit
from spikeguard_protocol import Medium

from .forks import exit_status, start_script

GIB = 2**30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
INSIDE = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def machine(root: Path, mounts: str, groups: str, **folders: dict[str, Any]) -> Path:
    """A machine of 100 GiB, of which 80 are free, with these cgroups."""
    files: dict[str, Any] = {
        "proc/meminfo": f"MemTotal: {100 * 2**20} kB\nMemAvailable: {80 * 2**20} kB",
        "proc/sys/kernel/random/boot_id": "boot",
        "proc/self/mountinfo": f"22 1 8:1 / / rw - ext4 /dev/sda rw\n{mounts}",
        "proc/self/cgroup": groups,
    }
    for folder, told in folders.items():
        files |= {f"sys/fs/cgroup/{folder.replace('__', '/')}/{n}": v for n, v in told.items()}
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(str(content))
    return root


def v2(limit: object, used: int, caches: int = 0) -> dict[str, Any]:
    stat = f"anon 5\ninactive_file {caches * GIB}"
    return {"memory.max": limit, "memory.current": used * GIB, "memory.stat": stat}


def v1(limit: int, used: int, caches: int = 0) -> dict[str, Any]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": used * GIB,
        "memory.stat": f"rss 5\ntotal_inactive_file {caches * GIB}",
    }


def test_without_a_limit_the_machines_memory_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, V2, "0::/job\n", job=v2("max", 10))
    assert host_memory(root) == (100 * GIB, 80 * GIB, "boot")


def test_the_tightest_of_nested_cgroups_counts(tmp_path: Path) -> None:
    """Of which caches of files can be reclaimed; whoever is in that one shares it."""
    root = machine(
        tmp_path,
        V2,
        "0::/pod/box\n",
        pod=v2(40 * GIB, 30, caches=20),
        pod__box=v2("max", 5),
    )
    told = host_memory(root)
    assert (told.limit, told.available) == (40 * GIB, 30 * GIB)
    assert told.owner == f"boot:{(root / 'sys/fs/cgroup/pod').stat().st_ino}"


def test_version_1_is_read_too_and_its_largest_number_is_no_limit(tmp_path: Path) -> None:
    groups = "9:cpu:/a\n4:memory:/a/b\n"
    nested = {"memory__a": v1(60 * GIB, 50, caches=5), "memory__a__b": v1(2**63 - 4096, 50)}
    assert host_memory(machine(tmp_path, V1, groups, **nested))[:2] == (60 * GIB, 15 * GIB)


def test_a_container_sees_its_own_cgroup_at_the_top(tmp_path: Path) -> None:
    """The path of the process is the host's; the folder that is mounted is the container's."""
    root = machine(tmp_path, INSIDE, "4:memory:/docker/abc\n", memory=v1(16 * GIB, 4))
    assert host_memory(root)[:2] == (16 * GIB, 12 * GIB)


def test_ranks_share_what_they_have_and_the_poorest_decides() -> None:
    """All hold the same snapshots, so the limit is one; one that is set is taken as it is."""
    places = [Place("a", 80 * GIB, 1), Place("a", 80 * GIB, 1), Place("b", 50 * GIB, 1)]
    assert rank_limit(Settings(), places) == 20 * GIB
    assert rank_limit(Settings(snapshot_bytes=7), places) == 7
    assert rank_limit(Settings(), [Place("a", 80 * GIB, 8)]) == 5 * GIB  # as the launcher says


def test_only_ranks_that_all_read_each_other_keep_one_copy() -> None:
    whole: list[set[int]] = [{1}, {0}, {3}, {2}]
    assert [neighbours(whole, rank) for rank in range(4)] == [{1}, {0}, {3}, {2}]
    broken: list[set[int]] = [{1, 2}, {0}, {0}]  # 1 and 2 do not read each other
    assert [neighbours(broken, rank) for rank in range(3)] == [set(), set(), set()]


SHAPES = ((2048, 256), (256, 768), (256,), (1024, 256), (1024,), (256, 1024))
BYTES = 3 * 4 * sum(map(prod, SHAPES))  # weights and both moments, fp32


def state() -> tuple[dict[str, Any], dict[str, Part]]:
    """Weights and moments of a model of 1.2 M parameters, as the ring is given them."""
    torch.manual_seed(1)
    weights = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = torch.optim.AdamW(weights)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    named = {f"weight.{n}": w.detach() for n, w in enumerate(weights)}
    for n, kept in enumerate(optimizer.state.values()):
        named |= {f"{kind}.{n}": value for kind, value in kept.items()}
    return {"seen": torch.arange(3)}, {name: Part.whole(t) for name, t in named.items()}


def memory(name: str) -> Target:
    return Target(name, 0, (), Medium.MEMORY)


def buffers(mapped: MappedMemory) -> StagingBuffers:
    return StagingBuffers(Faults(0), 4, mapped)


def test_snapshots_take_the_memory_of_their_tensors() -> None:
    """As the file system counts it: 1 % more at most, for three of them."""
    mapped = MappedMemory(4)
    own, parts = state()
    staging = buffers(mapped)
    for step in range(3):
        staging.take(memory(f"memory-{step}"), own, parts)
    taken = 512 * os.fstat(mapped.handle).st_blocks
    assert taken == pytest.approx(3 * BYTES, rel=0.01)


def test_another_process_reads_a_state_by_its_name_while_it_is_held() -> None:
    mapped = MappedMemory(4)
    own, parts = state()
    staging = buffers(mapped)
    kept = staging.take(memory("memory-1"), own, parts)
    handle = os.open(mapped.path, os.O_RDWR)
    found = read_region(handle, 0, "memory-1")
    assert found is not None
    assert found.keys() == parts.keys()
    assert all(torch.equal(found[name], part.tensor) for name, part in parts.items())
    whole = kept.whole()
    assert torch.equal(whole["seen"], own["seen"])
    kept.release()
    staging.take(memory("memory-2"), own, parts)
    assert read_region(handle, 0, "memory-1") is None
    os.close(handle)


class Runtime:
    """CUDA's, of which only what it is asked to register is kept."""

    def __init__(self) -> None:
        self.registered: list[int] = []

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        assert pointer % 4096 == flags == 0
        self.registered.append(size)
        return 0

    def cudaHostUnregister(self, pointer: int) -> int:
        return pointer * 0


def test_memory_is_registered_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread, once for each buffer; a snapshot finds it registered."""
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    own, parts = state()
    staging = buffers(MappedMemory(4))
    staging.registers = True
    staging.prepare(own, parts, 3)
    assert staging._thread is not None
    staging._thread.join(120)
    sizes = list(runtime.registered)
    assert sum(sizes) == pytest.approx(3 * BYTES, rel=0.01)
    for step in range(3):
        staging.take(memory(f"memory-{step}"), own, parts)
    assert runtime.registered == sizes


ENDS_EARLY = """
import torch
from spikeguard.faults import Faults
from spikeguard.state.node_memory import MappedMemory
from spikeguard.state.replicated_parts import Part
from spikeguard.state.snapshots import StagingBuffers

class Runtime:
    def cudaHostRegister(self, pointer, size, flags): return 0
    def cudaHostUnregister(self, pointer): return 0

torch.cuda.cudart = Runtime
parts = {"whole": Part.whole(torch.empty(2**26))}
staging = StagingBuffers(Faults(0), 4, MappedMemory(4), on_cuda=True)
staging.prepare({}, parts, 4)
"""


@pytest.mark.slow
def test_a_job_that_ends_while_memory_is_made_ready_ends_well(tmp_path: Path) -> None:
    """Without `close` the interpreter aborts, with status 134."""
    code = f"{ENDS_EARLY}import time; time.sleep(0.05); staging.close()\n"
    assert exit_status(start_script(code, tmp_path / "said.txt")) == 0


CPU = torch.device("cpu")
Taken = Callable[..., SnapshotCadence]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """A cadence after snapshots of steps 20, 40, ... that took so many seconds each."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(snapshot_cadence, "time", clock)

    def after(
        copies: list[float], step_s: float, ready: bool = True, **settings: Any
    ) -> SnapshotCadence:
        cadence = SnapshotCadence(Settings(**settings), CPU)
        for number, copy_s in enumerate(copies, 1):
            now[0] += 20 * step_s
            with cadence.timed(20 * number, partial(bool, ready or number > 1)):
                now[0] += copy_s
            now[0] -= copy_s  # a step's time holds no copy here
        return cadence

    return after


@pytest.mark.parametrize(
    ("copy_s", "step_s", "interval"),
    [(0.01, 1.0, 20), (0.48, 1.0, 100), (0.1, 0.99, 40), (0.3, 0.1, 1_000), (60.0, 0.1, 1_000)],
)
def test_the_interval_is_the_shortest_that_keeps_within_the_budget(
    taken: Taken, copy_s: float, step_s: float, interval: int
) -> None:
    """12 GB over 25 GB/s beside one-second steps: every 100 steps at .5 %."""
    cadence = taken([copy_s, copy_s], step_s)
    assert cadence.wanted() == interval
    assert copy_s / (interval * step_s) <= 0.005 or interval == INTERVALS[-1]
    assert cadence.interval == 20  # until all ranks have agreed
    assert cadence.agree(interval) is (interval != 20)
    assert [step for step in range(1, 2_001) if cadence.due(step)] == list(
        range(interval, 2_001, interval)
    )


def test_one_slow_copy_changes_nothing_and_lasting_ones_do(taken: Taken) -> None:
    assert taken([0.05, 9.0, 0.05], 1.0).wanted() == 20
    assert taken([0.05, 0.05, 0.6, 0.6, 0.6, 0.6], 1.0).wanted() == 200


def test_a_number_that_was_given_holds_whatever_it_costs(taken: Taken) -> None:
    cadence = taken([5.0, 5.0], 0.1, snapshot_every=7)
    assert (cadence.wanted(), cadence.interval, cadence.finest) == (0, 7, 7)
    assert cadence.words() == "one every 7 steps"
    assert taken([5.0, 5.0], 0.1, snapshot_budget=0.0).wanted() == 0
    assert not taken([], 0.1, snapshot_every=0).due(20)
    with pytest.raises(AttachError, match="snapshot_every"):
        Settings(snapshot_every=-1)


def test_a_copy_for_which_memory_was_made_ready_does_not_count(taken: Taken) -> None:
    assert taken([9.0, 0.05], 1.0).wanted() == 1_000
    assert taken([9.0, 0.05], 1.0, ready=False).wanted() == 20
