"""Other people's rules for loss spikes, written from their published description.

Each takes the columns of one run and gives the rows at which it would have alarmed. Beside them
stands ours, with the same shape.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spikeguard_protocol import Kind
from spikeguard_server.domain.events import Closed, Opened, Revised
from spikeguard_server.domain.monitor import Monitor
from spikeguard_server.domain.sample import Sample


@dataclass(frozen=True)
class Alarm:
    """A row, or an unbroken stretch of rows, at which a rule held that a spike was going on."""

    row: int  # at which it spoke up
    last_row: int  # at which it still stood: of an incident, its peak
    kind: Kind | None = None  # of the closed incident, where the rule names one
    wrong_action: bool = False  # held for lingering or divergent at some time, surely


Rule = Callable[[Sequence[Sample]], list[Alarm]]
SURE = 0.7  # confidence from which the default policy proposes a rollback


def spikeguard(samples: Sequence[Sample]) -> list[Alarm]:
    """Our monitor with its defaults; one alarm an incident, from its detection to its peak."""
    monitor, alarms = Monitor(), list[Alarm]()
    rows = {sample.step: row for row, sample in reversed(list(enumerate(samples)))}
    row, peak, sure = 0, 0, False
    for at, sample in enumerate(samples):
        for event in monitor.observe([sample]):
            if isinstance(event, Opened):
                row, peak, sure = at, at, False
            elif isinstance(event, Revised):
                judged = event.judgement
                peak = max(row, rows.get(event.peak_step, row))
                unhealed = judged.kind in (Kind.LINGERING, Kind.DIVERGENT)
                sure = sure or (unhealed and judged.confidence >= SURE)
            elif isinstance(event, Closed):
                alarms.append(Alarm(row, peak, event.judgement.kind, sure))
    for event in monitor.end():
        assert isinstance(event, Closed)
        alarms.append(Alarm(row, peak, event.judgement.kind, sure))
    return alarms


def olmo_core(samples: Sequence[Sample]) -> list[Alarm]:
    """OLMo-core's SkipStep: loss or grad norm above mean + 6 standard deviations of the last 128.

    As there, the statistics start at 64 values, and every value enters them, outliers too.
    """
    losses, norms, alarms = list[float](), list[float](), list[Alarm]()
    for row, sample in enumerate(samples):
        loss, norm = sample.values.get("loss"), sample.values.get("grad_norm")
        if loss is None:
            continue
        out = _beyond(losses, loss) or (norm is not None and _beyond(norms, norm))
        losses = [*losses, loss][-128:]
        norms = [*norms, norm][-128:] if norm is not None else norms
        if out:
            alarms.append(Alarm(row, row))
    return alarms


def _beyond(window: Sequence[float], value: float, sigmas: float = 6.0) -> bool:
    if len(window) < 64:
        return False
    if not all(map(math.isfinite, window)):
        return True  # a comparison with NaN is false, so the step is skipped
    mean = statistics.fmean(window)
    spread = statistics.stdev(window, mean)
    return not value - mean <= sigmas * spread


RULES: dict[str, Rule] = {
    "spikeguard": spikeguard,
    "OLMo-core, 6 sigma of 128": olmo_core,
}
