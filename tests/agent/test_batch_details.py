"""What lies in batches and layers leaves the host only while the server watches."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from spikeguard.measure.batch_ring import WINDOW, BatchRing
from spikeguard.uplink.batch_reporter import reference_of, worst_of
from spikeguard_protocol import BatchDetail, LayerNorms
from spikeguard_trainer.data import Batch

from .text_job import ROWS, TextJob
from .wire import Wire, await_that, served

pytestmark = pytest.mark.slow  # it waits for a server

SICK, SOON = 60, 20  # their batch holds random bytes


def text_of(ids: list[int]) -> str:
    return bytes(ids).decode("latin-1")


def details(
    tmp_path: Path, sick: int = SOON, **chosen: Any
) -> tuple[dict[int, BatchDetail], TextJob]:
    """By step, of a job whose batch of step `sick` is bad, watched from a few steps later on."""
    with served(Wire()) as wire:
        fault = f"bad_batch@{sick}:1:0.5"
        job = TextJob(tmp_path, fault, server=wire.url, micro_batches=2, **chosen)
        job.train_to(sick + 2)
        arrived(wire, sick + 2)
        assert wire.records(BatchDetail) == []
        watch(wire, job, True)
        job.train_to(sick + 6)
        job.guard.finish()
        return {detail.step: detail for detail in wire.records(BatchDetail)}, job


def test_the_batch_of_a_spike_is_told_with_names_worst_sequence_text_and_tokens(
    tmp_path: Path,
) -> None:
    def name(batch: Batch) -> list[str]:
        return [f"document {batch.position}", f"part {int(batch.completes_step)}"]

    told, job = details(tmp_path, SICK, name_batch=name, decode=text_of)
    assert job.guard.faults == {}
    assert sorted(told) == list(range(SICK + 6 - 50, SICK + 7))[-len(told) :]
    sick, calm = told[SICK], told[SICK - 3]
    both = job.seen[SICK - 1]
    losses = torch.cat([job.losses(batch).detach().mean(1) for batch in both])
    rows = torch.cat([batch.tokens for batch in both])
    assert (sick.rank, sick.position, sick.sequences) == (0, SICK - 1, ROWS)
    assert sick.names == ("document 59", "part 0", "document 59", "part 1")
    assert sick.worst is not None
    assert sick.sequence_loss is not None
    assert sick.sequence_loss > 1.5 * float(losses.median())
    assert sick.snippet == text_of(rows[sick.worst].tolist())[:256]
    unusual, usual = sick.histogram, calm.histogram
    assert unusual is not None
    assert usual is not None
    assert unusual.counted == rows.numel()
    assert 0 < unusual.before <= 2 * WINDOW
    assert unusual.before_last < SICK
    assert sum(unusual.bins) == pytest.approx(1.0) == pytest.approx(sum(unusual.bins_before))
    assert unusual.bins[0] > 0.1 > usual.bins[0]  # bytes that no text has
    assert unusual.texts == tuple(text_of([id]) for id in unusual.ids)


def test_no_text_leaves_a_job_that_gives_no_decoder_or_forbids_it(tmp_path: Path) -> None:
    silent, _ = details(tmp_path / "none", SICK)
    forbidden, _ = details(tmp_path / "off", SICK, decode=text_of, batch_text=False)
    for told in (silent, forbidden):
        assert told[SICK].histogram is not None
        assert all(
            d.snippet is None and not d.histogram.texts for d in told.values() if d.histogram
        )


def leaves(_: list[int]) -> str:
    raise SystemExit("a tokenizer of the job's own, out of memory")


@pytest.mark.parametrize("fails", [lambda _: 1 / 0, lambda ids: ids, leaves])
def test_a_decoder_or_namer_that_fails_is_counted_and_the_rest_is_told(
    tmp_path: Path, fails: Any
) -> None:
    told, job = details(tmp_path, decode=fails, name_batch=lambda batch: batch.nothing)
    assert job.guard.faults.keys() == {"decode", "name_batch"}
    assert told[SOON].snippet is None
    assert told[SOON].names == ()
    assert told[SOON].sequence_loss is not None


def test_a_decoder_that_hangs_delays_no_step_and_no_sample(tmp_path: Path) -> None:
    released = threading.Event()

    def hangs(_: list[int]) -> str:
        released.wait()
        return ""

    told, _job = details(tmp_path, decode=hangs)
    released.set()
    assert told == {}


def ring_of(steps: int, rows: list[list[int]]) -> BatchRing:
    ring = BatchRing(steps)
    for step, ids in enumerate(rows, start=1):
        ring.show_tokens(torch.tensor([ids]))
        ring.close(0, step, step - 1)
    return ring


def test_without_losses_the_worst_sequence_is_the_one_with_the_rarest_tokens() -> None:
    ring = ring_of(1, [[1, 2, 3, 4]] * 4)
    ring.show_tokens(torch.tensor([[1, 2, 3, 4], [1, 2, 77, 78]]))
    ring.close(0, 5, 4)
    reference = reference_of(ring.before())
    (batch,) = ring.take(5)
    worst = worst_of(batch, reference)
    assert worst is not None
    assert (worst.place, worst.loss, worst.ids) == (1, None, [1, 2, 77, 78])


def test_rank_0_tells_of_the_rank_with_the_highest_loss_alone(tmp_path: Path) -> None:
    """Two ranks of threads are none; their files are what passes between them."""
    from spikeguard.faults import Faults
    from spikeguard.uplink.batch_reporter import BatchReporter

    told: list[Any] = []
    tellings = []
    for rank, put in ((0, told.append), (1, None)):
        ring = BatchRing(4)
        faults = Faults(rank)
        telling = BatchReporter(ring, tmp_path, rank, "a" * 16, put, faults, decode=text_of)
        tellings.append((ring, telling))
    for step, worst in ((1, 0), (2, 1), (3, 1)):
        for rank, (ring, telling) in enumerate(tellings):
            ring.show_tokens(torch.tensor([[65 + rank, 66]]))
            ring.show_losses(torch.tensor([1.0 + rank]))
            ring.close(0, step, step - 1)
            telling.pass_on(step, worst, step > 1)
    for _, telling in reversed(tellings):
        telling.close(5.0)
    assert [(d.step, d.rank, d.snippet) for d in sorted(told, key=lambda d: (d.step, d.rank))] == [
        (1, 0, "AB"),
        (2, 1, "BB"),
        (3, 1, "BB"),
    ]
    lines = (tmp_path / "batches/rank-00001.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["detail"]["step"] for line in lines] == [2, 3]


def steps_of(wire: Wire) -> list[int]:
    """In the order of arrival."""
    return [r.step for r in wire.records(LayerNorms)]


def watch(wire: Wire, job: TextJob, wanted: bool) -> None:
    """The server's next answers say so, and the loop has taken it up."""
    wire.attentive = wanted
    await_that(lambda: job.guard.state().attentive is wanted)
    job.train_step()


