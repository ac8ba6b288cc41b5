"""Whether the data of an incident comes from a source that was behind an earlier one of its run.

Invariants: pure. What a batch held is known only of batches that were left out and that the job
names; an earlier incident counts only where the data is what it is put down to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_TOLD = 3  # sources in a sentence
LONGEST = 60  # characters of a name in a sentence


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The names of what one incident's commands left out."""

    incident: int  # number
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DataRecord:
    """What the record names of the data of an incident and of earlier ones."""

    here: tuple[str, ...] = ()
    earlier: tuple[LeftOut, ...] = ()  # put down to the data, oldest first


NOTHING_NAMED = DataRecord()


@dataclass(frozen=True, slots=True)
class SharedSource:
    """A source that is behind an incident and behind earlier ones."""

    name: str
    incidents: tuple[int, ...]  # the earlier ones


def source_of(name: str) -> str:
    """The source of `shard:offset`; a document id is a source of its own."""
    head, _, offset = name.rpartition(":")
    return head if head and offset.isdecimal() else name


def shared_sources(record: DataRecord) -> tuple[SharedSource, ...]:
    """The sources of this incident's data that were left out in earlier ones too."""
    found = []
    for source in _sources(record.here):
        incidents = [one.incident for one in record.earlier if source in _sources(one.names)]
        if incidents:
            found.append(SharedSource(source, tuple(incidents)))
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """The sources of `names` for a sentence: the first few, and how many more there are."""
    sources = _sources(names)
    told = ", ".join(_cut(source) for source in sources[:MOST_TOLD])
    more = len(sources) - MOST_TOLD
    return f"{told} and {more} more" if more > 0 else told


def numbered(incidents: Sequence[int]) -> str:
    """Incidents by their numbers, for a sentence."""
    *most, last = [str(number) for number in sorted(set(incidents))]
    return f"incidents {', '.join(most)} and {last}" if most else f"incident {last}"


def _sources(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(source_of(name) for name in names))


def _cut(source: str) -> str:
    return source if len(source) <= LONGEST else f"{source[:LONGEST]}..."
