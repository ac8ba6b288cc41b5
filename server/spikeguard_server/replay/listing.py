"""The findings of a replay as text for a person."""

from __future__ import annotations

from spikeguard_server.domain.suspicion import questions_in
from spikeguard_server.replay.findings import Findings, Found


def findings_listing(findings: Findings) -> str:
    """A readable list: one paragraph an incident, a sentence if there were none."""
    head = f"{findings.samples:,} samples, {_count(len(findings.incidents), 'incident')}"
    if findings.precursors:
        head += f", {_count(len(findings.precursors), 'precursor')}"
    return "\n".join([head, *(_paragraph(n, one) for n, one in enumerate(findings.incidents, 1))])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _paragraph(number: int, found: Found) -> str:
    late = found.detected_step - found.onset_step
    seen = "at once" if late == 0 else f"{_count(late, 'step')} later"
    lines = [
        f"\n#{number}  {str(found.judgement.kind).replace('_', ' ')} "
        f"({found.judgement.confidence:.0%} sure)",
        f"    began at step {found.onset_step} in {found.signal}, seen {seen}",
    ]
    if found.peak_loss is not None:
        before = "" if found.pre_loss is None else f"from {found.pre_loss:.4g} "
        lines.append(f"    loss went {before}to {found.peak_loss:.4g} at step {found.peak_step}")
    lines += _earlier(found)
    lines.append(f"    {found.judgement.reason}")
    lines += [f"    {line}" for line in _causes(found)]
    lines.append(f"    {_ending(found)}")
    return "\n".join(lines)


def _earlier(found: Found) -> list[str]:
    """Signals that moved before the incident began."""
    moves = [f"{name} at step {n}" for name, n in found.first_moves.items() if n < found.onset_step]
    return [f"    moved before: {', '.join(moves)}"] if moves else []


def _causes(found: Found) -> list[str]:
    """The likeliest cause and what speaks for it; what is doubtful about the log."""
    if not found.causes:
        return []
    likeliest, questions = found.causes[0], questions_in(found.causes)
    name = str(likeliest.cause).replace("_", " ")
    because = "; ".join(reason for reason in likeliest.reasons if reason not in questions)
    return [f"likely cause: {name} ({likeliest.confidence:.0%}): {because}", *questions]


def _ending(found: Found) -> str:
    if found.closed_step is None:
        return "still open at the end of the file"
    return f"closed at step {found.closed_step}: {str(found.outcome).replace('_', ' ')}"