def arrived(wire: Wire, step: int) -> None:
    await_that(lambda: (0, step) in wire.column("loss"))


def test_detail_goes_out_once_when_the_server_watches_and_follows_while_it_does(
    tmp_path: Path,
) -> None:
    """Of every second step, six are kept; two times of attention."""
    with served(Wire()) as wire:
        job = TextJob(tmp_path, server=wire.url, flight_recorder=6, slow_signals_every=2)
        job.train_to(17)
        arrived(wire, 17)
        assert steps_of(wire) == []
        watch(wire, job, True)  # taken up at the end of step 18
        job.train_to(20)
        watch(wire, job, False)  # and this at the end of step 21
        job.train_to(30)
        arrived(wire, 30)
        assert steps_of(wire) == [*range(7, 19, 2), 19, 20, 21]
        watch(wire, job, True)
        job.train_to(33)
        watch(wire, job, False)
        job.guard.finish()
        assert job.guard.faults == {}
        seen = set(wire.column("loss"))
        told, details = steps_of(wire), wire.records(LayerNorms)
    assert told == [*range(7, 19, 2), 19, 20, 21, *range(23, 31, 2), 31, 32, 33, 34]
    assert {(d.segment, d.step) for d in details} <= seen
    assert all(norm > 0.0 for d in details for norm in d.norms.values())


def test_without_an_incident_nothing_of_it_leaves_the_host(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = TextJob(tmp_path, server=wire.url, flight_recorder=6)
        job.train_to(12)
        job.guard.finish()
        assert wire.records(LayerNorms) == []
