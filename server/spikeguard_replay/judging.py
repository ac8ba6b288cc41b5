"""Runs the server's detection over a log and folds its events to incidents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from spikeguard_cli.command import CommandFailed
from spikeguard_core.detection.loss_test import DOWN_Z
from spikeguard_core.detection.sample import SampleColumns
from spikeguard_core.events import Event, LoneValue, Opened, Precursor
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.incident_life import fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.settings import choose
from spikeguard_core.setting_fields import SettingError
from spikeguard_core.suspicion import worth_showing
from spikeguard_protocol import SegmentId
from spikeguard_replay.log import Log

SEGMENT = SegmentId("0" * 16, 0)  # a log is one stretch
BATCH = 1_024  # samples handed over at once: fewer are slower, more tell nothing in between


@dataclass(frozen=True)
class Findings:
    """All that one log gave."""

    samples: int
    incidents: tuple[Incident, ...]  # whatever became of them; peaks as the log has them
    precursors: tuple[Precursor, ...] = field(default=())
    lone: tuple[LoneValue, ...] = ()  # single values of norms that stood out
    judged_from: int | None = None  # first step whose loss was judged; None: too few rows
    last_z: float | None = None  # deviations of the last loss above what is usual

    def plain(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "incidents": [_plain(one) for one in self.incidents],
            "precursors": [_moved(one) for one in self.precursors],
            "lone_values": [asdict(one) for one in self.lone],
            "judged_from_step": self.judged_from,
        }


_AS_IT_IS = (
    *("onset_step", "detected_step", "peak_step", "closed_step", "kind", "confidence"),
    *("pre_loss", "peak_loss", "signal", "first_moves", "recurrences"),
)


def _plain(incident: Incident) -> dict[str, Any]:
    causes = [
        {"cause": one.cause, "confidence": round(one.confidence, 4), "reasons": list(one.reasons)}
        for one in worth_showing(incident.causes)
    ]
    return {name: getattr(incident, name) for name in _AS_IT_IS} | {
        "confidence": round(incident.confidence, 4),
        "peak_loss": finite(incident.peak_loss),
        "first_moves": dict(incident.first_moves),
        "causes": causes,
    }


def _moved(precursor: Precursor) -> dict[str, Any]:
    return {"step": precursor.step, "signal": precursor.signal, "z": finite(precursor.z)}


def finite(value: float | None) -> float | None:
    """`value`, or None where it is not finite, as JSON has to say it."""
    return value if value is not None and math.isfinite(value) else None


def choice_of(detection: Mapping[str, Any], called: str) -> DetectorChoice:
    """The settings of detection, as a policy has them; raises `CommandFailed` about `called`."""
    try:
        return choose(detection)
    except SettingError as error:
        raise CommandFailed(f"{called}: {error}") from error


def monitor_of(choice: DetectorChoice) -> Monitor:
    """A monitor that judges by `choice`."""
    monitor = Monitor()
    monitor.use(choice)
    return monitor


def samples_of(log: Log, first: int = 0, end: int | None = None) -> SampleColumns:
    """The rows of a log from `first` to before `end`, as detection takes them."""
    steps = log.steps[first:end].tolist()
    signals = {name: one.cells(slice(first, end)) for name, one in log.signals.items()}
    return SampleColumns(steps, signals, [None] * len(steps))


def batches(log: Log, first: int = 0, end: int | None = None) -> Iterator[SampleColumns]:
    """The rows from `first` to before `end`, in the portions in which detection takes them best."""
    end = len(log) if end is None else end
    for at in range(first, end, BATCH):
        yield samples_of(log, at, min(at + BATCH, end))


def judge(log: Log, choice: DetectorChoice) -> Findings:
    """Run detection over a log; what is open at the end stays open."""
    monitor = monitor_of(choice)
    events = [event for portion in batches(log) for event in monitor.observe(portion)]
    return findings_of(events, log, monitor)


def findings_of(events: Sequence[Event], log: Log, monitor: Monitor) -> Findings:
    """What the monitor told of a log."""
    precursors = tuple(event for event in events if isinstance(event, Precursor))
    lone = tuple(event for event in events if isinstance(event, LoneValue))
    incidents = fold_incidents(events, log)
    step, loss = (int(log.steps[-1]), log.signals.get("loss")) if len(log) else (0, None)
    last = loss.cells(slice(-1, None))[0] if loss is not None else None
    z = monitor.deviations(step, last)
    return Findings(len(log), incidents, precursors, lone, monitor.first_judged_step, z)


def fold_incidents(events: Iterable[Event], log: Log) -> tuple[Incident, ...]:
    """The incidents of `events`, in order, with their peaks read from `log`."""
    incident: Incident | None = None
    found: list[Incident] = []
    for event in events:
        incident = fold(incident, event, number=len(found) + 1, segment=SEGMENT)
        if incident is None:
            continue
        if not isinstance(event, Opened):
            found.pop()
        found.append(incident)
    later = [*found[1:], None]
    return tuple(_with_peak(one, log, later[n]) for n, one in enumerate(found))


def _with_peak(found: Incident, log: Log, after: Incident | None) -> Incident:
    """With its highest loss, of one that fell far its lowest, or the first that is not finite; not
    one of the incident that came `after` and closed it."""
    loss = log.signals.get("loss")
    if loss is None:
        return replace(found, peak_loss=None)
    last = np.iinfo(np.int64).max if found.closed_step is None else found.closed_step
    if after is not None and found.onset_step < after.onset_step <= last:
        last = after.onset_step - 1
    inside = (log.steps >= found.onset_step) & (log.steps <= last) & loss.measured
    rows = np.flatnonzero(inside)
    if not len(rows):
        return replace(found, peak_loss=None)
    losses = np.where(np.isfinite(loss.values[rows]), loss.values[rows], np.inf)
    trend, peak = found.trend, found.peak_loss
    down = trend and peak is not None and trend.level - peak > DOWN_Z * trend.scale
    row = rows[losses.argmin() if down else losses.argmax()]
    return replace(found, peak_loss=float(loss.values[row]), peak_step=int(log.steps[row]))
