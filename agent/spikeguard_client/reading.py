"""From JSON to the shapes: what has to be there is there, and words for floats become floats.

Law: an answer that is not what its shape says is an error that names the place, never a surprise
later on.
"""

from __future__ import annotations

import types
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")
_WORDS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class NotUnderstood(Exception):
    """An answer that is not what the API promises. Names the place."""


def read(shape: type[T], plain: Any) -> T:
    """`plain` as `shape`; raise `NotUnderstood`."""
    return cast(T, _read(shape, plain, shape.__name__))


def _read(shape: Any, plain: Any, place: str) -> Any:
    if shape is Any:
        return plain
    if is_typeddict(shape):
        return _object(shape, plain, place)
    origin = get_origin(shape)
    if origin in (Union, types.UnionType):
        return _either(get_args(shape), plain, place)
    if origin is list:
        return _list(get_args(shape)[0], plain, place)
    if origin is dict:
        return _table(get_args(shape)[1], plain, place)
    return _value(shape, plain, place)


def _object(shape: Any, plain: Any, place: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise NotUnderstood(f"{place} is no object")
    found = dict(plain)
    for name, hint in get_type_hints(shape).items():
        if name not in plain:
            raise NotUnderstood(f"{place} has no {name}")
        found[name] = _read(hint, plain[name], f"{place}.{name}")
    return found


def _either(shapes: tuple[Any, ...], plain: Any, place: str) -> Any:
    """Optional things only: None, or the other."""
    if plain is None:
        return None
    [shape] = [shape for shape in shapes if shape is not types.NoneType]
    return _read(shape, plain, place)


def _list(shape: Any, plain: Any, place: str) -> list[Any]:
    if not isinstance(plain, list):
        raise NotUnderstood(f"{place} is no list")
    return [_read(shape, item, place) for item in plain]


def _table(shape: Any, plain: Any, place: str) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise NotUnderstood(f"{place} is no object")
    return {name: _read(shape, value, f"{place}.{name}") for name, value in plain.items()}


def _value(shape: type, plain: Any, place: str) -> Any:
    if shape is float and isinstance(plain, str) and plain in _WORDS:
        return _WORDS[plain]
    if shape is float and type(plain) is int:
        return float(plain)
    if type(plain) is not shape:
        raise NotUnderstood(f"{place} is no {shape.__name__}")
    return plain
