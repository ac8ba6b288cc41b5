"""How many signals of its own a run has: of a record beyond that the rest is stored."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sql

from spikeguard_protocol import Samples
from tests.server.store.jobs import Job, columns, rows, spiking, value

TOLD = "select reason from audit where action = 'signals.left_out'"


def named(step: int, names: list[str]) -> Samples:
    plain = columns([step], spiking(301))
    return replace(plain, signals={**plain.signals, **dict.fromkeys(names, (1.0,))})


def stored_names(engine: sql.Engine) -> set[str]:
    found = rows(engine, "select distinct unnest(extra_names) from samples where step > 300")
    return {name for (name,) in found}


def test_names_that_differ_at_each_step_are_left_out_beyond_the_most_and_that_is_told_once(
    engine: sql.Engine,
) -> None:
    """A table of them would grow by names times steps: 1 MB of messages took 2.7 GB."""
    job = Job(engine, monitors=None)
    job.start()
    job.train(1, 300)
    for step in range(301, 341):
        job.send(named(step, ["router_entropy", *(f"s{step}_{n}" for n in range(49))]))
    names = stored_names(engine)
    assert len(names) == 128
    assert "router_entropy" in names
    assert value(engine, "select count(*) from samples where step > 300 and loss is not null") == 40
    steps = "select count(*) from samples where 'router_entropy' = any(extra_names)"
    assert value(engine, steps) == 40
    ((reason,),) = rows(engine, TOLD)
    assert "128 signals of its own" in reason
    assert "log under names that stay the same" in reason
