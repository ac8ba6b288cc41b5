"""Nothing the loop hands over is lost silently, and nothing grows without a bound."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import spikeguard.uplink.outbox
from spikeguard.uplink.outbox import Outbox, earlier_outboxes
from spikeguard_protocol import (
    BatchRange,
    CommandResult,
    Gap,
    LayerNorms,
    Medium,
    Message,
    Record,
    ResultState,
    RunId,
    Samples,
    SegmentReason,
    SegmentStarted,
    TargetSaved,
    decode_message,
)

from .job import FAST, Job
from .test_journal import disk_full_at
from .wire import await_that

RUN = RunId("default", "test")
ATTEMPT = "0123456789abcdef"


def sample(step: int, segment: int = 0, **signals: float) -> Samples:
    columns = {name: (value,) for name, value in (signals or {"loss": 1.0}).items()}
    return Samples(segment, (step,), columns, (BatchRange(step, step + 1),))


def outbox(folder: Path, limit: int = 2**20) -> Outbox:
    return Outbox(folder / ATTEMPT, RUN, ATTEMPT, limit)


def write_down(box: Outbox) -> None:
    """As the writer's thread does twenty times a second."""
    box.keep_up()


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.jsonl"))


def oldest(box: Outbox) -> Message:
    """As the server reads it."""
    message = box.next_message()
    assert message is not None
    return decode_message(message.body)


def everything(box: Outbox) -> list[Record]:
    """Send all of it, as a server that stores everything would see it."""
    records: list[Record] = []
    expected = None
    while not box.empty:
        message = oldest(box)
        assert expected is None or message.sequence == expected
        ends = [gap.last for gap in message.records if isinstance(gap, Gap)]
        expected = max(message.sequence, *ends, 0) + 1
        records += message.records
        box.acknowledge(message.sequence)
    return records


def test_an_empty_outbox_sends_heartbeats_that_are_numbered(tmp_path: Path) -> None:
    box = outbox(tmp_path)
    for sequence in (1, 2, 3):
        message = oldest(box)
        assert (message.sequence, message.records) == (sequence, ())
        box.acknowledge(sequence)
    box.close()
    assert not (tmp_path / ATTEMPT).exists()


def test_a_full_outbox_drops_the_oldest_samples_and_says_how_many(tmp_path: Path) -> None:
    box = outbox(tmp_path, limit=40_000)
    begins = SegmentStarted(0, SegmentReason.START, None, 0)
    box.put(begins)
    for step in range(1, 2_001):
        box.put(sample(step))
        if step % 50 == 0:
            write_down(box)
    assert on_disk(tmp_path) <= 40_000
    records = everything(box)
    lost = sum(record.samples_lost for record in records if isinstance(record, Gap))
    kept = [step for record in records if isinstance(record, Samples) for step in record.steps]
    assert lost > 0
    assert lost + len(kept) == 2_000
    first = kept.index(next(step for step in kept if step > lost))
    assert kept == [*range(1, first + 1), *range(lost + first + 1, 2_001)]
    assert records[0] == begins
    box.close()


def slow(step: int, loss: float = 3.0) -> Samples:
    return sample(step, loss=loss, grad_norm=1.0, lr=1e-3, param_norm=50.0, step_time=0.1)


def layers(step: int) -> LayerNorms:
    return LayerNorms(0, step, "grad_norm", {f"blocks.{n}.weight": 0.1 for n in range(20)})


def fill(box: Outbox, spike: range, steps: int = 600) -> None:
    """A run with norms by layer, snapshots, results and one spike."""
    for step in range(1, steps + 1):
        box.put(slow(step, loss=9.0 if step in spike else 3.0 + 0.01 * (step % 7)))
        if step % 5 == 0:
            box.put(layers(step))
        if step % 20 == 0:
            box.put(TargetSaved(f"memory-{step}", 0, step, step, Medium.MEMORY))
        if step % 200 == 0:
            box.put(CommandResult(f"test#1.{step}", ResultState.APPLIED, "done", step))
        if step % 100 == 0:
            write_down(box)


def test_a_file_that_somebody_removed_becomes_a_gap_and_blocks_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    box = Outbox(tmp_path / ATTEMPT, RUN, ATTEMPT, 2**20, told.append)
    box.put(sample(1))
    assert oldest(box).sequence == 1
    for step in range(2, 1_001):
        box.put(sample(step))
    write_down(box)
    for file in (tmp_path / ATTEMPT).glob("*.jsonl"):
        file.unlink()
    box.put(sample(1_001))
    records = everything(box)
    steps = [s for r in records if isinstance(r, Samples) for s in r.steps]
    declared = sum(r.samples_lost for r in records if isinstance(r, Gap))
    assert steps[0] == 1
    assert declared == 1_001 - len(steps) > 0
    assert any("damaged on disk" in line for line in told)
    box.close()


