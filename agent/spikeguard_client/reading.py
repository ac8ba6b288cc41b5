"""From JSON to the shapes: what has to be there is there, and words for floats become floats.

Law: an answer that is not what its shape says is an error that names the place, never a surprise
later on; only what a shape may have can be missing. Readers are
compiled once from the shapes' own types; the place is put together only when there is an error to
tell, and a list of plain values is one check.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import (
    Any,
    Generic,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

T = TypeVar("T")
Reader = Callable[[Any], Any]
_WORDS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class NotUnderstood(Exception):
    """An answer that is not what the API promises. Names the place."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a list, and what to ask for its next ones with, if there are any."""

    items: list[T]
    next_cursor: str | None


class List(TypedDict):
    """What every list of the API has; those that come whole have no cursor."""

    items: list[Any]


def read(shape: type[T], plain: Any) -> T:
    """`plain` as `shape`; raise `NotUnderstood`."""
    reader: Reader = _reader(cast(Any, shape))
    try:
        return cast(T, reader(plain))
    except _Misfit as misfit:
        raise NotUnderstood(f"{shape.__name__}{misfit.place} {misfit.what}") from misfit


def read_page(shape: type[T], plain: Any) -> Page[T]:
    """A list of the API, or a page of one, each item as `shape`; raise `NotUnderstood`."""
    items = [read(shape, item) for item in read(List, plain)["items"]]
    return Page(items, plain.get("next_cursor"))


class _Misfit(Exception):
    """A value that does not fit. `place` grows outwards: `.steps`, then `.segments.steps`."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.place, self.what = "", what


@cache
def _reader(shape: Any) -> Reader:
    """The reader of one type; composed, so that types are looked at once."""
    if shape is Any:
        return _as_it_is
    if is_typeddict(shape):
        return _object_reader(shape)
    origin, inner = get_origin(shape), get_args(shape)
    if origin in (Union, types.UnionType):
        return _optional_reader(inner)
    if origin is list:
        return _list_reader(_reader(inner[0]), _unchanged(inner[0]))
    if origin is dict:
        return _table_reader(_reader(inner[1]))
    return _read_float if shape is float else _plain_reader(shape)


def _unchanged(shape: Any) -> frozenset[type]:
    """The types of JSON whose values are read as `shape` just as they are."""
    if shape in (float, int, str, bool, types.NoneType):
        return frozenset({shape})
    if get_origin(shape) in (Union, types.UnionType):
        return frozenset().union(*map(_unchanged, get_args(shape)))
    return frozenset()


def _as_it_is(plain: Any) -> Any:
    return plain


def _object_reader(shape: Any) -> Reader:
    readers = {name: _reader(hint) for name, hint in get_type_hints(shape).items()}
    needed: frozenset[str] = shape.__required_keys__

    def read(plain: Any) -> Any:
        found = dict(_object(plain))
        for name, reader in readers.items():
            if name in plain:
                found[name] = _at(name, reader, plain[name])
            elif name in needed:
                raise _Misfit(f"has no {name}")
        return found

    return read


def _table_reader(item: Reader) -> Reader:
    return lambda plain: {name: _at(name, item, value) for name, value in _object(plain).items()}


def _object(plain: Any) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise _Misfit("is no object")
    return plain


def _at(name: str, reader: Reader, plain: Any) -> Any:
    try:
        return reader(plain)
    except _Misfit as misfit:
        misfit.place = f".{name}{misfit.place}"
        raise


def _optional_reader(shapes: tuple[Any, ...]) -> Reader:
    """Optional things only: None, or the other."""
    [other] = [_reader(shape) for shape in shapes if shape is not types.NoneType]
    return lambda plain: None if plain is None else other(plain)


def _list_reader(item: Reader, unchanged: frozenset[type]) -> Reader:
    def read(plain: Any) -> Any:
        if not isinstance(plain, list):
            raise _Misfit("is no list")
        if unchanged.issuperset(map(type, plain)):
            return plain
        return [item(value) for value in plain]

    return read


def _read_float(plain: Any) -> float:
    if type(plain) is float:
        return plain
    if isinstance(plain, str) and plain in _WORDS:
        return _WORDS[plain]
    try:
        if type(plain) is int:
            return float(plain)
    except OverflowError:
        pass
    raise _Misfit("is no float")


def _plain_reader(shape: type) -> Reader:
    def read(plain: Any) -> Any:
        if type(plain) is not shape:
            raise _Misfit(f"is no {shape.__name__}")
        return plain

    return read
