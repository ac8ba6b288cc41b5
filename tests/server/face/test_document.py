"""The OpenAPI document: complete, with an example of every body that is sent."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spikeguard_server.errors import ERRORS
from spikeguard_server.http.bodies import (
    access as access_shapes,
    channels as channel_shapes,
    incident_shapes,
    policy as policy_shapes,
    run_shapes as shapes,
)
from spikeguard_server.http.bodies.run_shapes import Shape
from spikeguard_server.identity.permissions import TABLE

UNLISTED = {("GET", path) for path in ("/", "/openapi.json", "/pages/style.css")}
MODULES = (shapes, incident_shapes, access_shapes, channel_shapes, policy_shapes)
SHAPES = sorted(
    {
        entry
        for module in MODULES
        for entry in vars(module).values()
        if isinstance(entry, type)
        and issubclass(entry, Shape)
        and "examples" in str(entry.model_config)
    },
    key=lambda shape: shape.__name__,
)


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


def test_every_error_has_the_one_shape_and_names_codes_of_the_tree(
    document: dict[str, Any],
) -> None:
    codes = {error.code for error in ERRORS}
    for key, call in calls(document).items():
        for status, answer in call["responses"].items():
            if int(status) < 400 or "text/html" in answer["content"]:
                continue
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}, (key, status)
            named = re.findall(r"`(\w+)`:", answer["description"])
            assert named, (key, status)
            assert set(named) <= codes, (key, status)


def test_every_body_that_is_sent_has_an_example(document: dict[str, Any]) -> None:
    for key, call in calls(document).items():
        for media, content in call.get("requestBody", {}).get("content", {}).items():
            if media == "application/json":
                assert content.get("example") or _shape_has_example(document, content), key


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_an_example_is_true_to_its_shape(shape: type[Shape]) -> None:
    extra = shape.model_config["json_schema_extra"]
    assert isinstance(extra, dict)
    for shown in extra["examples"]:  # type: ignore[union-attr]
        shape.model_validate(shown)


def _shape_has_example(document: dict[str, Any], content: dict[str, Any]) -> bool:
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return bool(document["components"]["schemas"].get(name, {}).get("examples"))
