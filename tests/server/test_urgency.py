"""What waits is ordered by the look of its newest loss; nothing is decided by it."""

from __future__ import annotations

import math
import time
from random import Random

from benchmarks.ingest_load import new_run
from spikeguard_protocol import Samples
from spikeguard_server.ingest.queue.urgency import MOST_RUNS, REST_S, WINDOW, Urgency, newest_loss


def body(*losses: float | None) -> bytes:
    """A message as an agent sends it."""
    run = new_run("run", 0)
    samples = run.samples(len(losses))
    return run.message(
        Samples(0, samples.steps, {**samples.signals, "loss": losses}, samples.positions)
    )


def calm(urgency: Urgency, run: str, seed: int = 0, count: int = 4 * WINDOW) -> int:
    """Messages of a calm run that were taken for urgent."""
    random = Random(seed)
    return sum(urgency.of(run, body(random.gauss(2.5, 0.02)), 10.0 * n) for n in range(count))


def test_a_loss_that_jumps_or_is_lost_is_urgent() -> None:
    for spike in (3.0, math.nan, math.inf):
        urgency = Urgency()
        calm(urgency, "run")
        assert urgency.of("run", body(2.5, spike), 1e6)


def test_a_calm_run_hardly_ever_is() -> None:
    assert sum(calm(Urgency(), "run", seed, 500) for seed in range(10)) <= 20


def test_a_run_that_has_diverged_is_urgent_once_in_a_while() -> None:
    urgency = Urgency()
    taken = [urgency.of("run", body(math.nan), 0.1 * n) for n in range(100)]
    assert sum(taken) == round(10.0 / REST_S)


def test_what_cannot_be_read_is_not_urgent() -> None:
    assert newest_loss(body(None)) is None
    for strange in (b"", b"{}", b'{"loss":[]}', b'{"loss":["much"]}', b"\xff"):
        assert newest_loss(strange) is None
        assert not Urgency().of("run", strange, 0.0)


def test_bytes_that_look_like_losses_without_an_end_cost_no_more_than_others() -> None:
    """It is looked for where every other call waits, in what nobody has checked."""
    began = time.process_time()
    for strange in (b'"loss":[' * 125_000, b'"loss":[' + b"9" * 1_000_000 + b"]"):
        newest_loss(strange)
    assert time.process_time() - began < 1.0  # some milliseconds; it took hours


def test_of_many_runs_those_that_sent_last_are_remembered() -> None:
    urgency = Urgency()
    for number in range(2 * MOST_RUNS):
        urgency.of(number, b'"loss":[2.5]', 0.0)
    assert len(urgency._runs) == MOST_RUNS
