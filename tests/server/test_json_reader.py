"""The quick reader of JSON understands what the standard library does, and nothing else."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from spikeguard_protocol import plain_json
from spikeguard_server.http.routes.messages import read_json

EXAMPLES = 100
DEEP = 100_000  # beyond what either reader goes into
NUMBERS = st.one_of(
    st.integers(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)
ODD = (
    b"-0", b"-0.0", b"1E+400", b"1e-400", b"4.9e-324", b"1" * 400, b"NaN", b"-Infinity", b"01",
    b"1.", b".5", b"+1", b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\t"', b'"\\x"', b'{"a":1,"a":2}',
    b'{"a":1,}', b"[1,]", b"", b"\xff", b"\xef\xbb\xbf{}", '"é"'.encode("utf-16"), b'{"a":',
    b"18446744073709551616", b"[" * DEEP, b"[" * DEEP + b"]" * DEEP,
)  # fmt: skip


def understood(read: Any, body: bytes) -> str:
    """What comes of it, told so that a zero's sign and a number's type are seen too."""
    try:
        return _shown(read(body))
    except (ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return value.hex() if math.isfinite(value) else repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key!r}:{_shown(inner)}' for key, inner in value.items())}}}"
    return repr(value)


@settings(max_examples=EXAMPLES)
@given(VALUES, st.booleans())
def test_what_is_written_is_read_the_same(value: Any, spaced: bool) -> None:
    body = json.dumps(value, indent=1 if spaced else None, ensure_ascii=spaced)
    encoded = body.encode("utf-8", "surrogatepass")
    assert understood(read_json, encoded) == understood(plain_json, encoded)


@settings(max_examples=EXAMPLES)
@given(VALUES, st.integers(0), st.binary(max_size=2))
def test_what_is_damaged_is_read_or_refused_the_same(value: Any, at: int, put: bytes) -> None:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    damaged = body[: at % (len(body) + 1)] + put + body[at % (len(body) + 1) + 1 :]
    assert understood(read_json, damaged) == understood(plain_json, damaged)


@pytest.mark.parametrize("body", ODD, ids=lambda body: str(body[:24]))
def test_what_is_odd_is_read_or_refused_the_same(body: bytes) -> None:
    assert understood(read_json, body) == understood(plain_json, body)
