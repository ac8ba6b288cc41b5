"""Columns travel as Postgres packs arrays, and mean there what they meant here."""

from __future__ import annotations

import math

import sqlalchemy as sql
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spikeguard_server.store.packing import floats, whole_numbers
from spikeguard_server.store.pipeline import ask
from tests.server.store.jobs import same_number

ECHO = "SELECT %(sent)s"
STEPS = st.integers(min_value=-(2**53), max_value=2**53)
EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@EXAMPLES
@given(column=st.lists(st.none() | st.floats(), max_size=20))
def test_every_float_and_every_missing_one_comes_back(
    engine: sql.Engine, column: list[float | None]
) -> None:
    with engine.connect() as connection:
        ((back,),) = ask(connection, (ECHO, {"sent": floats(column)}))[0]
    assert len(back) == len(column)
    for left, right in zip(back, column, strict=True):
        assert same_number(left, right)
        if left == 0.0 and right is not None:
            assert math.copysign(1.0, left) == math.copysign(1.0, right)


@EXAMPLES
@given(column=st.lists(st.none() | STEPS, max_size=20))
def test_every_whole_number_and_every_missing_one_comes_back(
    engine: sql.Engine, column: list[int | None]
) -> None:
    with engine.connect() as connection:
        ((back,),) = ask(connection, (ECHO, {"sent": whole_numbers(column)}))[0]
    assert back == column
