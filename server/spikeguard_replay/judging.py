"""Runs the server's detection over a log: what it found, as JSON and as text for a person."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from spikeguard_cli.command import CommandFailed
from spikeguard_core.detection.loss_test import DOWN_Z
from spikeguard_core.detection.noise import told_z
from spikeguard_core.detection.own_signals import WHAT_TO_CHECK
from spikeguard_core.detection.sample import SampleColumns
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.events import Event, LoneValue, Precursor
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.lifecycle.incident_life import fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.policy.finding import alone_moved
from spikeguard_core.policy.settings import choose
from spikeguard_core.setting_fields import SettingError
from spikeguard_core.suspicion import questions_in, worth_showing
from spikeguard_protocol import SegmentId
from spikeguard_protocol.phrases import CAUSE_WORDS, times_phrase
from spikeguard_replay.log import Log

SEGMENT = SegmentId("0" * 16, 0)  # a log is one stretch
BATCH = 1_024  # samples handed over at once: more take memory, fewer time
MOST_LISTED = 10  # of one kind


@dataclass(frozen=True)
class Findings:
    """All that one log gave."""

    incidents: tuple[Incident, ...]  # whatever became of them; peaks as the log has them
    precursors: tuple[Precursor, ...]
    lone: tuple[LoneValue, ...]  # single values of norms that stood out
    judged_from: int | None  # first step whose loss was judged; None: too few rows
    last_z: float | None  # deviations of the last loss above what is usual

    def plain(self) -> dict[str, Any]:
        return {
            "incidents": [_plain(one) for one in self.incidents],
            "precursors": [
                {"step": one.step, "signal": one.signal, "z": finite(one.z)}
                for one in self.precursors
            ],
            "lone_values": [asdict(one) for one in self.lone],
            "judged_from_step": self.judged_from,
        }


def _plain(incident: Incident) -> dict[str, Any]:
    same = "onset_step detected_step peak_step closed_step kind pre_loss signal recurrences"
    causes = [
        {"cause": one.cause, "confidence": round(one.confidence, 4), "reasons": list(one.reasons)}
        for one in worth_showing(incident.causes)
    ]
    return {name: getattr(incident, name) for name in same.split()} | {
        "confidence": round(incident.confidence, 4),
        "peak_loss": finite(incident.peak_loss),
        "first_moves": dict(incident.first_moves),
        "causes": causes,
    }


def finite(value: float | None) -> float | None:
    """`value`, or None where it is not finite, as JSON has to say it."""
    return value if value is not None and math.isfinite(value) else None


def choice_of(detection: Mapping[str, Any], called: str) -> DetectorChoice:
    """The settings of detection, as a policy has them; raises `CommandFailed` about `called`."""
    try:
        return choose(detection)
    except SettingError as error:
        raise CommandFailed(f"{called}: {error}") from error


def samples_of(log: Log, rows: slice = slice(None)) -> SampleColumns:
    """Some rows of a log, as detection takes them."""
    steps = log.steps[rows].tolist()
    signals = {name: one.at(rows).numbers() for name, one in log.signals.items()}
    return SampleColumns(steps, signals, [None] * len(steps))


def judge(log: Log, choice: DetectorChoice) -> Findings:
    """Run detection over a log; what is open at the end stays open."""
    monitor, events = Monitor(choice), list[Event]()
    for row in range(0, len(log), BATCH):
        events += monitor.observe(samples_of(log, slice(row, row + BATCH)))
    z = None
    if len(log) and (loss := log.signals.get("loss")) is not None:
        z = monitor.deviations(int(log.steps[-1]), loss.at(slice(-1, None)).numbers()[0])
    return Findings(
        incidents=_incidents(events, log),
        precursors=tuple(event for event in events if isinstance(event, Precursor)),
        lone=tuple(event for event in events if isinstance(event, LoneValue)),
        judged_from=monitor.first_judged,
        last_z=z,
    )


def _incidents(events: Sequence[Event], log: Log) -> tuple[Incident, ...]:
    """The incidents of `events`, in order, with their peaks read from `log`."""
    incident: Incident | None = None
    by_number: dict[int, Incident] = {}
    for event in events:
        incident = fold(incident, event, number=len(by_number) + 1, segment=SEGMENT)
        if incident is not None:
            by_number[incident.number] = incident
    found = list(by_number.values())
    ends = [*(one.onset_step - 1 for one in found[1:]), np.iinfo(np.int64).max]
    return tuple(_with_peak(one, log, end) for one, end in zip(found, ends, strict=False))


def _with_peak(found: Incident, log: Log, end: int) -> Incident:
    """With its highest loss, of one that fell far its lowest, or the first that is not finite; up
    to the step `end`, behind which the next incident begins."""
    loss = log.signals.get("loss")
    last = end if found.closed_step is None else min(end, found.closed_step)
    inside = (log.steps >= found.onset_step) & (log.steps <= last)
    if loss is None or not (inside := inside & loss.measured).any():
        return found
    rows = np.flatnonzero(inside)
    losses = np.where(np.isfinite(loss.values[rows]), loss.values[rows], np.inf)
    trend, peak = found.trend, found.peak_loss
    down = trend and peak is not None and trend.level - peak > DOWN_Z * trend.scale
    row = rows[losses.argmin() if down else losses.argmax()]
    return replace(found, peak_loss=float(loss.values[row]), peak_step=int(log.steps[row]))


def findings_listing(findings: Findings, log: Log) -> str:
    """A paragraph an incident; the last line is the state at the end of the log."""
    head = f"{len(log):,} samples, {_count(len(findings.incidents), 'incident')}"
    if findings.precursors:
        head += f", {_count(len(findings.precursors), 'precursor')}"
    rows = DetectionSettings().watchable_after
    judged = f"nothing was judged: it takes {rows} rows with a loss to know what is usual"
    if findings.judged_from is not None:
        judged = f"judged from step {findings.judged_from:,} on"
    lone = [
        f"    step {one.step:,}: {one.signal} {one.value:.4g}, usually {one.usual:.4g}"
        for one in findings.lone
    ]
    parts = [
        *(head, judged),
        *(incident_lines(n, one) for n, one in enumerate(findings.incidents, 1)),
        *_listed("precursors", [*map(_precursor, findings.precursors)]),
        *_listed("single values that stood out (they open nothing)", lone),
    ]
    return "\n".join([*parts, "", state_at_end(findings, log)])


def _listed(title: str, lines: list[str]) -> list[str]:
    """The first of `lines` below their title."""
    if (more := len(lines) - MOST_LISTED) > 0:
        lines = [*lines[:MOST_LISTED], f"    and {more} more (--json has all)"]
    return [f"\n{title}:", *lines] if lines else []


def _precursor(one: Precursor) -> str:
    far = f", {told_z(one.z)} deviations off" if math.isfinite(one.z) else ""
    check = WHAT_TO_CHECK.get(one.signal) if one.z == math.inf else None
    beyond = f" {one.value:.4g}, beyond its limit; check: {check}" if check else ""
    return f"    step {one.step:,}: {one.signal}{far}{beyond}"


def incident_lines(number: int, found: Incident) -> str:
    """One incident as a paragraph."""
    late = found.detected_step - found.onset_step
    seen = "at once" if late == 0 else f"{_count(late, 'step')} later"
    lines = [
        f"\n#{number}  {_words(found.kind)} ({found.confidence:.0%} sure)",
        f"    began at step {found.onset_step:,} in {found.signal}, seen {seen}",
    ]
    if alone_moved(found):
        lines.append("    the loss did not rise")
    elif found.peak_loss is not None:
        before = "" if found.pre_loss is None else f"from {found.pre_loss:.4g} "
        lines.append(f"    loss went {before}to {found.peak_loss:.4g} at step {found.peak_step:,}")
    moves = [
        f"{name} at step {n:,}" for name, n in found.first_moves.items() if n < found.onset_step
    ]
    if moves:
        lines.append(f"    moved before: {', '.join(moves)}")
    if found.recurrences:
        times, step = times_phrase(found.recurrences), found.newest_onset_step
        lines.append(f"    there again {times} after the run had gone back, last at step {step:,}")
    lines.append(f"    {found.reason}")
    lines += [f"    {line}" for line in _causes(found)]
    if found.closed_step is None:
        lines.append("    still open at the end of the log")
    else:
        lines.append(f"    closed at step {found.closed_step:,}: {_words(found.outcome)}")
    return "\n".join(lines)


def state_at_end(findings: Findings, log: Log) -> str:
    """Where the run stands in its last row."""
    if not len(log):
        return "no row yet"
    said = f"at the end, step {log.steps[-1]:,}"
    loss = log.signals.get("loss")
    if loss is not None and loss.measured.any():
        row = loss.measured.nonzero()[0][-1]
        said += f": loss {loss.values[row] + 0.0:.4g}"
        said += f" at step {log.steps[row]:,}, none since" if row < len(log) - 1 else ""
    last = findings.incidents[-1] if findings.incidents else None
    if last is None or last.closed_step is not None:
        z, said = findings.last_z, f"{said}, no incident open"
        if z is None or z < DetectionSettings().suspect_z:
            return said
        return f"{said}; it stands out by {told_z(z)} deviations, and the next row would tell"
    since = f"#{len(findings.incidents)} open since step {last.onset_step:,}"
    return f"{said}, {since}: {_words(last.kind)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _words(name: object) -> str:
    return str(name).replace("_", " ")


def _causes(found: Incident) -> list[str]:
    """The likeliest cause and what speaks for it; what is doubtful about the log."""
    if not found.causes:
        return []
    likeliest, questions = found.causes[0], questions_in(found.causes)
    because = "; ".join(reason for reason in likeliest.reasons if reason not in questions)
    cause = f"cause: {CAUSE_WORDS[likeliest.cause]} ({likeliest.confidence:.0%}): {because}"
    return [cause, *questions]
