"""The closed sets of words that stand on the wire, in the database and on every page."""

from __future__ import annotations

from enum import StrEnum

from benchmarks.reference.source import meaning_of
from benchmarks.reference.table import table
from spikeguard_protocol import CommandState, IncidentState, Kind, Outcome, Role, Verb
from spikeguard_protocol.vocabulary import (
    COMMAND_STATE_WORDS,
    OUTCOME_WORDS,
    Health,
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
