"""What is kept of an incident after its end, with what may have started it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sql

from spikeguard_core.lifecycle.incident import AFTERMATH_STEPS, Incident, aftermath_of
from spikeguard_protocol import (
    AttemptEnded,
    BatchRange,
    Cause,
    CommandId,
    IncidentId,
    LayerNorms,
    Record,
    ResultState,
    RunId,
    Samples,
)
from spikeguard_server.ingest.decisions import decide
from spikeguard_server.ingest.timeouts import let_time_pass
from spikeguard_server.jobs.postmortems import draw_postmortem
from spikeguard_server.settings import Settings
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.samples import kept_curves
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import Job, columns, drawn, execute, healthy, spiking, value
from tests.server.store.test_commands import ONSET, state_of, waiting

SETTINGS = Settings()
REPORTED = "select reported_at from incidents"


def recovered(engine: sql.Engine) -> tuple[Job, CommandId, int]:
    """A job whose incident closed after a rollback, and the step until which it is followed."""
    job, command, revision = waiting(engine)
    decide(engine, command, "approve", revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    job.roll_back(str(command), 300, at_step=570, position=300)
    job.train(301, 700, segment=1, shift=20, batch=50)
    assert value(engine, "select state from incidents") == "closed"
    peak = int(value(engine, "select record->>'peak_step' from incidents"))
    return job, command, peak + AFTERMATH_STEPS


def report(engine: sql.Engine) -> tuple[dict[str, object], str]:
    text = " ".join(drawn(engine).decode().split())
    return json.loads(drawn(engine, "json"))["symptoms"], text


def test_the_post_mortem_says_not_yet_and_is_written_once_more_with_the_loss_500_steps_later(
    spiked: sql.Engine,
) -> None:
    job, _, until = recovered(spiked)
    symptoms, text = report(spiked)
    assert symptoms["later_loss"] is None
    assert "not yet" in text
    at_the_close = value(spiked, REPORTED)
    job.train(701, until - 1, segment=1, shift=20, batch=50)
    assert value(spiked, REPORTED) == at_the_close
    job.train(until, until + 60, segment=1, shift=20, batch=50)
    assert (with_the_last := value(spiked, REPORTED)) > at_the_close
    kept = "select max(step) from incident_samples where segment = 1"
    assert value(spiked, kept) == until
    symptoms, text = report(spiked)
    told = until - AFTERMATH_STEPS + aftermath_of(ONSET)  # no later than the trend is known for
    assert symptoms["later_step"] == told
    assert symptoms["later_loss"] == pytest.approx(healthy(told), abs=0.05)
    assert "not yet" not in text
    assert value(spiked, "select followed_to from runs") is None
    job.train(until + 61, until + 100, segment=1, shift=20, batch=50)
    assert value(spiked, REPORTED) == with_the_last
    assert value(spiked, kept) == until


def told(steps: Sequence[int], values: Sequence[float | None]) -> dict[int, float]:
    """By step, what was measured."""
    return {s: v for s, v in zip(steps, values, strict=True) if v is not None}


def test_a_post_mortem_has_every_sample_with_signals_of_the_jobs_own(engine: sql.Engine) -> None:
    job = Job(engine).start()
    sent = dict[str, dict[int, float]]()
    for first in range(1, 200, 40):
        steps = range(first, first + 40)
        part = columns(steps, spiking(121))
        own = {
            "mine": tuple(float(s) if s % 3 else None for s in steps),
            f"part.{first % 3}": tuple(math.nan if s % 5 else -float(s) for s in steps),
        }
        job.send(replace(part, signals={**part.signals, **own}))
        for name, column in {**part.signals, **own}.items():
            sent.setdefault(name, {}).update(told(steps, column))
    with engine.connect() as connection:
        ((_, kept),) = kept_curves(connection, run_key(RunId("default", "gpt")), 1)
    assert kept.steps.tolist() == list(range(1, 201))
    shown = {name: told(kept.steps.tolist(), c.list()) for name, c in kept.signals.items()}
    assert repr(sorted(shown.items())) == repr(sorted(sent.items()))


def test_a_post_mortem_that_is_drawn_again_says_the_same_though_the_run_went_on(
    spiked: sql.Engine,
) -> None:
    job, _, until = recovered(spiked)
    job.train(701, until + 60, segment=1, shift=20, batch=50)
    first = drawn(spiked, "html")
    job.train(until + 61, until + 80, spiking(until + 61), segment=1, shift=20, batch=50)
    draw_postmortem.cache_clear()
    assert drawn(spiked, "html") == first


def test_a_run_that_crashed_is_waited_for_until_it_counts_as_ended(spiked: sql.Engine) -> None:
    job, _, _ = recovered(spiked)
    job.send(AttemptEnded("RuntimeError"))
    assert value(spiked, "select followed_to from runs") is not None
    later = datetime.now(UTC) + timedelta(seconds=SETTINGS.ended_after_s + 1)
    with spiked.begin() as connection:
        let_time_pass(connection, run_key(job.message(sequence=1).run_id), SETTINGS, later)
    assert value(spiked, "select followed_to from runs") is None
    assert value(spiked, "select followed_to from incidents") is None


def test_a_result_that_comes_after_the_close_is_judged_and_reported(spiked: sql.Engine) -> None:
    job, command, revision = waiting(spiked)
    decide(spiked, command, "approve", revision, "Ada")
    job.train(561, 570, spiking(ONSET))
    # the detector's word, which a healing loss would take long
    closed = "update incidents set state = 'closed', outcome = 'healed', closed_at = now()"
    execute(spiked, "update runs set open_incident = null", closed)
    job.report(str(command), ResultState.APPLIED, 570)
    assert state_of(spiked, command) == "judged"
    judgement = f"select judgement from commands where number = {command.number}"
    assert "ended as healed" in str(value(spiked, judgement))
    assert value(spiked, REPORTED) is not None
    _, text = report(spiked)
    assert "carried out at step 570" in text


LAYERS = [f"blocks.{number}.weight" for number in range(12)]
FAULTY = "blocks.7.weight"
BEGAN = 301


def samples(first: int, last: int, jumps: dict[int, float] | None = None) -> Samples:
    """A calm run with every norm at every step, whose loss jumps at the steps of `jumps`."""
    steps = tuple(range(first, last + 1))
    noise, up = {s: 1 + 0.03 * random.Random(-s).gauss(0, 1) for s in steps}, jumps or {}
    signals = {
        "loss": tuple(healthy(s) + up.get(s, 0.0) for s in steps),
        "grad_norm": tuple(noise[s] * (20.0 if s in up else 1.0) for s in steps),
        "update_norm": tuple(30.0 * noise[s] for s in steps),
        "param_norm": tuple(50.0 + 0.01 * s for s in steps),
        "lr": tuple(3e-3 for _ in steps),
    }
    return Samples(0, steps, signals, tuple(BatchRange(s - 1, s) for s in steps))


def layers(step: int, **ratios: float) -> LayerNorms:
    """Gradient norms by layer; `ratios`: how far one is from its usual norm."""
    usual = {name: 0.5 + 0.01 * random.Random(f"{name}{step}").random() for name in LAYERS}
    return LayerNorms(0, step, "grad_norm", {n: u * ratios.get(n, 1.0) for n, u in usual.items()})


def incident(engine: sql.Engine, job: Job) -> Incident:
    with engine.connect() as connection:
        which = IncidentId(job.message(sequence=1).run_id, 1)
        return read_incident(connection, which).incident


def calm(engine: sql.Engine) -> Job:
    job = Job(engine).start()
    for first in range(1, BEGAN, 20):
        every = range(first, first + 20, 4)
        job.send(samples(first, first + 19), *(layers(step) for step in every))
    return job


@pytest.mark.parametrize("with_layers", [True, False])
def test_one_layer_that_moved_before_the_loss_is_named(
    engine: sql.Engine, with_layers: bool
) -> None:
    job = calm(engine)
    lasting = dict.fromkeys(range(BEGAN, BEGAN + 60), 4.0)
    told: list[Record] = [layers(BEGAN - 2, **{FAULTY: 40.0})] if with_layers else []
    job.send(samples(BEGAN, BEGAN + 9, lasting), *told)
    job.send(samples(BEGAN + 10, BEGAN + 59, lasting))
    found = incident(engine, job)
    if not with_layers:
        assert found.first_layer is None
        assert found.causes[0].cause is not Cause.LAYER_FAULT
        return
    first = found.first_layer
    assert first is not None
    assert (first.layer, first.step, first.ahead) == (FAULTY, BEGAN - 2, 2)
    assert (first.moved, first.known) == (1, len(LAYERS))
    assert found.causes[0].cause is Cause.LAYER_FAULT
    assert FAULTY in found.causes[0].reasons[0]
