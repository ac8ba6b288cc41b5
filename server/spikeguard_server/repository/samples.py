"""Samples: written in one statement a record, read back as the domain takes them.

Law: a value that is stored stays. A step that comes again only fills in what was not measured
before. NaN and infinities are values like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_protocol import STANDARD_SIGNALS, BatchRange, LayerNorms, Samples
from spikeguard_server import tables
from spikeguard_server.domain.sample import Sample
from spikeguard_server.repository.packing import floats, whole
from spikeguard_server.repository.text import storable

MEASURED = (*STANDARD_SIGNALS, "extra_names", "extra_values", "batch_first", "batch_end")
_KEY = ("run_id", "attempt", "segment", "step")
_ARRAYS = ", ".join(
    [
        "%(steps)s::bigint[]",
        *(f"%({name}_values)s::float8[]" for name in STANDARD_SIGNALS),
        # ragged lists, each as the text of its array
        "%(extra_names)s::text[]",
        "%(extra_values)s::text[]",
        "%(batch_first)s::bigint[]",
        "%(batch_end)s::bigint[]",
    ]
)
_STEP = ", ".join(("step", *MEASURED))
_MERGED = ", ".join(f"{name} = coalesce(samples.{name}, excluded.{name})" for name in MEASURED)
WRITE_SAMPLES = f"""
INSERT INTO samples (run_id, attempt, segment, {_STEP})
SELECT %(run_id)s, %(attempt)s, %(segment)s, step, {", ".join(STANDARD_SIGNALS)},
       extra_names::text[], extra_values::float8[], batch_first, batch_end
FROM unnest({_ARRAYS}) AS given ({_STEP})
ON CONFLICT (run_id, attempt, segment, step) DO UPDATE SET {_MERGED}
"""


def write_samples(connection: sql.Connection, run_id: UUID, attempt: int, samples: Samples) -> None:
    """Store every step of `samples`."""
    which = {"run_id": run_id, "attempt": attempt, "segment": samples.segment}
    connection.exec_driver_sql(WRITE_SAMPLES, {**which, **sample_columns(samples)})


def sample_columns(samples: Samples) -> dict[str, Any]:
    """What `WRITE_SAMPLES` takes beside the key; a column that nobody measured is NULL."""
    measured = {name: samples.signals.get(name) for name in STANDARD_SIGNALS}
    names, values = _extras(samples.signals, len(samples.steps))
    return {
        "steps": whole(samples.steps),
        **{f"{name}_values": None if v is None else floats(v) for name, v in measured.items()},
        "extra_names": names,
        "extra_values": values,
        "batch_first": whole([None if b is None else b.first for b in samples.positions]),
        "batch_end": whole([None if b is None else b.end for b in samples.positions]),
    }


def _extras(
    signals: Mapping[str, tuple[float | None, ...]], rows: int
) -> tuple[list[str | None] | None, list[str | None] | None]:
    """The user's own signals of each row, as the texts of a text[] and a float8[]; or nothing."""
    own = sorted(name for name in signals if name not in STANDARD_SIGNALS)
    if not own:
        return None, None
    names: list[str | None] = []
    values: list[str | None] = []
    for row in range(rows):
        measured = [(n, v) for n in own if (v := signals[n][row]) is not None]
        names.append(_array(f'"{name}"' for name, _ in measured))
        values.append(_array(_word(value) for _, value in measured))
    return names, values


def _array(words: Iterable[str]) -> str | None:
    """The text of an array; None where there is nothing to hold."""
    text = ",".join(words)
    return "{" + text + "}" if text else None


def _word(value: float) -> str:
    return repr(value).replace("inf", "Infinity")  # Postgres takes nan as it is


def as_domain(samples: Samples) -> list[Sample]:
    """The same samples as the domain takes them."""
    columns = list(samples.signals.items())
    return [
        Sample(step, {n: v for n, column in columns if (v := column[i]) is not None}, position)
        for i, (step, position) in enumerate(zip(samples.steps, samples.positions, strict=True))
    ]


def read_samples(
    connection: sql.Connection,
    run_id: UUID,
    attempt: int,
    segment: int,
    first: int,
    last: int,
) -> list[Sample]:
    """The stored samples of steps [first, last] of a segment, in order."""
    c = tables.samples.c
    rows = connection.execute(
        sql.select(c.step, *(c[name] for name in MEASURED))
        .where(c.run_id == run_id, c.attempt == attempt, c.segment == segment)
        .where(c.step.between(first, last))
        .order_by(c.step)
    )
    return [sample_of(row) for row in rows]


def sample_of(row: Any) -> Sample:
    """A stored row, of `samples` or `incident_samples`, as the domain sees it."""
    fields = row._mapping
    values = {n: v for n in STANDARD_SIGNALS if (v := fields[n]) is not None}
    values.update(zip(row.extra_names or (), row.extra_values or (), strict=True))
    known = row.batch_first is not None
    return Sample(row.step, values, BatchRange(row.batch_first, row.batch_end) if known else None)


def write_layer_norms(
    connection: sql.Connection, run_id: UUID, attempt: int, detail: LayerNorms
) -> None:
    """Store the detail of one step; the first one stands."""
    connection.execute(
        insert(tables.layer_norms)
        .values(
            run_id=run_id, attempt=attempt, segment=detail.segment, step=detail.step,
            signal=storable(detail.signal)[:64], names=[storable(name) for name in detail.norms],
            norms=list(detail.norms.values()),
        )
        .on_conflict_do_nothing()
    )  # fmt: skip


def copy_to_incident(
    connection: sql.Connection,
    run_id: UUID,
    incident: int,
    places: Sequence[tuple[int, int, int, int]],
) -> None:
    """Keep the samples of each (attempt, segment, first, last) with the incident."""
    columns = (*_KEY, *MEASURED)
    c = tables.samples.c
    for attempt, segment, first, last in places:
        around = (
            sql.select(sql.literal(incident), *(c[name] for name in columns))
            .where(c.run_id == run_id, c.attempt == attempt, c.segment == segment)
            .where(c.step.between(first, last))
        )
        connection.execute(
            insert(tables.incident_samples)
            .from_select(["incident", *columns], around)
            .on_conflict_do_nothing()
        )


def recent_step_times(
    connection: sql.Connection, run_id: UUID, attempt: int, segment: int, rows: int = 50
) -> list[float]:
    """Seconds of the newest steps that measured it."""
    c = tables.samples.c
    newest = (
        sql.select(c.step_time)
        .where(c.run_id == run_id, c.attempt == attempt, c.segment == segment)
        .order_by(c.step.desc())
        .limit(rows)
    )
    return [value for value in connection.execute(newest).scalars() if value is not None]
