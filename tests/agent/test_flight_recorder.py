"""The newest norms by layer stay on the host until the server watches closely, and go out once."""

from __future__ import annotations

from pathlib import Path

from spikeguard_protocol import LayerNorms

from .text_job import TextJob
from .wire import Wire, await_that, served


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
