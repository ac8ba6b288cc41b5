"""The OpenAPI document: who may call what, and what every call may answer.

Law: roles come from `access.TABLE` and errors from the tree in `errors`, so that the document
can't say anything else than the server does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from spikeguard_server.errors import (
    Busy,
    Conflict,
    Forbidden,
    Malformed,
    NoPerson,
    NotFound,
    NotSignedIn,
    RevisionChanged,
    TooLarge,
    Unprocessable,
    Unready,
    WrongState,
)
from spikeguard_server.http.bodies.protocol_schema import protocol_schemas
from spikeguard_server.http.dependencies import is_page
from spikeguard_server.http.responses import refusals
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
_LATE = (Conflict, RevisionChanged, WrongState)
_ALWAYS = (Unprocessable, Busy, Unready)
_GUARDED = (NotSignedIn, Forbidden, NoPerson)
_RETRY = {
    "Retry-After": {
        "description": "Whole seconds to wait before it is worth trying again.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_SHOWN = {  # what a person with a browser is shown instead of a page
    "400": "The form cannot be read.",
    "401": "Nobody is logged in.",
    "403": "The form was not made for this browser, or the role does not reach this far.",
    "404": "There is no such command.",
    "409": "Somebody decided first, or the proposal changed.",
    "413": "The form is too large.",
    "422": "A field breaks its limit.",
    "429": "Too much at once.",
    "503": "The database cannot be reached.",
}


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """What makes the document of `app`, once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    return openapi


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )
    document.setdefault("components", {})["securitySchemes"] = _SCHEME
    document["components"].setdefault("schemas", {}).update(protocol_schemas())
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            _describe_call(call, TABLE[method.upper(), path], method, path)
    return document


def _describe_call(call: dict[str, Any], rule: AccessRule, method: str, path: str) -> None:
    scheme = "session" if is_page(path) else "bearer"
    call["security"] = [] if rule.public else [{scheme: []}]
    if not rule.public:
        person = "; needs a person's name behind the token" if rule.person else ""
        roles = ", ".join(sorted(rule.roles))
        call["description"] = f"{call.get('description', '')}\n\nRoles: {roles}{person}."
    if is_page(path):
        call["responses"] |= _pages()
        return
    named = "{" in path or any(p["name"] == "run" for p in call.get("parameters", ()))
    refused = (
        *(() if rule.public and method == "get" else _GUARDED),
        *_ALWAYS,
        *((Malformed, TooLarge) if "requestBody" in call else ()),
        *((NotFound,) if named else ()),
        *(_LATE if method != "get" or path.endswith("/postmortem") else ()),
    )
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    for status, entry in refusals(*refused).items():
        known = call["responses"].get(str(status), {})
        if not known or "HTTPValidationError" in str(known):
            call["responses"][str(status)] = {
                "description": entry["description"], "content": content,
            }  # fmt: skip
    for status in {"429", "503"} & call["responses"].keys():
        call["responses"][status]["headers"] = _RETRY


def _pages() -> dict[str, Any]:
    """Every way in which a page may be refused: in words for people."""
    html = {"text/html": {"schema": {"type": "string"}}}
    shown = {status: {"description": told, "content": html} for status, told in _SHOWN.items()}
    onward = {"303": {"description": "On to the login, or to where the person came from."}}
    return onward | shown
