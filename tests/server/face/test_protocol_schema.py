"""The schemas of messages and acknowledgements say what the protocol's own reader says."""

from __future__ import annotations

from typing import Any, get_args

import jsonschema  # type: ignore[import-untyped]
import pytest

from spikeguard_protocol import Message, ProtocolError, Record, from_json, to_json
from tests.protocol.test_encoding import ACK, RECORDS, message


def fits(document: dict[str, Any], kind: str, body: Any) -> bool:
    schema = {"$ref": f"#/components/schemas/{kind}", "components": document["components"]}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(body))


def readable(kind: type, body: Any) -> bool:
    try:
        from_json(kind, body)
    except ProtocolError:
        return False
    return True


def test_the_call_for_messages_names_both_shapes(document: dict[str, Any]) -> None:
    call = document["paths"]["/v1/messages"]["post"]
    sent = call["requestBody"]["content"]["application/json"]
    answered = call["responses"]["200"]["content"]["application/json"]
    assert sent["schema"] == {"$ref": "#/components/schemas/Message"}
    assert answered["schema"] == {"$ref": "#/components/schemas/Ack"}


def test_every_record_and_every_order_fits_its_schema(document: dict[str, Any]) -> None:
    assert {type(record) for record in RECORDS} == set(get_args(Record))
    assert fits(document, "Message", to_json(message(*RECORDS)))
    assert fits(document, "Ack", to_json(ACK))


def changed(body: dict[str, Any], *path: str | int, value: Any) -> dict[str, Any]:
    """`body` with the value at `path` replaced, or left out where it is None."""
    key, *rest = path
    fresh: Any = list(body) if isinstance(body, list) else dict(body)
    if rest:
        fresh[key] = changed(fresh[key], *rest, value=value)
    elif value is None:
        del fresh[key]
    else:
        fresh[key] = value
    found: dict[str, Any] = fresh
    return found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("attempt",), None),
        (("attempt",), 3),
        (("sequence",), "1"),
        (("unknown",), 1),
        (("age_s",), "soon"),
        (("records",), {}),
        (("records", 0, "type"), "Nothing"),
        (("records", 0, "type"), None),
        (("records", 1, "reason"), "because"),
        (("records", 2, "signals", "loss"), [True, "x"]),
        (("records", 2, "positions"), [1, 2]),
        (("records", 5, "name"), None),
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(
    document: dict[str, Any], path: tuple[str | int, ...], value: Any
) -> None:
    body = changed(to_json(message(*RECORDS)), *path, value=value)
    assert not readable(Message, body)
    assert not fits(document, "Message", body)
