"""Steps of one segment with what was measured at each: one array a signal; and how arrays of
numbers travel.

Arrays in, arrays out; no SQL. A value that is there is never lost or changed by joining, and NaN is
a value. Arrays without gaps are packed here, by one copy and no text; what has gaps goes the
driver's own way. Source: `array_recv` of PostgreSQL's arrayfuncs.c. An array of one dimension is
five int32 (dimensions, whether any is NULL, the element's type, length, lower bound), then of each
element its length in bytes (-1: NULL) and the bytes, big-endian throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import numpy as np
import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.array import ArrayBinaryLoader

from spikeguard_core.detection.sample import Sample
from spikeguard_protocol import BatchRange

Numbers = np.ndarray[Any, np.dtype[Any]]
_BATCHES = "batches of steps"  # beside names of signals, which have no space


@dataclass(frozen=True, slots=True)
class Column:
    """What was measured at each step. `values` means nothing where `there` is false."""

    values: Numbers  # float64 [steps]; of batches int64 [steps, 2]: their first and their end
    there: Numbers  # bool [steps]

    def at(self, places: Any) -> Column:
        """The column at some of its places."""
        return Column(self.values[places], self.there[places])

    def list(self) -> list[Any]:
        """Plain values; None where nothing was measured."""
        plain: list[Any] = self.values.tolist()
        if self.there.all():
            return plain
        return [v if t else None for v, t in zip(plain, self.there.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Curves:
    """Ascending steps of one segment."""

    steps: Numbers  # int64 [steps]
    signals: Mapping[str, Column] = field(default_factory=dict)
    batches: Column | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def at(self, places: Any) -> Curves:
        """Some of the steps: places in ascending order, or a mask."""
        signals = {name: column.at(places) for name, column in self.signals.items()}
        batches = None if self.batches is None else self.batches.at(places)
        return Curves(self.steps[places], signals, batches)

    def between(self, first: int, last: int) -> Curves:
        """Steps [first, last]."""
        begin, end = np.searchsorted(self.steps, (first, last + 1))
        return self if end - begin == len(self.steps) else self.at(slice(begin, end))

    def samples(self) -> list[Sample]:
        """The same steps as the domain takes them."""
        columns = [(name, column.list()) for name, column in self.signals.items()]
        return [
            Sample(step, {n: v for n, c in columns if (v := c[i]) is not None}, position)
            for i, (step, position) in enumerate(
                zip(self.steps.tolist(), self.ranges(), strict=True)
            )
        ]

    def ranges(self) -> list[BatchRange | None]:
        """The batches of every step."""
        if self.batches is None:
            return [None] * len(self)
        return [None if pair is None else BatchRange(*pair) for pair in self.batches.list()]


def join(parts: Iterable[Curves]) -> Curves:
    """Parts that follow one another as one."""
    found = [part for part in parts if len(part.steps)]
    if len(found) < 2:
        return found[0] if found else Curves(np.empty(0, np.int64))
    steps = np.concatenate([part.steps for part in found])
    columns, begin = dict[str, Column](), 0
    for part in found:
        here = slice(begin, begin + len(part.steps))
        for name, column in {**part.signals, _BATCHES: part.batches}.items():
            if column is not None:
                if name not in columns:
                    values = np.zeros((len(steps), *column.values.shape[1:]), column.values.dtype)
                    columns[name] = Column(values, np.zeros(len(steps), bool))
                columns[name].values[here] = column.values
                columns[name].there[here] = column.there
        begin = here.stop
    batches = columns.pop(_BATCHES, None)
    return Curves(steps, columns, batches)


def keep(curves: Curves, names: Iterable[str], buckets: Numbers) -> Numbers:
    """Places of what a picture needs, ascending: both ends and, of each bucket and signal, the
    lowest and the highest finite value and the first that is not finite.

    buckets: int64 [steps], ascending.
    """
    if not len(curves):
        return np.empty(0, int)
    kept = [np.array([0, len(curves) - 1])]
    for name in names:
        if (column := curves.signals.get(name)) is not None:
            kept += _extremes(column, buckets)
    return np.unique(np.concatenate(kept))


def _extremes(column: Column, buckets: Numbers) -> list[Numbers]:
    finite = np.isfinite(column.values)
    odd = np.flatnonzero(column.there & ~finite)
    found = [odd[_begins(buckets[odd])]] if len(odd) else []
    places = np.flatnonzero(column.there & finite)
    if not len(places):
        return found
    values, starts = column.values[places], _begins(buckets[places])
    sizes = np.diff(np.append(starts, len(values)))
    for extreme in (np.minimum, np.maximum):
        hits = np.flatnonzero(values == np.repeat(extreme.reduceat(values, starts), sizes))
        found.append(places[hits[_begins(buckets[places[hits]])]])
    return found


def _begins(ascending: Numbers) -> Numbers:
    """Where each new value begins."""
    return np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))


FLOAT8, FLOAT8_ARRAY = 701, 1022  # object ids of the catalogue, fixed for ever
INT8, INT8_ARRAY = 20, 1016
_HEAD, _SHAPE = Struct("!iiIii"), Struct("!iiI")
_TYPES = {FLOAT8: np.float64, INT8: np.int64}
_ROWS = {
    FLOAT8: np.dtype([("length", ">i4"), ("value", ">f8")]),
    INT8: np.dtype([("length", ">i4"), ("value", ">i8")]),
}


class PackedArray(bytes):
    """An array of numbers ready to travel; the statement says of which type."""


def packed(values: Sequence[Any], element: int = FLOAT8) -> PackedArray | list[Any]:
    """`values` as a float8[] or, of `INT8`, a bigint[]; None becomes NULL, NaN stays NaN."""
    if None in values:
        return list(values)
    rows = np.empty(len(values), _ROWS[element])
    rows["length"], rows["value"] = 8, values
    return PackedArray(_HEAD.pack(1, 0, element, len(values), 1) + rows.tobytes())


class _ArrayLoader(ArrayBinaryLoader):
    """Arrays of numbers that a binary cursor reads."""

    def load(self, data: Any) -> tuple[Numbers, Numbers]:  # type: ignore[override]
        """The numbers (0 where NULL), and which of them are there."""
        dimensions, gaps, element = _SHAPE.unpack_from(data)
        if dimensions and not gaps:
            values = np.frombuffer(data, _ROWS[element], offset=_HEAD.size)["value"]
            return values.astype(_TYPES[element]), np.ones(len(values), bool)
        found = super().load(data)
        there = np.array([value is not None for value in found], bool)
        return np.array([value or 0 for value in found], _TYPES[element]), there


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: PackedArray) -> bytes:
        return obj


psycopg.adapters.register_loader(FLOAT8_ARRAY, _ArrayLoader)
psycopg.adapters.register_loader(INT8_ARRAY, _ArrayLoader)
psycopg.adapters.register_dumper(PackedArray, _ArrayDumper)
