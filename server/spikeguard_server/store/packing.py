"""Packs columns of numbers into Postgres' binary arrays: one copy, no text.

Source: `array_recv` of PostgreSQL's arrayfuncs.c. An array of one dimension is five int32
(dimensions, whether any is NULL, the element's type, length, lower bound), then of each element its
length in bytes (-1: NULL) and the bytes, big-endian throughout.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import psycopg
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

FLOAT8, FLOAT8_ARRAY = 701, 1022  # object ids of the catalogue, fixed for ever
INT8, INT8_ARRAY = 20, 1016
_HEAD, _SHAPE = Struct("!iiIii"), Struct("!iiI")
Numbers = np.ndarray[Any, np.dtype[Any]]
_FLOAT = np.dtype([("length", ">i4"), ("value", ">f8")])
_WHOLE = np.dtype([("length", ">i4"), ("value", ">i8")])
_CODES = {FLOAT8: "d", INT8: "q"}  # of the standard library's arrays, which are filled faster


@dataclass(frozen=True, slots=True)
class PackedArray:
    """An array of numbers ready to travel; the statement says of which type."""

    packed: bytes


def floats(values: Sequence[float | None]) -> PackedArray:
    """`values` as a float8[]; None becomes NULL, NaN stays NaN."""
    return PackedArray(_pack(values, _FLOAT, FLOAT8))


def whole_numbers(values: Sequence[int | None]) -> PackedArray:
    """`values` as a bigint[]; None becomes NULL."""
    return PackedArray(_pack(values, _WHOLE, INT8))


def _pack(values: Sequence[Any], form: np.dtype[Any], element: int) -> bytes:
    rows = np.empty(len(values), form)
    rows["length"] = 8
    code = _CODES[element]
    with suppress(TypeError):  # None is no number
        rows["value"] = np.frombuffer(array(code, values), code)
        return _HEAD.pack(1, 0, element, len(values), 1) + rows.tobytes()
    rows["value"] = [0 if value is None else value for value in values]
    absent = np.fromiter((value is None for value in values), bool, len(values))
    rows["length"][absent] = -1
    kept = np.ones((len(rows), rows.dtype.itemsize), bool)
    kept[absent, 4:] = False
    octets = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)[kept]
    return _HEAD.pack(1, 1, element, len(values), 1) + octets.tobytes()


def _places(data: Any, count: int) -> tuple[Numbers, Numbers]:
    """Which elements are there, and where the bytes of those begin."""
    lengths = np.frombuffer(data, ">i4", offset=_HEAD.size).tolist()
    there, places, at = np.zeros(count, bool), [], 0
    for index in range(count):
        if lengths[at] == 8:
            there[index] = True
            places.append(_HEAD.size + 4 * at + 4)
            at += 2
        at += 1
    return there, np.array(places, int)


class _ArrayLoader(Loader):
    """Arrays of numbers that a binary cursor reads."""

    format = Format.BINARY

    def load(self, data: Any) -> tuple[Numbers, Numbers]:
        """The numbers (0 where NULL), and which of them are there."""
        dimensions, gaps, element = _SHAPE.unpack_from(data)
        form = _FLOAT if element == FLOAT8 else _WHOLE
        native = form["value"].newbyteorder("=")
        if not dimensions:
            return np.empty(0, native), np.empty(0, bool)
        count = _HEAD.unpack_from(data)[3]
        if not gaps:
            values = np.frombuffer(data, form, count, _HEAD.size)["value"]
            return values.astype(native), np.ones(count, bool)
        there, places = _places(data, count)
        values = np.zeros(count, native)
        octets = np.frombuffer(data, np.uint8)[places[:, None] + np.arange(8)]
        values[there] = octets.reshape(-1).view(form["value"])
        return values, there


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: PackedArray) -> bytes:
        return obj.packed


psycopg.adapters.register_loader(FLOAT8_ARRAY, _ArrayLoader)
psycopg.adapters.register_loader(INT8_ARRAY, _ArrayLoader)
psycopg.adapters.register_dumper(PackedArray, _ArrayDumper)
