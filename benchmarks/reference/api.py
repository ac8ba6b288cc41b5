"""The page of the HTTP API, made of the server's OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.reference.client_shapes import NAMES, document
from benchmarks.reference.table import table

HEAD = """# HTTP API

Every call of the server but its pages for browsers, with the least role that may make it.

Queries, bodies and errors: `/openapi.json` of every server. What holds for all calls:
[protocol](../protocol.md#http-api). "A person" means that
[a person stands behind the token](../access.md#who-acted). `{run}` is `{project}/{name}`.

"""
_ROLES = re.compile(r"\n\nRoles: (?P<roles>[\w, ]+)(?P<person>; needs a person)?")
_PEOPLE = ("viewer", "operator", "admin")  # each may what the one before may


def page() -> str:
    """A table for each tag, in the document's order."""
    sections: dict[str, list[list[str]]] = {}
    for path, calls in document()["paths"].items():
        for method, call in calls.items():
            row = [f"`{method.upper()} {_short(path)}`", _words(call), _who(call)]
            if call["tags"][0] != "pages":
                sections.setdefault(call["tags"][0], []).append(row)
    head = ["call", "what: shape of the answer", "role"]
    return HEAD + "\n".join(
        f"## {tag.capitalize()}\n\n{table(head, rows)}" for tag, rows in sections.items()
    )


def _short(path: str) -> str:
    return path.replace("{project}/{name}", "{run}")


def _words(call: dict[str, Any]) -> str:
    shape = _shape(call["responses"].get("200") or call["responses"].get("201") or {})
    return f"{call['summary']}: `{shape}`" if shape else str(call["summary"])


def _shape(answer: dict[str, Any]) -> str:
    """The client's name of what comes back; empty where it is no JSON of one shape."""
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return NAMES.get(name, name.rpartition("__")[2])


def _who(call: dict[str, Any]) -> str:
    found = _ROLES.search(call.get("description", ""))
    if found is None:
        return "anybody"
    roles = found["roles"].split(", ")
    people = [one for one in _PEOPLE if one in roles]
    others = [one for one in roles if one not in _PEOPLE]
    return ", ".join(people[:1] + others) + (", a person" if found["person"] else "")
