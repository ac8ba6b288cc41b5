"""Detectors and settings tried on logs: how often they alarm, and what they find.

Invariants: pure. Every candidate sees the same rows and the same injected spikes. An alarm is an
incident other than an outlier batch, which asks for nothing. Without labels every alarm counts as
one, also that of a real spike.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from spikeguard_cli.command import CommandFailed
from spikeguard_protocol import Kind
from spikeguard_server.domain.detection.detectors.plugged import DetectorChoice
from spikeguard_server.domain.detection.robust_lines import NORMAL_MAD
from spikeguard_server.domain.detection.sample import Sample
from spikeguard_server.replay.findings import Found, replay
from spikeguard_server.replay.labels import Span
from spikeguard_server.replay.reading import read_log

PER = 100_000
LOSS = "loss"
FIRST, EVERY = 256, 500  # rows before the first injected spike, and from one to the next
NOISE_ROWS = 64  # before an injected spike, by which its size is measured
SLACK = 25  # rows after a spike's end in which finding it still counts


@dataclass(frozen=True, slots=True)
class InjectedSpike:
    """What is injected: the loss lifted by `size` deviations of its own noise."""

    size: float = 6.0  # 1.4826 median absolute deviations of the rows before
    length: int = 10  # rows


@dataclass(frozen=True, slots=True)
class Candidate:
    """A detector with its settings."""

    name: str
    choice: DetectorChoice
    settings: Mapping[str, float] = field(default_factory=dict)  # that differ from its defaults


@dataclass(frozen=True, slots=True)
class DetectorTally:
    """What one candidate did, summed over logs."""

    rows: int = 0
    alarms: int = 0
    injected: int = 0
    found: int = 0
    delays: tuple[int, ...] = ()  # rows, of the injected spikes that were found
    labelled: int = 0
    hits: int = 0  # labelled spikes that were found
    false: int = 0  # alarms that touch no label

    def plus(self, other: DetectorTally) -> DetectorTally:
        """Both together."""
        return DetectorTally(
            self.rows + other.rows, self.alarms + other.alarms, self.injected + other.injected,
            self.found + other.found, (*self.delays, *other.delays),
            self.labelled + other.labelled, self.hits + other.hits, self.false + other.false,
        )  # fmt: skip

    @property
    def rate(self) -> float | None:
        """Alarms in 100,000 rows; those that touch no label, where there are labels."""
        counted = self.false if self.labelled else self.alarms
        return counted * PER / self.rows if self.rows else None

    @property
    def share(self) -> float | None:
        """Of the injected spikes that were found."""
        return self.found / self.injected if self.injected else None

    @property
    def f1(self) -> float | None:
        """Of the labelled spikes."""
        both = self.labelled + self.hits + self.false
        return 2 * self.hits / both if self.labelled else None

    @property
    def delay(self) -> float | None:
        """Median, rows."""
        return statistics.median(self.delays) if self.delays else None

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        told: dict[str, Any] = {
            "rows": self.rows, "alarms": self.alarms, "alarms_per_100000_rows": self.rate,
            "injected": self.injected, "found": self.found, "median_delay_rows": self.delay,
        }  # fmt: skip
        if self.labelled:
            told |= {"labelled": self.labelled, "hits": self.hits, "false": self.false}
            told["f1"] = self.f1
        return told


@dataclass(frozen=True, slots=True)
class Tried:
    """One log, by every candidate in their order."""

    file: str
    tallies: tuple[DetectorTally, ...] = ()
    unread: str | None = None


def try_log(
    path: Path,
    name: str,
    candidates: Sequence[Candidate],
    spike: InjectedSpike,
    labels: Sequence[Span],
) -> Tried:
    """The log at `path`, listed as `name`."""
    try:
        samples = read_log(path).samples
    except CommandFailed as error:
        return Tried(name, unread=str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, "))
    rows = [one for one in samples if LOSS in one.values]
    onsets = _onsets(rows, spike)
    lifted = _lifted(samples, rows, onsets, spike)
    return Tried(
        name,
        tuple(_tally(one, samples, lifted, rows, onsets, spike, labels) for one in candidates),
    )


def _tally(
    candidate: Candidate,
    samples: Sequence[Sample],
    lifted: Sequence[Sample],
    rows: Sequence[Sample],
    onsets: Sequence[int],
    spike: InjectedSpike,
    labels: Sequence[Span],
) -> DetectorTally:
    alarms = [
        one
        for one in replay(samples, candidate.choice).incidents
        if one.judgement.kind is not Kind.OUTLIER_BATCH
    ]
    gap = (rows[-1].step - rows[0].step) / len(rows) if len(rows) > 1 else 1.0
    touched = [_touched(one, labels, SLACK * gap) for one in alarms]
    seen = replay(lifted, candidate.choice).incidents if onsets else ()
    delays = _delays(seen, rows, onsets, spike)
    return DetectorTally(
        len(rows), len(alarms), len(onsets), len(delays), tuple(delays),
        len(labels), len(set[int]().union(*touched)), sum(not one for one in touched),
    )  # fmt: skip


def _touched(found: Found, labels: Sequence[Span], slack: float) -> set[int]:
    """The labels that an alarm, from its detection to its peak, overlaps."""
    first, last = found.detected_step, max(found.detected_step, found.peak_step)
    return {
        at
        for at, (begin, end) in enumerate(labels)
        if first <= end + slack and last >= begin - slack
    }


def _onsets(rows: Sequence[Sample], spike: InjectedSpike) -> list[int]:
    """Rows at which a spike is injected: the same for every candidate."""
    last = len(rows) - spike.length - SLACK
    return [at for at in range(FIRST, last, EVERY) if _noise(rows, at) is not None]


def _noise(rows: Sequence[Sample], at: int) -> float | None:
    """Robust deviation of the rows just before `at`; None where it cannot be told."""
    values = [one.values[LOSS] for one in rows[at - NOISE_ROWS : at]]
    if not all(map(isfinite, values)):
        return None
    centre = statistics.median(values)
    return NORMAL_MAD * statistics.median([abs(value - centre) for value in values]) or None


def _lifted(
    samples: Sequence[Sample], rows: Sequence[Sample], onsets: Sequence[int], spike: InjectedSpike
) -> list[Sample]:
    """The samples with every spike in them, each measured by the noise before it."""
    lifts = dict[int, float]()
    for at in onsets:
        by = spike.size * (_noise(rows, at) or 0.0)
        lifts |= {rows[row].step: by for row in range(at, at + spike.length)}
    return [
        replace(one, values={**one.values, LOSS: one.values[LOSS] + lifts[one.step]})
        if one.step in lifts and LOSS in one.values
        else one
        for one in samples
    ]


def _delays(
    seen: Sequence[Found], rows: Sequence[Sample], onsets: Sequence[int], spike: InjectedSpike
) -> list[int]:
    """Rows from onset to detection, of each injected spike that was found."""
    at_step = {one.step: row for row, one in enumerate(rows)}
    detected = sorted(at_step[one.detected_step] for one in seen if one.detected_step in at_step)
    found = list[int]()
    for onset in onsets:
        last = onset + spike.length + SLACK
        late = next((row - onset for row in detected if onset <= row < last), None)
        if late is not None:
            found.append(late)
    return found


def summed(tried: Sequence[Tried], candidates: Sequence[Candidate]) -> list[DetectorTally]:
    """One tally a candidate, over all logs that could be read."""
    totals = [DetectorTally() for _ in candidates]
    for one in tried:
        if one.unread is None:
            totals = [total.plus(own) for total, own in zip(totals, one.tallies, strict=True)]
    return totals
