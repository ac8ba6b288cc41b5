"""The digest chain of the audit: each entry carries the digest of the entry before and of itself.

Invariants: pure. A chain belongs to one run. What it proves, it proves with digests that were
exported while they were the newest: whoever owns the table can make a chain anew, and only an
exported digest, called a head, shows that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Heads = Mapping[int, frozenset[bytes]]  # number of the entry -> the digests exported for it


@dataclass(frozen=True, slots=True)
class ChainedEntry:
    """One entry as its digest covers it."""

    number: int  # within the run, from 1
    content: str  # every column but the digest, as docs/protocol.md says
    digest: bytes | None


class Fault(StrEnum):
    """Why an entry does not fit."""

    MISSING = "missing"
    CHANGED = "changed"
    UNCHAINED = "unchained"
    REWRITTEN = "rewritten"
    CUT = "cut"


TOLD: Mapping[Fault, str] = {
    Fault.MISSING: "is not there, and later ones are",
    Fault.CHANGED: "or one before it was changed, or put in",
    Fault.UNCHAINED: "has no digest",
    Fault.REWRITTEN: "is not the one whose digest was exported",
    Fault.CUT: "was exported, and the record ends before it",
}


@dataclass(frozen=True, slots=True)
class ChainFault:
    """The first entry of a run that does not fit."""

    number: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class Checked:
    """What a run's entries came to."""

    entries: int
    finding: ChainFault | None


def digest_of(previous: bytes | None, content: str) -> bytes:
    """The digest that the entry behind `previous` carries."""
    head = "" if previous is None else previous.hex()
    return hashlib.sha256(f"previous={head}\n{content}".encode()).digest()


def check_chain(entries: Iterable[ChainedEntry], heads: Heads) -> Checked:
    """Hold one run's entries, by number, against their digests and the exported heads."""
    previous: bytes | None = None
    count = 0
    for entry in entries:
        if (fault := _fault(entry, count + 1, previous, heads)) is not None:
            return Checked(count, fault)
        count += 1
        previous = entry.digest
    cut = min((number for number in heads if number > count), default=None)
    return Checked(count, None if cut is None else ChainFault(cut, Fault.CUT))


def _fault(
    entry: ChainedEntry, expected: int, previous: bytes | None, heads: Heads
) -> ChainFault | None:
    stored, recomputed = entry.digest, digest_of(previous, entry.content)
    if entry.number != expected:
        return ChainFault(expected, Fault.MISSING)
    if stored is None:
        return ChainFault(expected, Fault.UNCHAINED)
    if stored != recomputed:
        return ChainFault(expected, Fault.CHANGED)
    if not heads.get(expected, frozenset()) <= {entry.digest}:
        return ChainFault(expected, Fault.REWRITTEN)
    return None
