"""The run's directory on a file system that is somebody else's: without locks, slow, or gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import spikeguard.uplink.backlog
from spikeguard import CheckpointDirectory
from spikeguard.cli.sync import homes, run_of
from spikeguard_protocol import (
    Action,
    BatchRange,
    Gap,
    Medium,
    Message,
    ResultState,
    Rollback,
    RunId,
    ScaleLr,
)

from . import mounted
from .heard import parts_of
from .job import FAST, Job, result, target_at
from .wire import Answer, Wire, await_that, served

pytestmark = pytest.mark.slow

Mount = Callable[..., tuple[Path, "subprocess.Popen[str]"]]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Makes a folder behind a real mount and the process that answers for it."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
        pytest.skip("mounting needs /dev/fuse and root")
    place, servers = tmp_path / "mount", list[subprocess.Popen[str]]()

    def begin(*options: str) -> tuple[Path, subprocess.Popen[str]]:
        folder = tmp_path / "behind"
        for made in (place, folder):
            made.mkdir()
        command = [sys.executable, str(Path(mounted.__file__)), str(folder), str(place), *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=-1, text=True)
        servers.append(server)
        assert server.stdout is not None
        if server.stdout.readline() != "mounted\n":
            assert server.stderr is not None
            pytest.skip(f"this machine does not mount: {server.stderr.read()[-80:]}")
        return place, server

    yield begin
    with suppress(OSError):  # where nothing was mounted
        mounted.unmount(place)
    for server in servers:
        server.kill()
        server.communicate()


def delivered(job: Job, wire: Wire, action: Action) -> str:
    """The command, by the server's own answer: the next one would take back any other."""
    command = wire.order(action)
    await_that(lambda: job.guard.state().orders)
    return command


def test_without_locks_all_arrives_and_what_must_last_lies_there(mount: Mount) -> None:
    """As Lustre without `flock`: the outbox is in memory, journal and checkpoints on the mount."""
    place, _ = mount("no-locks")
    with served(Wire()) as wire:
        job = Job(place, server=wire.url)
        job.train_to(30)
        back = Rollback(target_at(job, 20, Medium.MEMORY), 20, BatchRange(22, 24))
        command = delivered(job, wire, back)
        job.train_step()
        assert job.guard.steps == 20
        job.train_to(28)
        job.guard.finish()
        wire.orders.clear()
        assert result(job, command).state is ResultState.APPLIED
        again = Job(place, server=wire.url)
        assert again.guard.resume() == 25
        assert again.guard.state().skipped == (BatchRange(22, 24),)
        again.train_to(30)
        again.guard.finish()
        told = {step for _, step in wire.column("loss")}
    assert told == set(range(1, 32))
    assert job.guard.faults == again.guard.faults == {"outbox": 1}


def test_a_slow_mount_slows_no_step(mount: Mount) -> None:
    """Each write takes 0.15 s there. Only a command's entry in the journal is waited for."""
    place, _ = mount("delay=0.15")
    disk = CheckpointDirectory(place / "checkpoints", every=0)
    with served(Wire()) as wire:
        job = Job(place, server=wire.url, checkpoints=disk, settings=replace(FAST, flush_s=10.0))
        job.spoil = lambda _: time.sleep(0.01)  # so that many writes fall into the training
        job.train_to(100)
        await_that(lambda: (0, 100) in wire.column("loss"))
        job.guard.finish()
        times = list(wire.column("step_time").values())
    assert len(times) >= 99
    assert sum(time_s >= 0.15 for time_s in times) <= 1
    assert job.guard.faults == {}


def test_a_mount_that_is_lost_stops_neither_training_nor_its_report(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the file system is killed while messages wait there: they are declared lost,
    later ones stay in memory and arrive, and no order is carried out without a journal."""
    monkeypatch.setattr(spikeguard.uplink.backlog, "UNREADABLE_S", 0.3)
    monkeypatch.setattr(spikeguard.uplink.backlog, "SEAL_RECORDS", 5)
    place, server = mount()
    away, refused = threading.Event(), list[int]()

    def refuse(message: Message) -> Answer | None:
        if not (away.is_set() and message.records):
            return None
        refused.append(message.sequence)
        return 503, {}, b""

    with served(Wire()) as wire:
        wire.intercept = refuse
        job = Job(place, server=wire.url, checkpoints=CheckpointDirectory(place / "c", every=0))
        job.train_to(20)
        await_that(lambda: (0, 20) in wire.column("loss"))
        away.set()
        job.train_to(25)
        await_that(lambda: refused)
        job.train_to(40)
        outbox = parts_of(job.guard).outbox
        assert outbox is not None
        await_that(lambda: outbox.written_ahead)
        assert outbox.memory_size == 0  # what is behind it lies on the mount
        server.kill()
        server.wait()
        with pytest.raises(OSError, match="not connected"):
            place.stat()
        away.clear()
        job.train_to(60)
        command = delivered(job, wire, ScaleLr(0.5, 10))
        job.train_step()
        assert result(job, command).state is ResultState.REFUSED
        assert "journal" in result(job, command).reason
        await_that(lambda: (0, 61) in wire.column("loss"))
        job.guard.finish()
    told = {step for _, step in wire.column("loss")}
    assert told >= {*range(1, 21), *range(46, 62)}
    lost = sum(gap.samples_lost for gap in wire.records(Gap))
    assert len(told) + lost == 61
    assert lost > 0
    assert job.guard.faults["outbox"] > 0


def test_the_outbox_can_be_moved_off_a_networks_file_system(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal stays on the mount; what earlier attempts left is sent from both places."""
    place, _ = mount("kind=fuse.sshfs")
    job = Job(place)
    job.train_to(5)
    job.guard.finish()
    monkeypatch.setenv("SPIKEGUARD_OUTBOX_DIRECTORY", str(tmp_path / "local"))
    moved = Job(place)
    moved.train_to(7)
    moved.guard.finish()
    assert list((tmp_path / "local/default/test/outbox").iterdir())
    assert (place / "guard/journal.jsonl").exists()
    assert not (tmp_path / "local/default/test/journal.jsonl").exists()
    assert homes(tmp_path / "local") == [tmp_path / "local/default/test"]
    assert run_of(tmp_path / "local/default/test") == RunId("default", "test")
    with served(Wire()) as wire:
        again = Job(place, server=wire.url)
        again.train_to(3)
        again.guard.finish()
        assert set(wire.messages) == {job.guard.attempt, moved.guard.attempt, again.guard.attempt}
