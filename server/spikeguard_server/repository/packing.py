"""Columns of numbers in the form in which Postgres sends arrays: one copy, no text.

Source: `array_recv` of PostgreSQL's arrayfuncs.c. An array of one dimension is five int32
(dimensions, whether any is NULL, the element's type, length, lower bound), then of each element its
length in bytes (-1: NULL) and the bytes, big-endian throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

FLOAT8, FLOAT8_ARRAY = 701, 1022  # object ids of the catalogue, fixed for ever
INT8, INT8_ARRAY = 20, 1016
_HEAD = Struct("!iiIii")
_FLOAT = np.dtype([("length", ">i4"), ("value", ">f8")])
_WHOLE = np.dtype([("length", ">i4"), ("value", ">i8")])


@dataclass(frozen=True, slots=True)
class FloatColumn:
    """A float8[] ready to travel."""

    packed: bytes


@dataclass(frozen=True, slots=True)
class WholeColumn:
    """A bigint[] ready to travel."""

    packed: bytes


def floats(values: Sequence[float | None]) -> FloatColumn:
    """`values` as a float8[]; None becomes NULL, NaN stays NaN."""
    return FloatColumn(_pack(values, _FLOAT, FLOAT8))


def whole(values: Sequence[int | None]) -> WholeColumn:
    """`values` as a bigint[]; None becomes NULL."""
    return WholeColumn(_pack(values, _WHOLE, INT8))


def _pack(values: Sequence[Any], form: np.dtype[Any], element: int) -> bytes:
    rows = np.empty(len(values), form)
    rows["length"] = 8
    if None not in values:
        rows["value"] = values
        return _HEAD.pack(1, 0, element, len(values), 1) + rows.tobytes()
    rows["value"] = [0 if value is None else value for value in values]
    absent = np.fromiter((value is None for value in values), bool, len(values))
    rows["length"][absent] = -1
    kept = np.ones((len(values), form.itemsize), bool)
    kept[absent, 4:] = False
    octets = rows.view(np.uint8).reshape(len(values), form.itemsize)
    return _HEAD.pack(1, 1, element, len(values), 1) + octets[kept].tobytes()


class _FloatDumper(Dumper):
    format = Format.BINARY
    oid = FLOAT8_ARRAY

    def dump(self, obj: FloatColumn) -> bytes:
        return obj.packed


class _WholeDumper(Dumper):
    format = Format.BINARY
    oid = INT8_ARRAY

    def dump(self, obj: WholeColumn) -> bytes:
        return obj.packed


def teach(connection: psycopg.Connection[Any]) -> None:
    """Let `connection` take packed columns as arguments."""
    connection.adapters.register_dumper(FloatColumn, _FloatDumper)
    connection.adapters.register_dumper(WholeColumn, _WholeDumper)
