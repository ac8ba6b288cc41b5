"""The emergency rule: updates left out in a row lower the learning rate for a while.

Off unless `Settings.emergency_drops` asks for it. Rank 0 counts what all ranks agreed on; what it
decides goes the way of an order from there: within the job's limits, voted, journalled, at one step
on all ranks, undone by `spikeguard journal --undo`. It needs no server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from spikeguard.commands.orders import Delivery, Inbox
from spikeguard.optim.learning_rate import ScaledRates
from spikeguard.settings import Settings
from spikeguard.state.lineage import Progress
from spikeguard_protocol import (
    OWN_RULE,
    RUN_ITSELF,
    CommandId,
    IncidentId,
    OptionalSignal,
    Order,
    RunId,
    ScaleLr,
    Signal,
)

GOOD_FOR_S = 600.0
_DROPPED, _SKIPPED = Signal.UPDATE_DROPPED.value, OptionalSignal.STEP_SKIPPED.value


class EmergencyRule:
    """Counts the updates that were left out, on rank 0."""

    def __init__(
        self, settings: Settings, run: RunId, progress: Progress, rates: ScaledRates, inbox: Inbox
    ) -> None:
        self._settings, self._run, self._progress = settings, run, progress
        self._rates, self._inbox = rates, inbox
        self._in_a_row = 0
        self._made_one = False  # an update since this attempt began
        self._quiet_until = 0  # step

    def see(self, step: int, values: Mapping[str, float]) -> None:
        """One step's values, in order. A loss scaler that still looks for its scale leaves updates
        out until the first that fits: those do not count."""
        by_scaler = values.get(_SKIPPED, 0.0) > 0.0
        if not by_scaler and not values.get(_DROPPED, 0.0) > 0.0:
            self._in_a_row, self._made_one = 0, True
        elif self._made_one or not by_scaler:
            self._in_a_row += 1
            if self._in_a_row >= self._settings.emergency_drops and not self._acting(step):
                self._order(step)

    def _acting(self, step: int) -> bool:
        """Whether the rate is lowered already, by this rule or by an order."""
        scale = self._rates.scale
        if self._quiet_until - self._settings.emergency_steps > step:
            self._quiet_until = 0  # the run went back since
        lowered = scale is not None and scale.at(self._progress.steps + 1) != 1.0
        return lowered or step < self._quiet_until or bool(self._inbox.own)

    def _order(self, step: int) -> None:
        settings, attempt = self._settings, self._progress.attempt
        action = ScaleLr(settings.emergency_factor, settings.emergency_steps)
        command = str(CommandId(IncidentId(self._run, RUN_ITSELF), OWN_RULE + step))
        self._in_a_row, self._quiet_until = 0, step + settings.emergency_steps
        order = Order(command, attempt, action, GOOD_FOR_S, None)
        self._inbox.own = (Delivery(order, time.monotonic()),)
        self._inbox.changed = True
