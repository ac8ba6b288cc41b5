"""What agents are answered, however bad their message is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from spikeguard_protocol import MAX_BYTES, Role, decode_ack, to_json

if TYPE_CHECKING:
    import httpx

    from tests.server.face.conftest import Job, Live


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which has the one shape."""
    body = answer.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() >= {"code", "field", "message", "remedy"}
    assert error["message"]
    assert error["remedy"]
    return error


def plain(job: Job) -> dict[str, Any]:
    """A heartbeat of `job` as JSON."""
    body: dict[str, Any] = to_json(job.message())
    return body


def test_an_unknown_version_is_told_which_ones_are_spoken(job: Job) -> None:
    answer = job.post(json.dumps({**plain(job), "version": 99}).encode())
    assert answer.status_code == 400
    assert error_of(answer)["supported"] == [1]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000])
def test_what_is_no_json_object_is_malformed(job: Job, body: bytes) -> None:
    answer = job.post(body)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "malformed"


def test_a_missing_field_is_named(job: Job) -> None:
    body = plain(job)
    del body["attempt"]
    answer = job.post(json.dumps(body).encode())
    assert answer.status_code == 422
    assert error_of(answer)["field"] == "body.attempt"


@pytest.mark.parametrize(
    ("field", "value"),
    [("sequence", -1), ("sequence", "2"), ("age_s", "nan"), ("run", "../x"), ("records", [{}])],
)
def test_a_wrong_field_is_named_and_nothing_is_stored(job: Job, field: str, value: Any) -> None:
    body = plain(job)
    answer = job.post(json.dumps({**body, field: value}).encode())
    assert answer.status_code == 422
    assert error_of(answer)["field"].startswith(f"body.{field}")
    assert decode_ack(job.post(json.dumps(body).encode()).content).sequence == 2


@pytest.mark.parametrize("streamed", [False, True])
def test_ten_megabytes_are_refused_without_being_kept(live: Live, streamed: bool) -> None:
    chunk = b" " * 65536
    body = (chunk for _ in range(160)) if streamed else chunk * 160
    with live.client(Role.AGENT) as client:
        answer = client.post("/v1/messages", content=body)
    assert answer.status_code == 413
    assert str(MAX_BYTES) in error_of(answer)["message"]


def test_a_large_body_to_a_small_call_is_refused_too(live: Live) -> None:
    with live.client() as client:
        answer = client.post("/v1/sessions", json={"token": "x" * 100_000, "name": "Ada"})
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "too_large"


def test_text_that_no_database_takes_is_taken(job: Job) -> None:
    """NUL and half a surrogate pair are legal JSON."""
    body = plain(job)
    end = {"type": "AttemptEnded", "reason": "a\u0000b\ud800"}
    answer = job.post(json.dumps({**body, "records": [end]}).encode())
    assert answer.status_code == 200
