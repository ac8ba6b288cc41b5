"""Many samples at once, as far as the loss is calm: nothing held, open, missing or out of order.

Law: state and events afterwards are those of the samples one by one, bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import log, nan
from typing import TypeAlias

import numpy as np

from spikeguard_protocol import Signal
from spikeguard_server.domain.events import Event, Precursor
from spikeguard_server.domain.leading import LEADING
from spikeguard_server.domain.sample import Sample
from spikeguard_server.domain.state import State

Values: TypeAlias = Mapping[str, float]
LARGEST = 1e100  # a larger loss is looked at alone: what is computed from it may overflow
_LOSS, _DROPPED = Signal.LOSS.value, Signal.UPDATE_DROPPED.value
_RAW, _CLIPPED = Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value


def take_calm(state: State, samples: Sequence[Sample], events: list[Event]) -> int:
    """Take the samples before the first whose loss is not calm; returns how many they are."""
    detector, settings = state.detector, state.settings
    if state.episode is not None or not detector.is_calm(settings):
        return 0
    steps = [sample.step for sample in samples]
    values = [sample.values for sample in samples]
    names = set[str]().union(*values)
    losses = [row.get(_LOSS, nan) for row in values]
    plain = _plain(state, steps, values, losses, names)
    places = [log(step + 1) for step in steps[:plain]]
    batches = [sample.batches for sample in samples]
    z = detector.look_at_calm(steps[:plain], places, losses[:plain], batches, settings)
    if z:
        calm = slice(len(z))
        _take_leading(state, steps[calm], places, values[calm], names, z, events)
        state.traces.take_all(steps[calm], values[calm])
        state.newest_step = state.judged_step = steps[len(z) - 1]
        state.drops = 0
    return len(z)


def _plain(
    state: State,
    steps: list[int],
    values: Sequence[Values],
    losses: list[float],
    names: Collection[str],
) -> int:
    """How many samples come before the first that is no ordinary next step."""
    newest = max(state.newest_step or 0, state.judged_step or 0)
    strange = np.diff(np.array([newest, *steps])) <= 0
    strange |= ~(np.abs(np.array(losses)) < LARGEST)
    if _DROPPED in names:
        strange |= np.array([_DROPPED in row for row in values])
    for name in (_RAW, _CLIPPED):
        if name in names:
            strange |= ~np.isfinite(np.array([row.get(name, 0.0) for row in values]))
    first = int(strange.argmax())
    return first if strange[first] else len(steps)


def _take_leading(
    state: State,
    steps: Sequence[int],
    places: Sequence[float],
    values: Sequence[Values],
    names: Collection[str],
    z: Sequence[float],
    events: list[Event],
) -> None:
    """Let every leading signal see its values; a precursor is not told beside a lifted loss."""
    found = list[tuple[int, int, Precursor]]()
    for order, name in enumerate(LEADING):
        if name not in names:
            continue
        own = [row[name] for row in values if name in row]
        if not own:
            continue
        rows: Sequence[int] = range(len(steps))
        own_steps, own_places = steps, places
        if len(own) < len(steps):
            rows = [row for row in rows if name in values[row]]
            own_steps, own_places = [steps[row] for row in rows], [places[row] for row in rows]
        leading = state.leading_of(name)
        for at, high in leading.look_at_all(own_steps, own_places, own, state.settings):
            found.append((rows[at], order, Precursor(own_steps[at], name, own[at], high)))
    for row, _, warned in sorted(found, key=lambda entry: entry[:2]):
        state.attentive_until = warned.step + state.settings.attentive_steps
        if z[row] < state.settings.confirm_z:
            events.append(warned)
