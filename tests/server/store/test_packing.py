"""Columns travel as Postgres packs arrays, and mean there what they meant here."""

from __future__ import annotations

import math

import sqlalchemy as sql
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spikeguard_server.store.fast.packing import floats, whole_numbers
from spikeguard_server.store.fast.pipeline import FLOATS, INTS, ask, statement
from tests.server.store.jobs import same_number

_FLOATS = statement("test floats", "SELECT %(sent)s", {"sent": FLOATS})
_WHOLE = statement("test whole", "SELECT %(sent)s", {"sent": INTS})
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
        ((back,),) = ask(connection, (_FLOATS, {"sent": floats(column)}))[0]
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
        ((back,),) = ask(connection, (_WHOLE, {"sent": whole_numbers(column)}))[0]
    assert back == column
