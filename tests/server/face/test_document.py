"""The OpenAPI document is complete, and says what the protocol reads and what calls answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

import jsonschema  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sql

from benchmarks.fuzz import Sender
from benchmarks.fuzz_bodies import Bodies, Findings
from benchmarks.ingest_load import Line
from spikeguard_protocol import Message, ProtocolError, Record, Role, from_json, to_json
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.errors import ServiceError
from spikeguard_server.identity.permissions import TABLE
from spikeguard_server.settings import Settings
from tests.protocol.test_encoding import ACK, RECORDS, message
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import serving

UNLISTED = {("GET", path) for path in ("/", "/openapi.json", "/pages/style.css")}


def calls(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): call
        for path, found in document["paths"].items()
        for method, call in found.items()
    }


def test_every_call_is_described(document: dict[str, Any]) -> None:
    found = calls(document)
    assert found.keys() == TABLE.keys() - UNLISTED
    for call in found.values():
        assert call["summary"]
        assert call["description"]
        assert call["tags"]


def test_every_call_says_who_may_make_it(document: dict[str, Any]) -> None:
    for key, call in calls(document).items():
        rule = TABLE[key]
        assert bool(call["security"]) is not rule.public
        for role in rule.roles:
            assert role.value in call["description"]
        assert rule.public or {"401", "403"} <= call["responses"].keys()


def _below(error: type[ServiceError]) -> Iterator[type[ServiceError]]:
    for one in error.__subclasses__():
        yield one
        yield from _below(one)


def test_every_error_has_the_one_shape_and_names_codes_of_the_tree(
    document: dict[str, Any],
) -> None:
    codes = {error.code for error in _below(ServiceError)}
    for key, call in calls(document).items():
        for status, answer in call["responses"].items():
            if int(status) < 400 or "text/html" in answer["content"]:
                continue
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}, (key, status)
            named = re.findall(r"`(\w+)`:", answer["description"])
            assert named, (key, status)
            assert set(named) <= codes, (key, status)


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


if TYPE_CHECKING:
    from benchmarks.fuzz_calls import Calls

BODIES = 200
SEED = 20


@pytest.fixture
def sender(engine: sql.Engine, database_url: str) -> Iterator[Sender]:
    """Sends to a server whose database holds nothing else."""
    with engine.begin() as connection:
        token = issue_token(connection, Grant(Role.AGENT), "test")[0]
    with serving(Settings(database_url=database_url)) as url:
        address = urlsplit(url)
        line = Line((str(address.hostname), int(address.port or 0)), "/v1/messages", token)
        yield Sender(line, Bodies("test"))
        line.close()


def test_a_bent_message_is_refused_with_an_error_and_never_stored_half(
    engine: sql.Engine, sender: Sender
) -> None:
    """What is stored is what was acknowledged, row by row."""
    sender.send(BODIES)
    assert sender.findings.undocumented == []
    assert {200, 400, 409, 422} <= sender.findings.statuses.keys()
    stored = Findings()
    with engine.connect() as connection:
        stored.compare(connection, sender.expected)
    assert stored.half_stored == []
    assert stored.rows > BODIES


@pytest.fixture
def tried(engine: sql.Engine, database_url: str) -> Iterator[Calls]:
    """Every role at a server of its own, since calls revoke tokens and halt policies."""
    from benchmarks.fuzz_calls import Calls  # its schemathesis would slow every worker's start

    def issue(role: Role) -> str:
        with engine.begin() as connection:
            return issue_token(connection, Grant(role, person="Ada"), "test")[0]

    with serving(Settings(database_url=database_url)) as url:
        Job(Live(url, engine, {role: issue(role) for role in Role}), "fuzzed").start().train(5)
        yield Calls(url, issue)


def test_calls_answer_as_their_document_says(tried: Calls) -> None:
    """Every third call, with a request that fits the document and with one that does not."""
    tried.each_alone(examples=1, seed=SEED, without=["POST /v1/messages"], every=3)  # bent above
    assert tried.findings == {}
    assert len({label for label, _ in tried.answers}) > 20
