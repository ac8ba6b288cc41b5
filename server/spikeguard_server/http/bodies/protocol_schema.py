"""JSON schemas of what agents and server say to each other, made from the protocol's dataclasses.

What the types do not say (ranges, patterns, lengths) is checked by the dataclasses and named in
their errors.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from spikeguard_protocol import Ack, Action, Message, Record

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
