"""The OpenAPI document: who may call what, and what every call may answer.

Roles come from `identity.permissions` and errors from the tree in `errors`, so that the document
can't say anything else than the server does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from spikeguard_server.errors import ServiceError
from spikeguard_server.http.bodies.protocol_schema import protocol_schemas
from spikeguard_server.http.dependencies import is_page
from spikeguard_server.http.responses import ErrorBody
from spikeguard_server.identity.permissions import TABLE, AccessRule

DESCRIPTION = """\
Watches large-model pre-training, names loss spikes, proposes a recovery, and has it carried out
once a person approves.

Floats that are not finite travel as the strings `"nan"`, `"inf"` and `"-inf"`; `null` means that
nothing was measured. Times are RFC 3339 in UTC, durations seconds. Every error has one shape:
`{"error": {"code", "field", "message", "remedy"}}`, with a code's own keys beside these.
"""
TAGS = [
    {"name": "agents", "description": "What training jobs send."},
    {"name": "runs", "description": "Runs and their curves."},
    {"name": "audit", "description": "Every change of state: who, what, when, why."},
    {"name": "incidents", "description": "Spikes, their evidence, their post-mortems."},
    {"name": "decisions", "description": "A person's yes or no. The name stands in the audit."},
    {"name": "policy", "description": "Which recovery is proposed when, and who approves it."},
    {"name": "notifications", "description": "Whom to tell of what, and what was told."},
    {"name": "access", "description": "Logging in, and the tokens that admins give out."},
    {"name": "pages", "description": "Pages without scripts for people with a browser."},
    {"name": "metrics", "description": "For Prometheus."},
    {"name": "health", "description": "For load balancers."},
]
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
_RETRY = {
    "Retry-After": {
        "description": "Whole seconds to wait before it is worth trying again.",
        "schema": {"type": "integer", "minimum": 1},
    }
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
        tags=app.openapi_tags,
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
    for status in ("429", "503"):
        found[status]["headers"] = _RETRY
    return found


def _told(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    """Every error below `kind` with a code of its own."""
    for error in kind.__subclasses__():
        if "code" in vars(error):
            yield error
        yield from _told(error)
