"""Many samples at once, as far as the loss is calm: nothing held, open, missing or out of order.

Law: state and events afterwards are those of the samples one by one, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan

import numpy as np

from spikeguard_protocol import Signal
from spikeguard_server.domain.detection.baseline import abscissae
from spikeguard_server.domain.detection.batch_path import FEWEST, RowBatch, fit_together, is_ready
from spikeguard_server.domain.detection.precursors import LEADING
from spikeguard_server.domain.detection.sample import SampleColumns
from spikeguard_server.domain.diagnosis.evidence import OTHER_DATA, RANKS_LOST_STEP, REPLICAS_APART
from spikeguard_server.domain.diagnosis.silent_failures import LIMIT, UNCHANGED, stands_still
from spikeguard_server.domain.events import Event, Precursor
from spikeguard_server.domain.monitor.state import State, beginnings

LARGEST = 1e100  # a larger loss is looked at alone: what is computed from it may overflow
_LOSS, _DROPPED = Signal.LOSS.value, Signal.UPDATE_DROPPED.value
_RAW, _CLIPPED = Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value


def take_calm(state: State, samples: SampleColumns, events: list[Event]) -> int:
    """Take the samples before the first whose loss is not calm; returns how many they are."""
    detector, settings = state.detector, state.settings
    if state.episode is not None or not detector.is_calm(settings):
        return 0
    steps, losses = samples.steps, samples.column(_LOSS, nan)
    plain = _plain(state, samples, losses)
    places = abscissae(steps[:plain])
    loss = RowBatch(detector.baseline, steps[:plain], places, losses[:plain])
    leading = _leading_stretches(state, samples[:plain], places)
    fit_together([loss, *leading.values()], settings)
    z = detector.look_at_calm(loss, samples.batches, settings)
    if z:
        part = samples[: len(z)]
        _take_leading(state, part, places, leading, z, events)
        state.traces.take_all(part)
        state.newest_step = state.judged_step = steps[len(z) - 1]
        state.drops = 0
    return len(z)


def _leading_stretches(
    state: State, rows: SampleColumns, places: Sequence[float]
) -> dict[str, RowBatch]:
    """Those of the leading signals that are worth one."""
    found = dict[str, RowBatch]()
    for name in LEADING:
        has, own = rows.having(name)
        if len(own) >= FEWEST and is_ready(state.leading_of(name).baseline, state.settings):
            at = _at(rows, has, places)
            found[name] = state.leading_of(name).stretch(*at, own)
    return found


def _at(
    rows: SampleColumns, has: Sequence[int], places: Sequence[float]
) -> tuple[Sequence[int], Sequence[float]]:
    """Steps and abscissae of some of the rows."""
    if len(has) == len(rows.steps):
        return rows.steps, places
    return [rows.steps[row] for row in has], [places[row] for row in has]


def _plain(state: State, rows: SampleColumns, losses: Sequence[float]) -> int:
    """How many samples come before the first that is no ordinary next step."""
    newest = max(state.newest_step or 0, state.judged_step or 0)
    steps = np.array([newest, *rows.steps])
    strange = steps[1:] <= steps[:-1]
    strange |= ~(np.abs(np.array(losses)) < LARGEST)
    if (dropped := rows.signals.get(_DROPPED)) is not None:
        strange |= np.array([value is not None for value in dropped])
    for name in (REPLICAS_APART, OTHER_DATA):
        if name in rows.signals:
            strange |= np.array(rows.column(name, 0.0)) >= 1.0
    if RANKS_LOST_STEP in rows.signals:
        strange |= np.array(beginnings(state, rows))
    if UNCHANGED in rows.signals:
        strange |= ~(np.array(rows.column(UNCHANGED, 0.0)) < LIMIT)
    for name in (_RAW, _CLIPPED):
        if name in rows.signals:
            strange |= ~np.isfinite(np.array(rows.column(name, 0.0)))
    first = int(strange.argmax())
    return first if strange[first] else len(losses)


def _take_leading(
    state: State,
    rows: SampleColumns,
    places: Sequence[float],
    leading: Mapping[str, RowBatch],
    z: Sequence[float],
    events: list[Event],
) -> None:
    """Let every leading signal see its values; a precursor is not told beside a lifted loss."""
    found = list[tuple[int, int, Precursor]]()
    for order, name in enumerate(LEADING):
        has, own = rows.having(name)
        if not own:
            continue
        at_steps, at_places = _at(rows, has, places)
        signal, fitted = state.leading_of(name), leading.get(name)
        for at, high in signal.look_at_all(
            at_steps, at_places, own, state.settings_of(name), fitted
        ):
            found.append((has[at], order, Precursor(at_steps[at], name, own[at], high)))
    found += _own_warnings(state, rows)
    steps, shares = rows.having(UNCHANGED)
    for row, share in zip(steps, shares, strict=True):
        stands_still(state.leading_of(UNCHANGED), rows.steps[row], share, state.settings)
    for row, _, warned in sorted(found, key=lambda entry: entry[:2]):
        state.attentive_until = warned.step + state.settings.attentive_steps
        if z[row] < state.settings.confirm_z:
            events.append(warned)


def _own_warnings(state: State, rows: SampleColumns) -> list[tuple[int, int, Precursor]]:
    """Let the user's own signals see their values: row, order and precursor of each."""
    found = list[tuple[int, int, Precursor]]()
    for order, (name, own) in enumerate(state.own.items(), start=len(LEADING)):
        settings = state.settings_of(name)
        for row, value in zip(*rows.having(name), strict=True):
            step = rows.steps[row]
            z = own.look(step, value, False, state.settings)
            if own.warns(z, settings):
                found.append((row, order, Precursor(step, name, value, z)))
    return found
