"""The Python client against a live server, and its shapes against the OpenAPI document."""

from __future__ import annotations

import json
import math
import socket
from typing import Any

import pytest

from spikeguard_client import ApiError, Client, shapes
from spikeguard_client.calls import read


def test_words_for_floats_become_floats_and_nothing_else_does() -> None:
    plain = {"step": 3, "signal": "nan", "value": "inf", "z": 4}
    found = read(shapes.Precursor, json.dumps(plain).encode())
    assert (found["signal"], found["value"], found["z"]) == ("nan", math.inf, 4.0)
    for change in ({"value": "tall"}, {"step": 3.5}, {"signal": None}):
        with pytest.raises(ApiError, match="not in the form"):
            read(shapes.Precursor, json.dumps({**plain, **change}).encode())
    entry: dict[str, Any] = dict.fromkeys(shapes.AuditEntry.__required_keys__)
    entry |= {"number": 1, "at": "", "actor": "", "action": "", "subject": ""}
    with pytest.raises(ApiError, match=r"Expected `array`, got `null` - at `\$.changes`"):
        read(shapes.AuditEntry, json.dumps({**entry, "changes": None}).encode())
    with pytest.raises(ApiError, match="missing required field `z`"):
        read(shapes.Precursor, b'{"step": 3, "signal": "loss", "value": 1.0}')


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ApiError) as refused:
        Client(f"http://127.0.0.1:{port}", "x").me()
    assert refused.value.code == "unreachable"


def test_a_server_that_says_nothing_is_given_up_on_after_the_calls_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ApiError) as refused:
            Client(f"http://127.0.0.1:{port}", "x", timeout_s=0.3).me()
    assert refused.value.code == "timeout"
