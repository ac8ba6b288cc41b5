"""The OpenAPI document: complete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from spikeguard_server.errors import ServiceError
from spikeguard_server.identity.permissions import TABLE

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
