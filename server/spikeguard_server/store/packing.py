"""Packs columns of numbers into Postgres' binary arrays and back: one copy, no text. What has gaps
goes the driver's own way.

Source: `array_recv` of PostgreSQL's arrayfuncs.c. An array of one dimension is five int32
(dimensions, whether any is NULL, the element's type, length, lower bound), then of each element its
length in bytes (-1: NULL) and the bytes, big-endian throughout.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.array import ArrayBinaryLoader

FLOAT8, FLOAT8_ARRAY = 701, 1022  # object ids of the catalogue, fixed for ever
INT8, INT8_ARRAY = 20, 1016
_HEAD, _SHAPE = Struct("!iiIii"), Struct("!iiI")
Numbers = np.ndarray[Any, np.dtype[Any]]
_CODES = {FLOAT8: "d", INT8: "q"}  # of the standard library's arrays, which are filled faster
_ROWS = {
    FLOAT8: np.dtype([("length", ">i4"), ("value", ">f8")]),
    INT8: np.dtype([("length", ">i4"), ("value", ">i8")]),
}


@dataclass(frozen=True, slots=True)
class PackedArray:
    """An array of numbers ready to travel; the statement says of which type."""

    packed: bytes


def floats(values: Sequence[float | None]) -> PackedArray | list[float | None]:
    """`values` as a float8[]; None becomes NULL, NaN stays NaN."""
    return list(values) if None in values else _pack(values, FLOAT8)


def whole_numbers(values: Sequence[int | None]) -> PackedArray | list[int | None]:
    """`values` as a bigint[]; None becomes NULL."""
    return list(values) if None in values else _pack(values, INT8)


def _pack(values: Sequence[Any], element: int) -> PackedArray:
    rows, code = np.empty(len(values), _ROWS[element]), _CODES[element]
    rows["length"] = 8
    rows["value"] = np.frombuffer(array(code, values), code)
    return PackedArray(_HEAD.pack(1, 0, element, len(values), 1) + rows.tobytes())


class _ArrayLoader(ArrayBinaryLoader):
    """Arrays of numbers that a binary cursor reads."""

    def load(self, data: Any) -> tuple[Numbers, Numbers]:  # type: ignore[override]
        """The numbers (0 where NULL), and which of them are there."""
        dimensions, gaps, element = _SHAPE.unpack_from(data)
        if dimensions and not gaps:
            values = np.frombuffer(data, _ROWS[element], offset=_HEAD.size)["value"]
            return values.astype(_CODES[element]), np.ones(len(values), bool)
        found = super().load(data)
        there = np.array([value is not None for value in found], bool)
        return np.array([value or 0 for value in found], _CODES[element]), there


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: PackedArray) -> bytes:
        return obj.packed


psycopg.adapters.register_loader(FLOAT8_ARRAY, _ArrayLoader)
psycopg.adapters.register_loader(INT8_ARRAY, _ArrayLoader)
psycopg.adapters.register_dumper(PackedArray, _ArrayDumper)
