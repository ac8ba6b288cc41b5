"""The closed sets of words that stand on the wire, in the database on every page, and signals."""

from __future__ import annotations

from enum import StrEnum

from benchmarks.reference.table import meaning_of, table
from spikeguard_core.detection.norms import LEADING
from spikeguard_protocol import CommandState, IncidentState, Kind, Outcome, Role, Signal, Verb
from spikeguard_protocol.vocabulary import (
    COMMAND_STATE_WORDS,
    OUTCOME_WORDS,
    Health,
    OptionalSignal,
    SegmentReason,
)

SETS: tuple[type[StrEnum], ...] = (
    Kind, IncidentState, Outcome, Verb, CommandState, Health, SegmentReason, Role,
)  # fmt: skip
HEAD = """# Words

Words of the API, the database, the metrics' labels and every page.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(kind) for kind in SETS)])


def _section(kind: type[StrEnum]) -> str:
    rows = [(f"`{member.value}`", _meaning(kind, member)) for member in kind]
    return f"## {kind.__name__}\n\n{kind.__doc__}\n\n{table(('word', 'meaning'), rows)}"


def _meaning(kind: type[StrEnum], member: StrEnum) -> str:
    if isinstance(member, CommandState):
        return COMMAND_STATE_WORDS[member]
    meaning = meaning_of(kind, member.name)
    return f"{OUTCOME_WORDS[member]}: {meaning}" if isinstance(member, Outcome) else meaning


SIGNALS = """# Signals

What is measured at a step.

How: [measurement](../measurement.md). What is judged: [detection](../detection.md). Other names are
signals of your own.
"""
OPENS = "incidents"
WARNS = "precursors"
_JUDGED = {Signal.LOSS.value: OPENS, **dict.fromkeys(LEADING, WARNS)}


def signals() -> str:
    """The whole page of signals."""
    return "\n".join([
        SIGNALS,
        "## Of every run\n",
        _table(Signal),
        "## Of some runs\n",
        f"{OptionalSignal.__doc__}\n",
        _table(OptionalSignal),
    ])  # fmt: skip


def _table(kind: type[StrEnum]) -> str:
    rows = [
        (f"`{one.value}`", meaning_of(kind, one.name), _JUDGED.get(one.value, "")) for one in kind
    ]
    return table(("signal", "unit and meaning", "an anomaly opens"), rows)
