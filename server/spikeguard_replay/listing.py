"""What a replay found, as text for a person."""

from __future__ import annotations

import math

from spikeguard_core.detection.noise import told_z
from spikeguard_core.detection.own_signals import WHAT_TO_CHECK
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.events import LoneValue, Precursor
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.finding import alone_moved
from spikeguard_core.suspicion import questions_in
from spikeguard_protocol.phrases import CAUSE_WORDS, times_phrase
from spikeguard_replay.judging import Findings
from spikeguard_replay.log import Log

MOST_PRECURSORS = 10  # in the list


def findings_listing(findings: Findings, log: Log) -> str:
    """A paragraph an incident; the last line is the state at the end of the log."""
    head = f"{findings.samples:,} samples, {_count(len(findings.incidents), 'incident')}"
    if findings.precursors:
        head += f", {_count(len(findings.precursors), 'precursor')}"
    incidents = [incident_lines(n, one) for n, one in enumerate(findings.incidents, 1)]
    precursors = [_precursor(one) for one in findings.precursors[:MOST_PRECURSORS]]
    if more := len(findings.precursors) - MOST_PRECURSORS:
        precursors += [f"    and {more} more (--json has all)"] if more > 0 else []
    lone = [_lone(one) for one in findings.lone[:MOST_PRECURSORS]]
    if len(findings.lone) > MOST_PRECURSORS:
        lone.append(f"    and {len(findings.lone) - MOST_PRECURSORS} more (--json has all)")
    parts = [
        *(head, judged_from(findings, log)),
        *incidents,
        *(["\nprecursors:"] if precursors else []),
        *precursors,
        *(["\nsingle values that stood out (they open nothing):"] if lone else []),
        *lone,
    ]
    return "\n".join([*parts, "", state_at_end(findings, log)])


def judged_from(findings: Findings, log: Log) -> str:
    """Which rows were judged."""
    if findings.judged_from is None:
        return (
            f"nothing was judged: it takes {DetectionSettings().watchable_after} rows with a loss "
            "to know what is usual"
        )
    row = log.steps.tolist().index(findings.judged_from) + 1
    return f"judged from step {findings.judged_from:,} on (row {row})"


def _lone(one: LoneValue) -> str:
    return f"    step {one.step:,}: {one.signal} {one.value:.4g}, usually {one.usual:.4g}"


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
        said += f": loss {loss.values[loss.measured][-1] + 0.0:.4g}"
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
