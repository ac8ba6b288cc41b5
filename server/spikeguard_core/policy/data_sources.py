"""The sources of an incident's data: which of them struck before, and what leaving one out costs.

Names are the job's own (`name_batch`): documents, or `shard:offset`, which is of its shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

MOST_TOLD = 3  # sources in a sentence
LONGEST = 60  # characters of a name in a sentence
COMMON = 0.25  # of the batches just before: what more of them hold is in any two by chance
OF_DATA = frozenset({"data", "source"})  # words in the name of a mitigation that changes the data


@dataclass(frozen=True, slots=True)
class IncidentData:
    """The names in one incident's data: of its onset's batch, else of what was left out for it."""

    incident: int  # number
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DataRecord:
    """What the record names of the data of an incident and of earlier ones."""

    here: tuple[str, ...] = ()
    earlier: tuple[IncidentData, ...] = ()  # put down to the data, oldest first
    calm: tuple[tuple[str, ...], ...] = ()  # names in each batch just before the onset

    def common(self, source: str) -> bool:
        """Whether many of the batches that did no harm hold it too."""
        holding = sum(source in sources_of(names) for names in self.calm)
        return holding > COMMON * len(self.calm)


NOTHING_NAMED = DataRecord()


@dataclass(frozen=True, slots=True)
class SharedSource:
    """A source that is behind an incident and behind earlier ones."""

    name: str
    incidents: tuple[int, ...]  # the earlier ones


def shared_sources(record: DataRecord) -> tuple[SharedSource, ...]:
    """The sources of this incident's data that are in that of earlier ones too."""
    found = []
    for source in sources_of(record.here):
        incidents = [one.incident for one in record.earlier if source in sources_of(one.names)]
        if incidents and not record.common(source):
            found.append(SharedSource(source, tuple(incidents)))
    return tuple(found)


def source_of(name: str) -> str:
    """The source of `shard:offset`; a document id is a source of its own."""
    head, _, offset = name.rpartition(":")
    return head if head and offset.isdecimal() else name


def sources_of(names: Iterable[str]) -> list[str]:
    """Each source of `names` once, in their order."""
    return list(dict.fromkeys(source_of(name) for name in names))


def struck_twice(record: DataRecord) -> str:
    """Names the sources that are behind this incident and earlier ones; empty where none is."""
    shared = shared_sources(record)
    if not shared:
        return ""
    earlier = numbered([number for one in shared for number in one.incidents])
    return f"The same source twice: {listed([one.name for one in shared])}, here and in {earlier}."


def cost_without(record: DataRecord, steps: int) -> str:
    """What it costs to leave out for `steps` steps what struck twice, by its share of the names in
    the batches just before."""
    left_out = {one.name for one in shared_sources(record)}
    before = [source_of(name) for names in record.calm for name in names]
    if not before:
        return (
            f"What leaving it out for {steps:,} steps costs is not known: the batches just before "
            "were not named."
        )
    mine = sum(source in left_out for source in before)
    share = f"about {mine / len(before):.1%}" if mine else f"less than {1 / len(before):.1%}"
    return (
        f"Leaving it out for {steps:,} steps costs {share} of their data ({mine:,} of "
        f"{len(before):,} names in the {len(record.calm)} batches just before)."
    )


def suiting(mitigations: Iterable[str], record: DataRecord) -> list[str]:
    """Those of a job's mitigations that leave out what struck twice, by their names: first those
    that name it (`without-web-de`), then those of the data (`swap-data`)."""
    shared = {_slug(one.name) for one in shared_sources(record)}
    if not shared:
        return []
    names = list(mitigations)
    named = [name for name in names if any(f"-{slug}-" in f"-{name}-" for slug in shared if slug)]
    return named + [n for n in names if n not in named and OF_DATA & set(n.split("-"))]


def _slug(source: str) -> str:
    """`data/Web_DE.bin` as a mitigation may be called: `web-de`."""
    return re.sub(r"[^a-z0-9]+", "-", PurePosixPath(source).stem.lower()).strip("-")


def listed(names: Sequence[str]) -> str:
    """The sources of `names` for a sentence: the first few, and how many more there are."""
    sources = sources_of(names)
    told = ", ".join(_cut(source) for source in sources[:MOST_TOLD])
    more = len(sources) - MOST_TOLD
    return f"{told} and {more} more" if more > 0 else told


def numbered(incidents: Sequence[int]) -> str:
    """Incidents by their numbers, for a sentence."""
    *most, last = [str(number) for number in sorted(set(incidents))]
    return f"incidents {', '.join(most)} and {last}" if most else f"incident {last}"


def _cut(source: str) -> str:
    return source if len(source) <= LONGEST else f"{source[:LONGEST]}..."
