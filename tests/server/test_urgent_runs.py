"""What waits is ordered by the look of its newest loss; nothing is decided by it."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from random import Random

from benchmarks.ingest_load import new_run
from spikeguard_protocol import Samples
from spikeguard_server.http.json_reader import LONGEST, Envelope, read_envelope
from spikeguard_server.ingest.fair_queue import MOST_RUNS, REST_S, WINDOW, UrgentRuns


def body(*losses: float | None) -> bytes:
    """A message as an agent sends it."""
    run = new_run("run", 0)
    samples = run.samples(len(losses))
    return run.message(
        Samples(0, samples.steps, {**samples.signals, "loss": losses}, samples.positions)
    )


def loss_of(sent: bytes) -> float | None:
    found = read_envelope(sent)
    assert found is not None
    return found.loss


def calm(urgency: UrgentRuns, run: str, seed: int = 0, count: int = 4 * WINDOW) -> int:
    """Messages of a calm run that were taken for urgent."""
    random = Random(seed)
    return sum(
        urgency.of(run, loss_of(body(random.gauss(2.5, 0.02))), 10.0 * n) for n in range(count)
    )


def test_a_loss_that_jumps_or_is_lost_is_urgent() -> None:
    for spike in (3.0, math.nan, math.inf):
        urgency = UrgentRuns()
        calm(urgency, "run")
        assert urgency.of("run", loss_of(body(2.5, spike)), 1e6)


def test_a_calm_run_hardly_ever_is() -> None:
    assert sum(calm(UrgentRuns(), "run", seed, 500) for seed in range(10)) <= 20


def test_a_run_that_has_diverged_is_urgent_once_in_a_while() -> None:
    urgency = UrgentRuns()
    taken = [urgency.of("run", loss_of(body(math.nan)), 0.1 * n) for n in range(100)]
    assert sum(taken) == round(10.0 / REST_S)


def test_what_cannot_be_read_is_not_urgent() -> None:
    assert read_envelope(body(None)) == Envelope(("default", "run-0"), None)
    for strange in ("{}", '{"loss":[]}', '{"project":1,"run":"r"}', "[" * 100_000, "", "nul"):
        assert read_envelope(strange.encode()) is None
    assert read_envelope(b"\xff") is None
    for name in ("../x", "", "x\n", "x" * 65):
        assert read_envelope(json.dumps({"project": "p", "run": name}).encode()) is None
    word = b'{"project":"p","run":"r","records":[{"signals":{"loss":["much"]}}]}'
    assert read_envelope(word) == Envelope(("p", "r"), None)
    assert not UrgentRuns().of("run", None, 0.0)


def test_whose_message_it_is_does_not_hang_on_how_it_is_written() -> None:
    """Spaces, another order, an unknown field: another client than ours writes as JSON allows."""
    written = (
        b'{ "records" : [], "sequence": 1, "more": {"deep": [1]}, "run":"r", "project" : "p" }'
    )
    assert read_envelope(written) == Envelope(("p", "r"), None)


def test_to_look_at_a_large_message_costs_little_time_and_memory() -> None:
    """It is looked at where every other call waits, in what nobody has checked."""
    head, losses = b'{"project":"p","run":"r",', b'"records":[{"signals":{"loss":['
    junk = head + b'"junk":[' + b"[]," * (LONGEST // 4) + b"1]}"
    tracemalloc.start()
    assert read_envelope(junk) is not None
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    began = time.process_time()
    for strange in (junk, head + losses + b"1," * (LONGEST // 3), b'"loss":[' * 500_000):
        for _ in range(20):
            read_envelope(strange)
    assert time.process_time() - began < 1.0  # of 60 looks


def test_of_many_runs_those_that_sent_last_are_remembered() -> None:
    urgency = UrgentRuns()
    for number in range(2 * MOST_RUNS):
        urgency.of(number, 2.5, 0.0)
    assert len(urgency._runs) == MOST_RUNS
