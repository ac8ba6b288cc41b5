"""The newest norms by layer stay on the host until the server watches closely, and go out once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from spikeguard import Settings
from spikeguard.measure.flight_recorder import FlightRecorder
from spikeguard.measure.readback import Pending, Row
from spikeguard_protocol import LayerNorms

from .text_job import TextJob
from .wire import Wire, await_that, served

GRAD, ACTIVATION = "grad_norm", "activation_norm"


def steps_of(wire: Wire, signal: str) -> list[int]:
    """In the order of arrival."""
    return [r.step for r in wire.records(LayerNorms) if r.signal == signal]


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
    """Of every second step, six are kept; two times of attention; what is sent at its cadence is
    never kept."""
    with served(Wire()) as wire:
        job = TextJob(
            tmp_path,
            server=wire.url,
            flight_recorder=6,
            slow_signals_every=2,
            activation_layers=("blocks.?",),
            sampled_signals_every=5,
        )
        job.train_to(17)
        arrived(wire, 17)
        assert steps_of(wire, GRAD) == []
        assert steps_of(wire, ACTIVATION) == [5, 10, 15]
        watch(wire, job, True)  # taken up at the end of step 18
        job.train_to(20)
        watch(wire, job, False)  # and this at the end of step 21
        job.train_to(30)
        arrived(wire, 30)
        assert steps_of(wire, GRAD) == [*range(7, 19, 2), 19, 20, 21]
        watch(wire, job, True)
        job.train_to(33)
        watch(wire, job, False)
        job.guard.finish()
        assert job.guard.faults == {}
        seen = set(wire.column("loss"))
        told = {signal: steps_of(wire, signal) for signal in (GRAD, ACTIVATION)}
        details = wire.records(LayerNorms)
    assert told[GRAD] == [*range(7, 19, 2), 19, 20, 21, *range(23, 31, 2), 31, 32, 33, 34]
    assert sorted(told[ACTIVATION]) == [5, 10, 15, 20, 21, 22, 25, 30, 33, 34]
    assert {(d.segment, d.step) for d in details} <= seen
    assert all(
        d.norms.keys() == details[-1].norms.keys() for d in details if d.signal == ACTIVATION
    )
    assert all(norm > 0.0 for d in details for norm in d.norms.values())


def test_without_an_incident_nothing_of_it_leaves_the_host(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = TextJob(tmp_path, server=wire.url, flight_recorder=6)
        job.train_to(12)
        job.guard.finish()
        assert wire.records(LayerNorms) == []


def a_row(step: int, layers: int) -> Row:
    names = tuple(f"blocks.{n}.weight" for n in range(layers))
    norms = Pending(names, torch.ones(layers), None)
    return Row(step, 0, step, time.monotonic(), None, None, {}, {}, norms)


@pytest.mark.parametrize("steps", [0, 3])
def test_norms_at_their_cadence_are_sent_at_once_with_and_without_a_recorder(steps: int) -> None:
    recorder = FlightRecorder(Settings(flight_recorder=steps, layer_norms_every=5))
    sent = [d.step for step in (5, 10) for d in recorder.pass_on(a_row(step, 2), False)]
    assert sent == [5, 10]
