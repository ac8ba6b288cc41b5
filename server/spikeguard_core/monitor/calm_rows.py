"""Many samples at once, as far as they are calm: nothing held, open, missing or out of order.

State and events afterwards are those of the samples one by one, bit for bit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from spikeguard_core.detection.loss_test import Verdict
from spikeguard_core.detection.noise import YOUNG, Array, Judged
from spikeguard_core.detection.norms import Leading
from spikeguard_core.detection.own_signals import SKIPPED_SHARE, OwnSignal
from spikeguard_core.detection.sample import SampleColumns
from spikeguard_core.diagnosis.evidence import (
    OTHER_DATA,
    RANKS_LOST_STEP,
    REPLICAS_APART,
    STEP_SKIPPED,
)
from spikeguard_core.diagnosis.silent_failures import GRAD_NORMS
from spikeguard_core.events import Event
from spikeguard_core.monitor.opening import Opening
from spikeguard_core.monitor.state import State
from spikeguard_protocol import Signal

LOSS = Signal.LOSS.value
RATE = Signal.LR.value
# Looked at row by row where one of them is not 0.
ODD = (Signal.UPDATE_DROPPED.value, STEP_SKIPPED, REPLICAS_APART, OTHER_DATA, RANKS_LOST_STEP)


def take_calm(state: State, rows: SampleColumns, events: list[Event]) -> int:
    """Take the samples before the first that is no calm next step; returns how many."""
    settings = state.settings
    test = state.test
    fewest = max(YOUNG, settings.watchable_after)  # rows that are taken one by one
    if test.baseline.count < fewest:
        return 0
    if state.episode is not None or test.waits or state.own[SKIPPED_SHARE].away:
        return 0
    losses = rows.column(LOSS, math.nan)
    plain = _plain(state, rows, losses)
    if not plain:
        return 0
    here = rows[:plain]
    steps = np.array(here.steps)
    calm, judged = test.calm_rows(steps, losses[:plain], settings)
    beside: list[tuple[Leading | OwnSignal, Sequence[int], Sequence[int], Judged]] = []
    signals: list[tuple[str, Leading | OwnSignal]] = [
        *((name, one) for name, one in state.leading.items() if name in rows.signals),
        *((name, own) for name, own in state.own.items() if name in rows.signals),
    ]
    for name, signal in signals:
        at, _ = here.having(name)
        known = bisect_left(at, calm)
        if not known:
            continue
        young = signal.baseline.count < fewest
        if young or not signal.is_quiet or signal.opens_incident:
            return 0
        if signal.baseline.are_apart(
            steps[:known] if len(at) == plain else steps[at[:known]]
        ).any():
            return 0
        quiet, found = signal.calm_rows(here.array(name)[:known], settings)
        calm = min(calm, at[quiet]) if quiet < known else calm
        beside.append((signal, at, here.steps_of(at), found))
    kept, verdict = test.take(here.steps, judged, calm, settings, here.having(RATE))
    for signal, at, steps_of, found in beside:
        signal.take(steps_of, found, bisect_left(at, kept), settings)
    if kept:
        part = rows[:kept]
        state.traces.take_all(part)
        state.newest_step = state.judged_step = rows.steps[kept - 1]
        state.drops = 0
        state.skipped.rows += kept
    if verdict is Verdict.SLOW_RISE:
        Opening(state, rows[kept - 1], events).slow_rise()
    return kept


def _plain(state: State, rows: SampleColumns, losses: Array) -> int:
    """How many samples come before the first that is no ordinary next step."""
    newest = max(state.newest_step or 0, state.judged_step or 0)
    strange = np.diff([newest, *rows.steps]) <= 0
    strange |= ~np.isfinite(losses)
    for name in ODD:
        if name in rows.signals:
            strange |= rows.column(name, 0.0) != 0.0
    for name in GRAD_NORMS:
        if name in rows.signals:
            strange |= ~np.isfinite(rows.column(name, 0.0))
    return int(strange.argmax()) if strange.any() else len(losses)
