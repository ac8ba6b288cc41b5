"""The one place where messages become JSON and JSON becomes messages, on the wire and in files.

Non-finite floats travel as the strings "nan", "inf" and "-inf", because JSON has no word for them;
nobody else writes or reads them. What comes from outside is checked value by value, and the error
names the path of the field. Readers are compiled once from the dataclasses' own types; the path is
put together only when there is an error to tell, and a list of plain values is one check.
"""

from __future__ import annotations

import json
import math
import re
import types
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from spikeguard_protocol.errors import ProtocolError, UnknownVersion
from spikeguard_protocol.identity import CommandId
from spikeguard_protocol.messages import MAX_BYTES, VERSION, Message, Record
from spikeguard_protocol.orders import (
    MAX_ORDERS,
    MAX_PROTECTED,
    Ack,
    Order,
    UnreadableOrder,
)

Reader = Callable[[Any], Any]
LARGEST_INT = 10**308  # beyond it no float can hold an integer
_PLAIN = frozenset({int, str, bool, type(None)})  # values that are JSON already
_FROM_WORD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def float_to_json(value: float) -> float | str:
    """A finite float as itself, any other as its word."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


class _Misfit(Exception):
    """A value that does not fit. `place` grows outwards: `.steps`, then `.records.steps`."""

    def __init__(self, place: str, limit: str, remedy: str) -> None:
        super().__init__(place, limit, remedy)
        self.place, self.limit, self.remedy = place, limit, remedy


def to_json(value: Any) -> Any:
    """Plain JSON values for `value`; unions of dataclasses are told apart by their `type`."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, float):
        return float_to_json(value)
    if (names := _names(kind)) is not None:
        return {"type": kind.__name__} | {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """The fields of a dataclass."""
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else None


def from_json(kind: Any, value: Any, path: str = "body") -> Any:
    """Read `value` as `kind`, a dataclass or any type that the messages use."""
    try:
        return _reader(kind)(value)
    except _Misfit as misfit:
        raise ProtocolError(path + misfit.place, misfit.limit, misfit.remedy) from misfit


def encode(value: Message | Ack | Record) -> bytes:
    """The bytes that travel, or wait in an outbox to travel."""
    return json.dumps(to_json(value), allow_nan=False, separators=(",", ":")).encode()


def plain_json(body: bytes) -> Any:
    """What the JSON in `body` says; raises `ValueError` or `RecursionError` where it is none."""
    return json.loads(body, parse_constant=_refuse_constant)


def decode_message(body: bytes, plain: Callable[[bytes], Any] = plain_json) -> Message:
    """Read a message from outside; raise `ProtocolError` or `UnknownVersion`.

    `plain`: reads JSON as `plain_json` does, for whoever has a faster one.
    """
    if len(body) > MAX_BYTES:
        raise ProtocolError("body", f"takes at most {MAX_BYTES} bytes", "Send smaller messages")
    told = _parse(body, plain)
    version = told.get("version")
    if type(version) is not int or version != VERSION:
        raise UnknownVersion(
            "version", f"this side speaks version {VERSION}", f"Got {_show(version)}: upgrade"
        )
    return cast(Message, from_json(Message, told))


def decode_ack(body: bytes) -> Ack:
    """Read an acknowledgement; raise `ProtocolError` if it is none."""
    return cast(Ack, from_json(Ack, _parse(body)))


def read_ack(body: bytes) -> tuple[Ack, tuple[UnreadableOrder, ...]]:
    """Read an acknowledgement, whatever single orders in it are; raise `ProtocolError` if it is
    none. Of orders and names to keep it reads the first `MAX_ORDERS` and `MAX_PROTECTED`."""
    told = _parse(body)
    listed, kept = told.get("orders"), told.get("protected")
    if isinstance(kept, list):
        told = {**told, "protected": kept[:MAX_PROTECTED]}
    if not isinstance(listed, list):
        return cast(Ack, from_json(Ack, told)), ()
    ack = cast(Ack, from_json(Ack, {**told, "orders": []}))
    read = [_read_order(entry, f"body.orders[{n}]") for n, entry in enumerate(listed[:MAX_ORDERS])]
    orders = tuple(order for order in read if isinstance(order, Order))
    bad = tuple(order for order in read if isinstance(order, UnreadableOrder))
    return replace(ack, orders=orders), bad


def _read_order(entry: Any, path: str) -> Order | UnreadableOrder:
    try:
        return cast(Order, from_json(Order, entry, path))
    except ProtocolError as error:
        named = entry.get("command") if isinstance(entry, dict) else None
        return UnreadableOrder(_command_name(named), str(error)[:500])


def _command_name(named: Any) -> str:
    """The public id of a command; "" where `named` is none."""
    try:
        return str(CommandId.parse(named)) if isinstance(named, str) else ""
    except ValueError:
        return ""


def _parse(body: bytes, plain: Callable[[bytes], Any] = plain_json) -> dict[str, Any]:
    try:
        found = plain(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("body", "is JSON", str(error)[:200]) from error
    if not isinstance(found, dict):
        raise ProtocolError("body", "is a JSON object", f"Got {_show(found)}")
    return found


def _refuse_constant(word: str) -> float:
    raise ValueError(f'{word} is not JSON: write "nan", "inf" or "-inf"')


def _show(value: Any) -> str:
    return repr(value)[:60]


@cache
def _reader(kind: Any) -> Reader:
    """The reader of one type; composed, so that types are looked at once."""
    if kind is float:
        return _read_float
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
        return _tuple_reader(_reader(args[0]), _unchanged(args[0]))
    return _mapping_reader(_reader(args[1]))


def _unchanged(kind: Any) -> frozenset[type]:
    """The types of JSON whose values are read as `kind` just as they are."""
    if kind in (float, int, str, bool, type(None)):
        return frozenset({kind})
    if get_origin(kind) in (Union, types.UnionType):
        return frozenset().union(*map(_unchanged, get_args(kind)))
    return frozenset()


def _read_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) < LARGEST_INT:
        return float(value)
    if isinstance(value, str) and value in _FROM_WORD:
        return _FROM_WORD[value]
    raise _Misfit("", 'takes a number, "nan", "inf" or "-inf"', f"Got {_show(value)}")


def _plain_reader(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _Misfit("", f"takes a value of type {kind.__name__}", _show(value))
        return value

    return read


def _word_reader(kind: type[StrEnum]) -> Reader:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            words = ", ".join(kind)
            raise _Misfit("", f"is one of {words}", f"Got {_show(value)}") from None

    return read


def _tuple_reader(item: Reader, unchanged: frozenset[type]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Misfit("", "takes a list", f"Got {_show(value)}")
        if unchanged.issuperset(map(type, value)):
            return tuple(value)
        return tuple([item(entry) for entry in value])

    return read


def _mapping_reader(item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit("", "takes an object", f"Got {_show(value)}")
        found, key = {}, ""
        try:
            for key, entry in value.items():
                found[key] = item(entry)
        except _Misfit as misfit:
            misfit.place = f".{key[:64]}{misfit.place}"
            raise
        return found

    return read


def _union_reader(members: tuple[Any, ...]) -> Reader:
    optional = type(None) in members
    rest = [member for member in members if member is not type(None)]
    lists = [member for member in rest if get_origin(member) is tuple]
    if lists and len(rest) == 2:
        rest.remove(lists[0])
        single = _list_or(_reader(lists[0]), _reader(rest[0]))
    else:
        single = _reader(rest[0]) if len(rest) == 1 else _tagged_reader(rest)
    if not optional:
        return single
    return lambda value: None if value is None else single(value)


def _list_or(listed: Reader, other: Reader) -> Reader:
    return lambda value: listed(value) if isinstance(value, list) else other(value)


def _tagged_reader(members: list[Any]) -> Reader:
    readers = {member.__name__: _reader(member) for member in members}

    def read(value: Any) -> Any:
        tag = value.get("type") if isinstance(value, dict) else None
        if not isinstance(tag, str) or tag not in readers:
            raise _Misfit(".type", f"is one of {', '.join(readers)}", _show(tag))
        return readers[tag](value)

    return read


def _dataclass_reader(kind: type) -> Reader:
    hints = get_type_hints(kind)
    readers = {f.name: _reader(hints[f.name]) for f in fields(kind)}
    known = readers.keys() | {"type"}
    required = {
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    }

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit("", f"takes an object ({kind.__name__})", f"Got {_show(value)}")
        if not value.keys() >= required:
            raise _Misfit(f".{min(required - value.keys())}", "is missing", "Send the field")
        if not value.keys() <= known:
            raise _Misfit(f".{min(value.keys() - known)[:64]}", "is not known", "Leave it out")
        values, name = {}, ""
        try:
            for name, item in value.items():
                if name != "type":
                    values[name] = readers[name](item)
        except _Misfit as misfit:
            misfit.place = f".{name}{misfit.place}"
            raise
        return _make(kind, values)

    return read


def _make(kind: type, values: dict[str, Any]) -> Any:
    try:
        return kind(**values)
    except ProtocolError as error:
        raise _Misfit(f".{error.field}", error.limit, error.remedy) from error


# ---- lines of files ------------------------------------------------------------------------------
# Of the journal, and of the messages that wait for the server: a JSON object that ends with its
# number and a checksum. The name of its file is part of the checksum, so a line that was moved to
# another file or another place is not taken for sound.


_SEALED = re.compile(rb'(.*), "n": ([0-9]{1,15}), "crc": "([0-9a-f]{8})"\}', re.DOTALL)
SPOOLED = b'{"total":'  # how a line of a message begins that waits for the server


class Position(NamedTuple):
    """A place between two records of an attempt."""

    number: int = 1  # of the record that comes next
    total: int = 0  # samples before it


class SpooledLine(NamedTuple):
    """One record that waits for the server."""

    start: Position
    end: Position
    at: float  # seconds since the epoch, when the record was made
    entry: dict[str, Any]  # a step's sample: `segment`, `step`, `signals`; else `record`
    raw: bytes  # the whole line

    @property
    def record(self) -> bytes:
        """The record's text as it travels; empty for a step's sample."""
        body = self.raw[: self.raw.rindex(b', "n": ')]
        return body.partition(b'"record":')[2]


def seal(body: bytes, number: int, name: str) -> bytes:
    """`body`, the text of a JSON object, as line `number` of the file called `name`."""
    text = body[:-1]
    return b'%b, "n": %d, "crc": "%08x"}\n' % (text, number, _checksum(text, number, name))


def unseal(line: bytes, name: str) -> tuple[int, bool] | None:
    """The line's number, and whether it is unchanged; None for a line without a checksum."""
    found = _SEALED.fullmatch(line)
    if found is None:
        return None
    number = int(found[2])
    return number, int(found[3], 16) == _checksum(found[1], number, name)


def _checksum(text: bytes, number: int, name: str) -> int:
    return zlib.crc32(text, zlib.crc32(f"{name} {number}".encode()))


def spool_name(attempt: str, message: int) -> str:
    """The name under which the lines of that message are sealed."""
    return f"{attempt}/{message}"


def read_spooled(data: bytes, name: str) -> tuple[list[SpooledLine], int]:
    """Every sound line of `data` by number, each once; how many bytes belong to none."""
    found: dict[int, SpooledLine] = {}
    damaged = 0
    for raw in data.split(b"\n"):
        if line := _spooled(raw, name):
            found.setdefault(line.start.number, line)
        else:
            damaged += len(raw)
    return [found[number] for number in sorted(found)], damaged


def _spooled(raw: bytes, name: str) -> SpooledLine | None:
    sealed = unseal(raw, name)
    if sealed is None or not sealed[1]:
        return None
    try:
        entry = json.loads(raw)
        start = Position(sealed[0], entry["total"])
        samples = 1 if "step" in entry else entry.get("lost", 0)
        end = Position(start.number + 1, start.total + samples)
        return SpooledLine(start, end, entry["at"], entry, raw)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
