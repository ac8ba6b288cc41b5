"""What a step consumed, one step and many."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from spikeguard_protocol import BatchRange, EvenRanges, ProtocolError


@pytest.mark.parametrize("ends", [(5, 5), (5, 4), (-1, 4)])
def test_an_empty_range_cannot_be_made(ends: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError):
        BatchRange(*ends)


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 40), st.data())
def test_even_ranges_are_the_ranges_that_they_stand_for(
    first: int, size: int, length: int, data: st.DataObject
) -> None:
    ranges = [BatchRange(at, at + size) for at in range(first, first + length * size, size)]
    even = EvenRanges.of(ranges)
    assert even == EvenRanges(first, size, length)
    assert list(even) == ranges
    assert [even[row] for row in range(-length, length)] == ranges + ranges
    begin, end = data.draw(st.integers(-50, 50)), data.draw(st.integers(-50, 50))
    assert list(even[begin:end]) == ranges[begin:end]
    assert list(even[begin:end:2]) == ranges[begin:end:2]


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [None, BatchRange(1, 2)],
        [BatchRange(1, 2), None],
        [BatchRange(1, 2), BatchRange(3, 4)],
        [BatchRange(1, 2), BatchRange(2, 4)],
        [BatchRange(4, 5), BatchRange(3, 4)],
    ],
)
def test_what_is_not_even_is_not_told_as_if_it_were(ranges: list[BatchRange | None]) -> None:
    assert EvenRanges.of(ranges) is None


@pytest.mark.parametrize(
    ("field", "numbers"),
    [("first", (-1, 1, 1)), ("size", (0, 0, 1)), ("length", (0, 1, -1)), ("length", (0, 2, 2**53))],
)
def test_ranges_that_no_run_has_cannot_be_made(field: str, numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError, match=field):
        EvenRanges(*numbers)
