"""JSON schemas of what agents and server say to each other, made from the protocol's dataclasses.

Law: nothing of the protocol is written down here a second time; what the types do not say (ranges,
patterns, lengths) is checked by the dataclasses and named in their errors.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from inspect import cleandoc
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from spikeguard_protocol import Ack, Message

Schema = dict[str, Any]
_PLAIN: Final[dict[Any, Schema]] = {
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    # As `float_to_json` writes them: JSON has no word for what is not finite.
    float: {"anyOf": [{"type": "number"}, {"type": "string", "enum": ["nan", "inf", "-inf"]}]},
}


def protocol_schemas() -> dict[str, Schema]:
    """Every dataclass that `Message` and `Ack` are made of, by its name."""
    kinds = dict.fromkeys([*_reached(Message), *_reached(Ack)])
    tagged = {member for kind in kinds for hint in _hints(kind) for member in _told_apart(hint)}
    return {kind.__name__: _object(kind, tagged=kind in tagged) for kind in kinds}


def reference(kind: type) -> Schema:
    """A reference to the schema of `kind`."""
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _reached(kind: Any) -> Iterator[type]:
    """The dataclasses within `kind`, itself included."""
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
        for hint in _hints(kind):
            yield from _reached(hint)
    for part in get_args(kind):
        yield from _reached(part)


def _hints(kind: type) -> list[Any]:
    hints = get_type_hints(kind)
    return [hints[entry.name] for entry in fields(kind)]


def _told_apart(hint: Any) -> Iterator[type]:
    """The members of the unions within `hint` that only their `type` tells apart."""
    args = [part for part in get_args(hint) if part is not type(None)]
    if _is_union(hint) and len(args) > 1:
        yield from args
    for part in args:
        yield from _told_apart(part)


def _object(kind: type, *, tagged: bool) -> Schema:
    hints = get_type_hints(kind)
    needed = [
        entry.name
        for entry in fields(kind)
        if entry.default is MISSING and entry.default_factory is MISSING
    ]
    return {
        "title": kind.__name__,
        "type": "object",
        "description": cleandoc(kind.__doc__ or ""),
        "properties": {
            "type": {"const": kind.__name__},
            **{entry.name: _schema(hints[entry.name]) for entry in fields(kind)},
        },
        "required": [*(["type"] if tagged else []), *needed],
        "additionalProperties": False,
    }


def _schema(hint: Any) -> Schema:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"type": "string", "enum": [word.value for word in hint]}
    if is_dataclass(hint) and isinstance(hint, type):
        return reference(hint)
    if _is_union(hint):
        return _union(get_args(hint))
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _schema(get_args(hint)[0])}
    return {"type": "object", "additionalProperties": _schema(get_args(hint)[1])}


def _union(members: tuple[Any, ...]) -> Schema:
    some = [member for member in members if member is not type(None)]
    schema = _schema(some[0])
    if any(get_origin(member) is tuple for member in some):
        schema = {"oneOf": [_schema(m) for m in some]}
    elif len(some) > 1:
        schema = {"oneOf": [_schema(m) for m in some], "discriminator": {"propertyName": "type"}}
    return schema if len(some) == len(members) else {"anyOf": [schema, {"type": "null"}]}


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)
