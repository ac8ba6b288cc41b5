"""Other people's rules for loss spikes, written from their published description.

Each takes the columns of one run and gives the rows at which it would have alarmed. Beside them
stands ours, with the same shape.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from spikeguard_core.detection.sample import Sample
from spikeguard_core.events import Closed, Opened, Revised
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import Kind


@dataclass(frozen=True)
class Alarm:
    """A row, or an unbroken stretch of rows, at which a rule held that a spike was going on."""

    row: int  # at which it spoke up
    last_row: int  # at which it still stood: of an incident, its peak
    kind: Kind | None = None  # of the closed incident, where the rule names one


Rule = Callable[[Sequence[Sample]], list[Alarm]]


def spikeguard(samples: Sequence[Sample]) -> list[Alarm]:
    """Our monitor with its defaults; one alarm an incident, from its detection to its peak."""
    monitor, alarms = Monitor(), list[Alarm]()
    opened = peak = 0
    rows = {sample.step: row for row, sample in reversed(list(enumerate(samples)))}
    batches = (monitor.observe([sample]) for sample in samples)
    for at, events in enumerate(chain(batches, iter(monitor.end, []))):
        for event in events:
            if isinstance(event, Opened):
                opened = peak = at
            elif isinstance(event, Revised):
                peak = max(opened, rows.get(event.peak_step, opened))
            elif isinstance(event, Closed):
                alarms.append(Alarm(opened, peak, event.judgement.kind))
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


def wandb_z_score(samples: Sequence[Sample]) -> list[Alarm]:
    """W&B's z-score automation as it comes: loss 3 standard deviations above the last 30.

    Only rises count, since its "any direction" would alarm at every good row.
    """
    window: deque[float] = deque(maxlen=30)
    alarms = list[Alarm]()
    for row, loss in _losses(samples):
        if len(window) == 30 and _z(window, loss) > 3.0:
            alarms.append(Alarm(row, row))
        window.append(loss)
    return alarms


def _z(window: Collection[float], value: float) -> float:
    """Standard deviations above the mean; NaN, which is above nothing, where there is no scale."""
    mean = sum(window) / len(window)
    square = sum((one - mean) * (one - mean) for one in window) / (len(window) - 1)
    return (value - mean) / math.sqrt(square) if square > 0 else math.nan


def llm_c(samples: Sequence[Sample]) -> list[Alarm]:
    """llm.c's update skipping: z-score of loss or grad norm above 3 in its own window of 128.

    As there, the value is in the window that judges it, and the sums run on: a NaN ends them.
    """
    loss, norm, alarms = RunningWindow(128), RunningWindow(128), list[Alarm]()
    for row, sample in enumerate(samples):
        scores = [
            window.z(sample.values[name])
            for name, window in (("loss", loss), ("grad_norm", norm))
            if name in sample.values
        ]
        if any(score > 3.0 for score in scores):
            alarms.append(Alarm(row, row))
    return alarms


class RunningWindow:
    """Mean and spread of the last values by running sums."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values = deque[float]()
        self._sum = self._squares = 0.0

    def z(self, value: float) -> float:
        """Take `value` in and give its z-score among the window; NaN until the window is full."""
        self._values.append(value)
        self._sum += value
        self._squares += value * value
        if len(self._values) <= self._size:
            return math.nan
        oldest = self._values.popleft()
        self._sum -= oldest
        self._squares -= oldest * oldest
        mean = self._sum / self._size
        variance = self._squares / self._size - mean * mean
        return (value - mean) / math.sqrt(variance) if variance > 0 else math.nan