def test_what_several_threads_could_not_put_is_counted_once_however_it_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the writer declares what it has seen of the losses, the loop goes on losing."""
    monkeypatch.setattr(spikeguard.uplink.outbox, "WAITING", 20)
    box = outbox(tmp_path, 2**30)
    box.start()

    def put(record: Record) -> None:
        for _ in range(3_000):
            box.put(record)

    target = TargetSaved("memory-1", 0, 1, 1, Medium.MEMORY)
    putters = [threading.Thread(target=put, args=(r,)) for r in (sample(1), sample(2), target)]
    for putter in putters:
        putter.start()
    for putter in putters:
        putter.join()
    records = everything(box)
    box.close()
    lost = sum(r.samples_lost for r in records if isinstance(r, Gap))
    kept = sum(len(r.steps) for r in records if isinstance(r, Samples))
    assert lost == box.dropped["samples"] > 0
    assert lost + kept == 6_000
    assert box.dropped["records"] + records.count(target) == 3_000


def test_without_a_disk_the_newest_messages_stay_in_memory(tmp_path: Path) -> None:
    """Every write fails after the first bytes: nothing is lost."""
    box = outbox(tmp_path)
    for step in range(1, 1_201):
        box.put(sample(step))
    with disk_full_at(200):
        write_down(box)
    assert on_disk(tmp_path) <= 200
    steps = [s for r in everything(box) if isinstance(r, Samples) for s in r.steps]
    assert steps == list(range(1, 1_201))
    box.close()


def left_behind(folder: Path) -> Path:
    """What a killed attempt leaves: one message, and its lock file."""
    box = outbox(folder)
    box.put(sample(1))
    oldest(box)
    box.close()
    return folder / ATTEMPT


@pytest.mark.parametrize("note", [b"\0" * 18, b"\xff\xfe", b"twelve", b""])
def test_a_lock_file_spoilt_by_a_power_loss_hinders_nobody(tmp_path: Path, note: bytes) -> None:
    (left_behind(tmp_path) / "lock").write_bytes(note)
    (found,) = earlier_outboxes(tmp_path, RUN)
    assert everything(found)[0] == sample(1)
    found.close()


def test_folders_and_files_that_are_not_ours_are_passed_over(tmp_path: Path) -> None:
    left = left_behind(tmp_path)
    (left / "000000000001.jsonl").write_text("{}")
    (left / "1-copy.jsonl").write_text("")
    (tmp_path / "backup of monday").mkdir()
    (tmp_path / "backup of monday" / "000000000001.jsonl").write_text("{}\n")
    (tmp_path / "fedcba9876543210").write_text("a file, no folder")
    (tmp_path / "aaaaaaaaaaaaaaaa").symlink_to(tmp_path / "nowhere")
    (found,) = earlier_outboxes(tmp_path, RUN)
    assert found.attempt == ATTEMPT
    found.close()
    assert (tmp_path / "backup of monday").exists()


def test_a_closed_outbox_writes_to_nobody_elses_file(tmp_path: Path) -> None:
    """A sender that outlived the end may still call; its file number belongs to the job by now."""
    box = outbox(tmp_path)
    box.put(sample(1))
    sequence = oldest(box).sequence
    box.close()
    model = tmp_path / "model.bin"
    handles = [os.open(model, os.O_RDWR | os.O_CREAT) for _ in range(8)]
    os.write(handles[0], b"weights of the finished run")
    box.put(sample(2))
    assert box.next_message() is None
    box.replace_by_gap(sequence, "422")
    box.declare_lost(1)
    box.acknowledge(sequence)
    box.close(ended=True)
    assert model.read_bytes() == b"weights of the finished run"
    for handle in handles:
        os.close(handle)
    (found,) = earlier_outboxes(tmp_path, RUN)
    assert everything(found)[0] == sample(1)
    found.close()


def test_a_record_that_cannot_be_made_is_declared_and_holds_up_nothing(tmp_path: Path) -> None:
    box = outbox(tmp_path)
    box.put(sample(1))
    box.put(lambda: Samples(0, (2,), {"no such name!": (1.0,)}, (None,)))
    box.put(sample(3))
    first, lost, last = everything(box)
    assert isinstance(lost, Gap)
    assert (lost.samples_lost, "no such name!" in lost.reason) == (1, True)
    assert (first, last) == (sample(1), sample(3))
    box.close()


@pytest.mark.parametrize("server", ["http://127.0.0.1:9", None])
def test_a_job_cuts_down_what_dead_attempts_left_of_its_run(
    tmp_path: Path, server: str | None
) -> None:
    parent = tmp_path / "guard/outbox"
    dead = outbox(parent, 200_000)
    fill(dead, spike=range(220, 225))
    dead.close()
    assert on_disk(parent) > 100_000
    job = Job(tmp_path, server=server, settings=replace(FAST, outbox_bytes=60_000)).train_to(5)
    await_that(lambda: on_disk(parent) <= 60_000 and "outbox" in job.guard.faults)
    job.guard.finish()
