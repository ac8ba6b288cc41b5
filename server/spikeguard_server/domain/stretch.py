"""Many samples at once, as far as the loss is calm: nothing held, open, missing or out of order.

Law: state and events afterwards are those of the samples one by one, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, nan
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from spikeguard_protocol import Signal
from spikeguard_server.domain.events import Event, Precursor
from spikeguard_server.domain.evidence import REPLICAS_APART
from spikeguard_server.domain.leading import LEADING
from spikeguard_server.domain.sample import Sample
from spikeguard_server.domain.state import State

Values: TypeAlias = Mapping[str, float]
LARGEST = 1e100  # a larger loss is looked at alone: what is computed from it may overflow
_LOSS, _DROPPED = Signal.LOSS.value, Signal.UPDATE_DROPPED.value
_RAW, _CLIPPED = Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value


@dataclass(frozen=True, slots=True)
class _Rows:
    """Samples by column."""

    steps: list[int]
    values: list[Values]
    names: set[str]  # of all signals that some row has

    def column(self, name: str, missing: float) -> list[float]:
        """The values of one signal."""
        return self._whole(name) or [row.get(name, missing) for row in self.values]

    def having(self, name: str) -> tuple[Sequence[int], list[float]]:
        """The rows that have one signal, and its values there."""
        if whole := self._whole(name):
            return range(len(whole)), whole
        rows = [row for row, values in enumerate(self.values) if name in values]
        return rows, [self.values[row][name] for row in rows]

    def _whole(self, name: str) -> list[float] | None:
        """The same where every row has it."""
        try:
            return list(map(itemgetter(name), self.values))
        except KeyError:
            return None


def take_calm(state: State, samples: Sequence[Sample], events: list[Event]) -> int:
    """Take the samples before the first whose loss is not calm; returns how many they are."""
    detector, settings = state.detector, state.settings
    if state.episode is not None or not detector.is_calm(settings):
        return 0
    steps = [sample.step for sample in samples]
    values = [sample.values for sample in samples]
    rows = _Rows(steps, values, set[str]().union(*values))
    losses = rows.column(_LOSS, nan)
    plain = _plain(state, rows, losses)
    places = _places(steps[:plain])
    batches = [sample.batches for sample in samples]
    z = detector.look_at_calm(steps[:plain], places, losses[:plain], batches, settings)
    if z:
        calm = slice(len(z))
        part = _Rows(steps[calm], values[calm], rows.names)
        _take_leading(state, part, places, z, events)
        state.traces.take_all(part.steps, part.values, rows.names)
        state.newest_step = state.judged_step = steps[len(z) - 1]
        state.drops = 0
    return len(z)


def _places(steps: Sequence[int]) -> list[float]:
    """Abscissae of steps that are not negative and rise."""
    if steps and steps[-1] - steps[0] == len(steps) - 1:
        return list(map(log, range(steps[0] + 1, steps[-1] + 2)))
    return [log(step + 1) for step in steps]


def _plain(state: State, rows: _Rows, losses: list[float]) -> int:
    """How many samples come before the first that is no ordinary next step."""
    newest = max(state.newest_step or 0, state.judged_step or 0)
    steps = np.array([newest, *rows.steps])
    strange = steps[1:] <= steps[:-1]
    strange |= ~(np.abs(np.array(losses)) < LARGEST)
    if _DROPPED in rows.names:
        strange |= np.array([_DROPPED in row for row in rows.values])
    if REPLICAS_APART in rows.names:
        strange |= np.array(rows.column(REPLICAS_APART, 0.0)) >= 1.0
    for name in (_RAW, _CLIPPED):
        if name in rows.names:
            strange |= ~np.isfinite(np.array(rows.column(name, 0.0)))
    first = int(strange.argmax())
    return first if strange[first] else len(losses)


def _take_leading(
    state: State, rows: _Rows, places: Sequence[float], z: Sequence[float], events: list[Event]
) -> None:
    """Let every leading signal see its values; a precursor is not told beside a lifted loss."""
    found = list[tuple[int, int, Precursor]]()
    for order, name in enumerate(LEADING):
        if name not in rows.names:
            continue
        has, own = rows.having(name)
        if not own:
            continue
        own_steps, own_places = rows.steps, places
        if len(own) < len(rows.steps):
            own_steps, own_places = [rows.steps[row] for row in has], [places[row] for row in has]
        leading = state.leading_of(name)
        for at, high in leading.look_at_all(own_steps, own_places, own, state.settings):
            found.append((has[at], order, Precursor(own_steps[at], name, own[at], high)))
    for row, _, warned in sorted(found, key=lambda entry: entry[:2]):
        state.attentive_until = warned.step + state.settings.attentive_steps
        if z[row] < state.settings.confirm_z:
            events.append(warned)