def zclip(samples: Sequence[Sample]) -> list[Alarm]:
    """ZClip (arXiv 2504.02507): grad norm 2.5 deviations above an EMA of 0.97, after 25 values.

    As there, a spike enters the averages clipped to mean + 2.5 deviations / (z / 2.5), and a NaN
    stays in them for ever. A run without grad norms is judged by its loss.
    """
    logged = any("grad_norm" in sample.values for sample in samples)
    name, first, alarms = "grad_norm" if logged else "loss", list[float](), list[Alarm]()
    mean = variance = 0.0
    for row, sample in enumerate(samples):
        if (value := sample.values.get(name)) is None:
            continue
        if len(first) < 25:
            first.append(value)
            mean = sum(first) / len(first)
            variance = sum((one - mean) * (one - mean) for one in first) / len(first)
            continue
        spread = math.sqrt(variance)
        z = (value - mean) / (spread + 1e-6)
        if z > 2.5:
            alarms.append(Alarm(row, row))
            value = mean + 2.5 * spread / (z / 2.5)
        mean = 0.97 * mean + 0.03 * value
        variance = 0.97 * variance + 0.03 * (value - mean) * (value - mean)
    return alarms


def metaseq(samples: Sequence[Sample]) -> list[Alarm]:
    """metaseq's batch skipping: loss above 1.2 times its exponential mean of span 9.

    As there, a spike does not enter the mean; a NaN does, and stays.
    """
    mean: float | None = None
    alarms = list[Alarm]()
    for row, loss in _losses(samples):
        mean = loss if mean is None else mean
        if loss > 1.2 * mean:
            alarms.append(Alarm(row, row))
        else:
            mean = 0.8 * mean + 0.2 * loss
    return alarms


def lightning(samples: Sequence[Sample]) -> list[Alarm]:
    """Lightning's SpikeDetection: a rise to 3 times the mean of the last 10, or not finite.

    As there, the first row is let through and a spike does not enter the mean.
    """
    window: deque[float] = deque(maxlen=10)
    alarms = list[Alarm]()
    for row, loss in _losses(samples):
        mean = sum(window) / len(window) if window else math.inf
        rose = bool(window) and loss > window[-1] and abs(loss - mean) >= abs(2.0 * mean)
        if window and (rose or not math.isfinite(loss)):
            alarms.append(Alarm(row, row))
        else:
            window.append(loss)
    return alarms


def kill_loss_spike(samples: Sequence[Sample]) -> list[Alarm]:
    """llm-foundry's KillLossSpike: loss at 2 times the mean of the last 100, five times in a row.

    As there, every value enters the window. Its second rule, losses above a cap, is left out: it
    is about runs that never learnt.
    """
    window: deque[float] = deque(maxlen=100)
    alarms, outliers = list[Alarm](), 0
    for row, loss in _losses(samples):
        if len(window) == 100:
            outliers = outliers + 1 if loss >= 2.0 * sum(window) / 100 else 0
            if outliers >= 5:
                alarms.append(Alarm(row, row))
        window.append(loss)
    return alarms


def megatron(samples: Sequence[Sample]) -> list[Alarm]:
    """Megatron-LM's spiky-loss check: 10 times the largest of the first 100 finite losses."""
    largest, seen, alarms = 0.0, 0, list[Alarm]()
    for row, loss in _losses(samples):
        if not math.isfinite(loss):
            continue  # left to another check there
        if seen < 100:
            seen, largest = seen + 1, max(largest, abs(loss))
        elif abs(loss) >= 10.0 * largest:
            alarms.append(Alarm(row, row))
    return alarms


def _losses(samples: Sequence[Sample]) -> Iterator[tuple[int, float]]:
    for row, sample in enumerate(samples):
        if "loss" in sample.values:
            yield row, sample.values["loss"]


RULES: dict[str, Rule] = {
    "spikeguard": spikeguard,
    "OLMo-core, 6 sigma of 128": olmo_core,
    "W&B, z 3 of 30": wandb_z_score,
    "llm.c, z 3 of 128": llm_c,
    "ZClip, z 2.5 of an EMA": zclip,
    "metaseq, ratio 1.2 to an EWM": metaseq,
    "Lightning, 3x mean of 10": lightning,
    "KillLossSpike, 2x mean of 100, five times": kill_loss_spike,
    "Megatron, 10x max of first 100": megatron,
}
