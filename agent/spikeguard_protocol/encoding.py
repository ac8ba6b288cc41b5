"""The one place where messages become JSON and JSON becomes messages.

Law: non-finite floats travel as the strings "nan", "inf" and "-inf", because JSON has no word for
them; nobody else writes or reads them. What comes from outside is checked value by value, and the
error names the path of the field. Readers are compiled once from the dataclasses' own types.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from spikeguard_protocol.errors import ProtocolError, UnknownVersion
from spikeguard_protocol.messages import MAX_BYTES, VERSION, Message
from spikeguard_protocol.orders import Ack

Reader = Callable[[str, Any], Any]
_FROM_WORD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def float_to_json(value: float) -> float | str:
    """A finite float as itself, any other as its word."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def float_from_json(path: str, value: Any) -> float:
    """Read a number or one of the three words; raise `ProtocolError` for anything else."""
    if type(value) is float or type(value) is int:
        return float(value)
    if isinstance(value, str) and value in _FROM_WORD:
        return _FROM_WORD[value]
    raise ProtocolError(path, 'takes a number, "nan", "inf" or "-inf"', f"Got {_show(value)}")


def to_json(value: Any) -> Any:
    """Plain JSON values for `value`; unions of dataclasses are told apart by their `type`."""
    if isinstance(value, float):
        return float_to_json(value)
    if is_dataclass(value) and not isinstance(value, type):
        body = {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
        return {"type": type(value).__name__, **body}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def from_json(kind: Any, value: Any, path: str = "body") -> Any:
    """Read `value` as `kind`, a dataclass or any type that the messages use."""
    return _reader(kind)(path, value)


def encode(value: Message | Ack) -> bytes:
    """The bytes that travel."""
    return json.dumps(to_json(value), allow_nan=False, separators=(",", ":")).encode()


def decode_message(body: bytes) -> Message:
    """Read a message from outside; raise `ProtocolError` or `UnknownVersion`."""
    if len(body) > MAX_BYTES:
        raise ProtocolError("body", f"takes at most {MAX_BYTES} bytes", "Send smaller messages")
    plain = _parse(body)
    version = plain.get("version")
    if type(version) is not int or version != VERSION:
        raise UnknownVersion(
            "version", f"this side speaks version {VERSION}", f"Got {_show(version)}: upgrade"
        )
    return cast(Message, from_json(Message, plain))


def decode_ack(body: bytes) -> Ack:
    """Read an acknowledgement; raise `ProtocolError` if it is none."""
    return cast(Ack, from_json(Ack, _parse(body)))


def _parse(body: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("body", "is JSON", str(error)[:200]) from error
    if not isinstance(plain, dict):
        raise ProtocolError("body", "is a JSON object", f"Got {_show(plain)}")
    return plain


def _refuse_constant(word: str) -> float:
    raise ValueError(f'{word} is not JSON: write "nan", "inf" or "-inf"')


def _show(value: Any) -> str:
    return repr(value)[:60]


@cache
def _reader(kind: Any) -> Reader:
    """The reader of one type; composed, so that types are looked at once."""
    if kind is float:
        return float_from_json
    if kind in (int, str, bool):
        return _plain_reader(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _word_reader(kind)
    if is_dataclass(kind):
        return _dataclass_reader(cast(type, kind))
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_reader(args)
    if origin is tuple:
        return _tuple_reader(_reader(args[0]))
    return _mapping_reader(_reader(args[1]))


def _plain_reader(kind: type) -> Reader:
    def read(path: str, value: Any) -> Any:
        if type(value) is not kind:
            raise ProtocolError(path, f"takes a value of type {kind.__name__}", _show(value))
        return value

    return read


def _word_reader(kind: type[StrEnum]) -> Reader:
    def read(path: str, value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            words = ", ".join(kind)
            raise ProtocolError(path, f"is one of {words}", f"Got {_show(value)}") from None

    return read


def _tuple_reader(item: Reader) -> Reader:
    def read(path: str, value: Any) -> Any:
        if not isinstance(value, list):
            raise ProtocolError(path, "takes a list", f"Got {_show(value)}")
        return tuple([item(path, entry) for entry in value])

    return read


def _mapping_reader(item: Reader) -> Reader:
    def read(path: str, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ProtocolError(path, "takes an object", f"Got {_show(value)}")
        return {key: item(f"{path}.{key[:64]}", entry) for key, entry in value.items()}

    return read


def _union_reader(members: tuple[Any, ...]) -> Reader:
    optional = type(None) in members
    rest = [member for member in members if member is not type(None)]
    single = _reader(rest[0]) if len(rest) == 1 else _tagged_reader(rest)

    def read(path: str, value: Any) -> Any:
        return None if value is None and optional else single(path, value)

    return read


def _tagged_reader(members: list[Any]) -> Reader:
    readers = {member.__name__: _reader(member) for member in members}

    def read(path: str, value: Any) -> Any:
        tag = value.get("type") if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in readers:
            raise ProtocolError(f"{path}.type", f"is one of {', '.join(readers)}", _show(tag))
        return readers[tag](path, value)

    return read


def _dataclass_reader(kind: type) -> Reader:
    hints = get_type_hints(kind)
    readers = {f.name: _reader(hints[f.name]) for f in fields(kind)}
    required = {
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    }

    def read(path: str, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ProtocolError(path, f"takes an object ({kind.__name__})", f"Got {_show(value)}")
        if missing := required - value.keys():
            raise ProtocolError(f"{path}.{min(missing)}", "is missing", "Send the field")
        if unknown := value.keys() - readers.keys() - {"type"}:
            raise ProtocolError(f"{path}.{min(unknown)[:64]}", "is not known", "Leave it out")
        return _make(kind, path, {n: readers[n](f"{path}.{n}", v) for n, v in _body(value)})

    return read


def _body(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, item) for name, item in value.items() if name != "type"]


def _make(kind: type, path: str, values: dict[str, Any]) -> Any:
    try:
        return kind(**values)
    except ProtocolError as error:
        raise ProtocolError(f"{path}.{error.field}", error.limit, error.remedy) from error
