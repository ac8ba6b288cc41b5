"""What may have started an incident is stored with it, with the layer that moved first."""

from __future__ import annotations

import random

import pytest
import sqlalchemy as sql

from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import BatchRange, Cause, LayerNorms, Record, Samples
from spikeguard_server.store.incidents import find_incident
from spikeguard_server.store.tables.core import run_key
from tests.server.store.jobs import Job, healthy

LAYERS = [f"blocks.{number}.weight" for number in range(12)]
FAULTY = "blocks.7.weight"
ONSET = 301


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
        run_id = run_key(job.message(sequence=1).run_id)
        found = find_incident(connection, run_id, 1)
    assert found is not None
    return found


def calm(engine: sql.Engine) -> Job:
    job = Job(engine)
    job.start()
    for first in range(1, ONSET, 20):
        every = range(first, first + 20, 4)
        job.send(samples(first, first + 19), *(layers(step) for step in every))
    return job


@pytest.mark.parametrize("with_layers", [True, False])
def test_one_layer_that_moved_before_the_loss_is_named(
    engine: sql.Engine, with_layers: bool
) -> None:
    job = calm(engine)
    lasting = dict.fromkeys(range(ONSET, ONSET + 60), 4.0)
    told: list[Record] = [layers(ONSET - 2, **{FAULTY: 40.0})] if with_layers else []
    job.send(samples(ONSET, ONSET + 9, lasting), *told)
    job.send(samples(ONSET + 10, ONSET + 59, lasting))
    found = incident(engine, job)
    if not with_layers:
        assert found.first_layer is None
        assert found.causes[0].cause is not Cause.LAYER_FAULT
        return
    first = found.first_layer
    assert first is not None
    assert (first.layer, first.step, first.ahead) == (FAULTY, ONSET - 2, 2)
    assert (first.moved, first.known) == (1, len(LAYERS))
    assert found.causes[0].cause is Cause.LAYER_FAULT
    assert FAULTY in found.causes[0].reasons[0]
