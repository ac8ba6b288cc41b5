"""Settings that people write: default, range, unit and meaning stand at the field, and one reader.

A table of settings is a frozen dataclass whose fields are made by `setting`. Errors name the field,
the limit and the remedy; the reference is made of the same fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from spikeguard_protocol import ProtocolError

MOST_BITS = 60  # of a whole number
Table = TypeVar("Table")


class SettingError(ProtocolError):
    """A setting holds a value that it may not. Names the field, the limit and the remedy."""


class Limit(NamedTuple):
    """The range of a number, and its unit."""

    least: float
    most: float
    unit: str = ""


def setting(
    default: Any, meaning: str, least: float | None = None, most: float = math.inf, unit: str = ""
) -> Any:
    """A field with what it means and, of a number, its range. A mutable default is a function that
    makes it."""
    limit = None if least is None else Limit(least, most, unit)
    metadata = {"meaning": meaning, "limit": limit}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(table: Any) -> Mapping[str, Field[Any]]:
    """What a person may set in a table, by name."""
    return _parts(table)[0]


@cache
def _parts(table: Any) -> tuple[Mapping[str, Field[Any]], Mapping[str, Any]]:
    """The settings of a table, and the types of its fields."""
    known = {one.name: one for one in fields(table) if "meaning" in one.metadata}
    return known, get_type_hints(table)


def read_settings(table: type[Table], plain: Any, path: str = "") -> Table:
    """Read what a person wrote; what is left out keeps its default. `path` of the table, with the
    dot behind it. Raise `SettingError`."""
    known, types = _parts(cast(Any, table))
    told = f"Known: {', '.join(sorted(known))}"
    if not isinstance(plain, Mapping):
        raise SettingError(path.rstrip("."), "takes a table of settings", told)
    for name in plain:
        if name not in known:
            raise SettingError(f"{path}{str(name)[:80]}", "is no setting", told)
    values = {name: _read(types[name], v, f"{path}{name}") for name, v in plain.items()}
    for name, value in values.items():
        limit: Limit | None = known[name].metadata["limit"]
        if limit is None or value is None:
            continue
        if not (math.isfinite(value) and limit.least <= value <= limit.most):
            span = f"lies in [{limit.least:g}, {limit.most:g}] {limit.unit}".rstrip()
            said = "is a finite number" if limit.least == -math.inf else span
            raise SettingError(f"{path}{name}", said, f"Got {value!s:.60}")
    return table(**values)


def _read(kind: Any, value: Any, path: str) -> Any:
    """`value` as `kind`: a plain type, words, a table, a list or a table by words of these."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:
        [some] = [one for one in inner if one is not NoneType]
        return None if value is None else _read(some, value, path)
    if origin in (tuple, frozenset):
        if not isinstance(value, list | tuple):
            raise SettingError(path, "takes a list", f"Got {value!r:.60}")
        return origin(_read(inner[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is not None:  # a mapping
        if not isinstance(value, Mapping):
            raise SettingError(path, "takes a table", f"Got {value!r:.60}")
        by, of = inner
        return {
            _read(by, word, f"{path}.{word!s:.40}"): _read(of, item, f"{path}.{word!s:.40}")
            for word, item in value.items()
        }
    if is_dataclass(kind):
        return read_settings(kind, value, f"{path}.")  # type: ignore[arg-type]
    if issubclass(kind, StrEnum):
        if value not in list(kind):
            raise SettingError(path, f"is one of {', '.join(kind)}", f"Got {value!r:.60}")
        return kind(value)
    accepted, limit = _PLAIN[kind]
    whole = kind is int and isinstance(value, float) and value.is_integer()
    if type(value) not in accepted and not whole:
        raise SettingError(path, limit, f"Got {value!r:.60}")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:  # cannot be compared or told
        raise SettingError(path, "holds numbers of 18 digits at most", "Give a smaller one")
    return kind(value)


_PLAIN: Mapping[type, tuple[tuple[type, ...], str]] = {
    int: ((int,), "takes a whole number"),
    float: ((int, float), "takes a number"),
    str: ((str,), "takes text"),
    bool: ((bool,), "is true or false"),
}


def default_of(one: Field[Any]) -> object:
    """The default of a setting; None where it is made anew for each table."""
    return None if one.default is MISSING else one.default
