"""The measurements of one step, and of many, as the domain sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast, overload

from spikeguard_protocol import BatchRange

Rows: TypeAlias = tuple[Sequence[int], Sequence[float]]  # some rows of a table, and values there


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of one segment. A signal that was not measured is absent, never NaN."""

    step: int
    values: Mapping[str, float]  # signal name -> value; NaN and infinities were really measured
    batches: BatchRange | None = None  # the positions it consumed


@dataclass(frozen=True, slots=True)
class SampleColumns(Sequence[Sample]):
    """Samples by column, as they travel: a row is made only where somebody asks for one.

    Columns are as long as `steps`; None = not measured at that step.
    """

    steps: Sequence[int]
    signals: Mapping[str, Sequence[float | None]]
    batches: Sequence[BatchRange | None]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> SampleColumns:
        """The same samples by column."""
        if isinstance(samples, SampleColumns):
            return samples
        rows = [sample.values for sample in samples]
        names = set[str]().union(*rows)
        signals = {name: [values.get(name) for values in rows] for name in names}
        return cls([s.step for s in samples], signals, [s.batches for s in samples])

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, at: int) -> Sample: ...
    @overload
    def __getitem__(self, at: slice) -> SampleColumns: ...
    def __getitem__(self, at: int | slice) -> Sample | SampleColumns:
        if isinstance(at, slice):
            if at.indices(len(self.steps)) == (0, len(self.steps), 1):
                return self
            signals = {name: column[at] for name, column in self.signals.items()}
            return SampleColumns(self.steps[at], signals, self.batches[at])
        measured = ((name, column[at]) for name, column in self.signals.items())
        values = {name: value for name, value in measured if value is not None}
        return Sample(self.steps[at], values, self.batches[at])

    def having(self, name: str) -> Rows:
        """The rows that have one signal, and its values there."""
        column = self.signals.get(name, ())
        if None not in column:
            return range(len(column)), cast(Sequence[float], column)
        measured = [(row, value) for row, value in enumerate(column) if value is not None]
        return [row for row, _ in measured], [value for _, value in measured]
