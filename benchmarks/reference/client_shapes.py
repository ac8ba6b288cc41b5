"""The types of the Python client, made of the OpenAPI document.

Invariants: what the document says and no more: names of fields, what may be None, the words beside
a field. Types have the client's names; the document's are those of the server's classes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from spikeguard_server.http.app import create_app
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine

FILE: Final = Path(__file__).parents[2] / "agent/spikeguard_client/shapes.py"
NAMES: Final[Mapping[str, str]] = {  # in the document -> in the client, those used before first
    "PointRef": "Point", "SegmentRef": "SegmentRef",
    "RunBody": "Run", "Ability": "Ability",
    "AttemptBody": "Attempt", "SegmentBody": "Segment", "TargetBody": "Target",
    "WarningBody": "RunWarning", "Changed": "Change", "NoteBody": "Note",
    "RunDetail": "RunDetail", "Cost": "Cost",
    "CommandRevision": "CommandRevision", "CommandBody": "Command", "Trend": "Trend",
    "FirstMove": "FirstMove", "IncidentBody": "Incident",
    "EvidenceBody": "Evidence", "RevisionRow": "IncidentRevision", "CauseBody": "Cause",
    "ResponseRow": "Response",
    "VerbOption": "VerbOption", "TargetOption": "TargetOption",
    "OrderLimits": "OrderLimits", "OptionsBody": "Options", "InterventionBody": "Intervention",
    "Tally": "ActionTally",

    "IncidentDetail": "IncidentDetail", "SegmentSeries": "SegmentSeries", "SeriesBody": "Series",
    "AuditEntry": "AuditEntry", "Me": "Me", "SessionBody": "Session",
}  # fmt: skip
BASES: Final[Mapping[str, str]] = {  # in the document: a shape, and the one that it adds to
    "RunDetail": "RunBody", "IncidentDetail": "IncidentBody",
}  # fmt: skip
HEAD: Final = '''"""The shapes of the API's answers, made of the server's OpenAPI document.

Made by `python -m benchmarks.reference`; a test fails where it is not what the document says. Times
are RFC 3339 texts in UTC; a float may be NaN or infinite, None means that nothing was measured. A
key that a newer server adds is left out.
"""

from __future__ import annotations

from typing import Any, TypedDict

Batches = list[int]  # [first, end) in the data order
'''
_PLAIN: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


@cache
def document() -> Mapping[str, Any]:
    """The OpenAPI document; the server behind it is never asked."""
    settings = Settings(database_url="postgresql+psycopg://nobody@/none")
    found: Mapping[str, Any] = create_app(settings, open_engine(settings)).openapi()
    return found


def module() -> str:
    """The whole module."""
    return "\n\n".join([HEAD, *(_class(name, ours) for name, ours in NAMES.items())])


def _class(name: str, ours: str) -> str:
    shape, base = _shape(name), BASES.get(name)
    known = {} if base is None else _shape(base)["properties"]
    fields = {name: one for name, one in shape["properties"].items() if "const" not in one}
    for field, one in known.items():
        if fields.pop(field) != one:
            raise KeyError(f"{name}.{field} is not as {base} has it")
    above = "TypedDict" if base is None else NAMES[base]
    head = [f"class {ours}({above}):", *_docstring(shape["description"]), ""]
    lines = [line for field, one in fields.items() for line in _field(field, one)]
    return "\n".join([*head, *lines, ""])


def _shape(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = document()["components"]["schemas"][name]
    return found


def _docstring(text: str) -> list[str]:
    plain = " ".join(text.split())
    if len(plain) <= 90:
        return [f'    """{plain}"""']
    return [*_wrapped(f'"""{plain}', 100), '    """']


def _field(name: str, shape: Mapping[str, Any]) -> list[str]:
    line, told = f"    {name}: {_type(shape)}", shape.get("description")
    if told is None:
        return [line]
    beside = f"{line}  # {told}"
    return [beside] if len(beside) <= 100 else [*_wrapped(told, 98, "    # "), line]


def _wrapped(text: str, width: int, mark: str = "    ") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=mark, subsequent_indent=mark)


def _type(shape: Mapping[str, Any]) -> str:
    if "anyOf" in shape:
        kinds = dict.fromkeys(_type(one) for one in shape["anyOf"] if not _is_word(one))
        return " | ".join(sorted(kinds, key=lambda kind: kind == "None"))
    if "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        if name in NAMES:
            return NAMES[name]
        return _type(_shape(name))
    match shape.get("type"):
        case "null":
            return "None"
        case "array":
            return "Batches" if "prefixItems" in shape else f"list[{_type(shape['items'])}]"
        case "object":
            inner = shape.get("additionalProperties")
            return f"dict[str, {_type(inner)}]" if isinstance(inner, Mapping) else "dict[str, Any]"
        case None:
            return "Any"
        case plain:
            return _PLAIN[plain]


def _is_word(shape: Mapping[str, Any]) -> bool:
    """A word that stands for a float that JSON has no number for."""
    return shape.get("enum") == ["nan", "inf", "-inf"]
