"""The OpenAPI document: who may call what, what a call answers, and what agents and server say.

Roles come from `identity.permissions`, errors from the tree in `errors`, messages from the
protocol's dataclasses, so that the document can't say anything else than the server does. What
their types do not say (ranges, patterns, lengths) is named in the errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from spikeguard_protocol import Ack, Action, Message, Record
from spikeguard_server.errors import ServiceError
from spikeguard_server.http.dependencies import is_page
from spikeguard_server.http.responses import ErrorBody
from spikeguard_server.identity.permissions import TABLE, AccessRule

DESCRIPTION = """\
Watches large-model pre-training, names loss spikes, proposes a recovery, and has it carried out
once a person approves.

Floats that are not finite travel as the strings `"nan"`, `"inf"` and `"-inf"`; `null` means that
nothing was measured. Times are RFC 3339 in UTC, durations seconds. Every error has one shape:
`{"error": {"code", "field", "message", "remedy"}}`, with a code's own keys beside these; a 429 or
503 says in `Retry-After` how many seconds to wait.
"""
_SCHEME = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token that an admin made, or a session's.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "spikeguard_session",
        "description": "Set by /login; good for the pages only.",
    },
}
_JSON = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
_PAGE = {"text/html": {"schema": {"type": "string"}}}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document of `app`, made anew."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
    )
    document.setdefault("components", {})["securitySchemes"] = _SCHEME
    schemas = document["components"].setdefault("schemas", {})
    schemas |= protocol_schemas()
    error = ErrorBody.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= {**error.pop("$defs"), "ErrorBody": error}
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            _describe_call(call, TABLE[method.upper(), path], path)
    return document


def _describe_call(call: dict[str, Any], rule: AccessRule, path: str) -> None:
    scheme = "session" if is_page(path) else "bearer"
    call["security"] = [] if rule.public else [{scheme: []}]
    if not rule.public:
        person = "; needs a person's name behind the token" if rule.person else ""
        roles = ", ".join(sorted(rule.roles))
        call["description"] = f"{call.get('description', '')}\n\nRoles: {roles}{person}."
    if is_page(path):
        onward = "On to the login, or to where the person came from."
        call["responses"]["303"] = {"description": onward}
    call["responses"] |= _refusals(_PAGE if is_page(path) else _JSON)


def _refusals(content: dict[str, Any]) -> dict[str, Any]:
    """Every refusal, by status: the codes, and what each means."""
    found: dict[str, Any] = {}
    for error in _told(ServiceError):
        means = f"`{error.code}`: {(error.__doc__ or '').splitlines()[0]}"
        entry = found.setdefault(str(error.status), {"description": "", "content": content})
        entry["description"] = f"{entry['description']} {means}".lstrip()
    return found


def _told(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    """Every error below `kind` with a code of its own."""
    for error in kind.__subclasses__():
        if "code" in vars(error):
            yield error
        yield from _told(error)


Schema = dict[str, Any]
_TAGGED: Final = frozenset((*get_args(Record), *get_args(Action)))  # told apart by their `type`


class _Schemas(GenerateJsonSchema):
    def float_schema(self, schema: core_schema.FloatSchema) -> Schema:
        """As `float_to_json` writes them: JSON has no word for what is not finite."""
        del schema
        return {"anyOf": [{"type": "number"}, {"type": "string", "enum": ["nan", "inf", "-inf"]}]}

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> Schema:
        found, kind = super().dataclass_schema(schema), schema["cls"]
        found["properties"] = {"type": {"const": kind.__name__}, **found["properties"]}
        if kind in _TAGGED:
            found["required"] = ["type", *found.get("required", ())]
        return {**found, "additionalProperties": False}


def protocol_schemas() -> dict[str, Schema]:
    """Every dataclass that `Message` and `Ack` are made of, by its name."""
    both = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in (Message, Ack)],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Schemas,
    )
    found: dict[str, Schema] = both[1]["$defs"]
    return found


def reference(kind: type) -> Schema:
    """A reference to the schema of `kind`."""
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
