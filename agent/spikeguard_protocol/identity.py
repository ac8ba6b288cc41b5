"""Who is who: names, ids, places in a run's history and in its data order.

An identity is checked when it is made, so that a bad one cannot travel. A segment is an unbroken
stretch of trained steps; the same step number may stand in several of them, so a step is only ever
named together with its segment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from spikeguard_protocol.errors import ProtocolError

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ATTEMPT_PATTERN = re.compile(r"[0-9a-f]{16}")
TARGET_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
TAG_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=+/-]{0,39}")
MAX_TAGS = 20  # of a run
TAGS_FACT = "tags"  # what an attempt tells of itself: its run's tags, with commas
RUN_HEADER = "Spikeguard-Run"  # of a posted message: `PROJECT/RUN`, by which it has its turn
MAX_STEP = 2**53  # the largest integer that every JSON reader keeps exactly
MAX_DIGITS = 19  # of the number of an incident or a command
DEFAULT_PROJECT = "default"
OWN_RULE = 1_000_000_000  # from this number on a command is the job's own: no server counts so far
RUN_ITSELF = 0  # in place of an incident's number, in the id of a command of the run itself


def check_name(field: str, value: str) -> str:
    """Return `value` if it can name a project or a run; raise `ProtocolError` otherwise."""
    if not NAME_PATTERN.fullmatch(value):
        raise ProtocolError(
            field,
            "takes 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit",
            f"Rename {value[:80]!r}",
        )
    return value


def check_attempt(field: str, value: str) -> str:
    """Return `value` if it is an attempt id; raise `ProtocolError` otherwise."""
    if not ATTEMPT_PATTERN.fullmatch(value):
        raise ProtocolError(
            field, "takes 16 lower-case hexadecimal digits", "Let the agent make the attempt id"
        )
    return value


def check_count(field: str, value: int, *, least: int = 0) -> int:
    """Return `value` if it lies in [least, 2**53]; raise `ProtocolError` otherwise."""
    if not least <= value <= MAX_STEP:
        raise ProtocolError(field, f"takes a whole number from {least} to 2**53", f"Got {value}")
    return value


@dataclass(frozen=True, slots=True)
class RunId:
    """One training job through all its restarts; unique by (project, name)."""

    project: str
    name: str

    def __post_init__(self) -> None:
        check_name("project", self.project)
        check_name("run", self.name)

    def __str__(self) -> str:
        return self.name if self.project == DEFAULT_PROJECT else f"{self.project}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> RunId:
        """Read `name` or `project/name`."""
        project, slash, name = text.rpartition("/")
        return cls(project if slash else DEFAULT_PROJECT, name)


def _is_number(text: str) -> bool:
    """Whether it is one that fits where numbers are stored; `int` refuses thousands of digits."""
    return text.isdecimal() and len(text) <= MAX_DIGITS


@dataclass(frozen=True, slots=True)
class IncidentId:
    """Public id of an incident: `gpt-124m-7#3`."""

    run: RunId
    number: int  # from 1, within the run; 0: the run itself, in the ids of its own commands

    def __post_init__(self) -> None:
        check_count("incident", self.number)

    def __str__(self) -> str:
        return f"{self.run}#{self.number}"

    @classmethod
    def parse(cls, text: str) -> IncidentId:
        """Read `run#3`; raise `ProtocolError` for anything else."""
        run, hash_sign, number = text.rpartition("#")
        if not hash_sign or not _is_number(number) or not int(number):
            raise ProtocolError("incident", "is written RUN#NUMBER", f"Got {text[:80]!r}")
        return cls(RunId.parse(run), int(number))


@dataclass(frozen=True, slots=True)
class CommandId:
    """Public id of a command: `gpt-124m-7#3.1`, the first command of incident 3, or
    `gpt-124m-7#0.1`, the first that was ordered of the run without an incident."""

    incident: IncidentId
    number: int  # from 1, within the incident

    def __post_init__(self) -> None:
        check_count("command", self.number, least=1)

    def __str__(self) -> str:
        return f"{self.incident}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> CommandId:
        """Read `run#3.1`; raise `ProtocolError` for anything else."""
        incident, dot, number = text.rpartition(".")
        if not dot or "#" not in incident or not _is_number(number):
            raise ProtocolError("command", "is written RUN#INCIDENT.NUMBER", f"Got {text[:80]!r}")
        run, _, of = incident.rpartition("#")
        if _is_number(of) and not int(of):
            return cls(IncidentId(RunId.parse(run), RUN_ITSELF), int(number))
        return cls(IncidentId.parse(incident), int(number))

    @property
    def of_run(self) -> bool:
        """Whether it was ordered of the run itself, without an incident."""
        return self.incident.number == RUN_ITSELF


@dataclass(frozen=True, slots=True)
class SegmentId:
    """An unbroken stretch of trained steps."""

    attempt: str  # 16 hex digits, made by the agent
    number: int  # from 0, within the attempt

    def __post_init__(self) -> None:
        check_attempt("attempt", self.attempt)
        check_count("segment", self.number)


@dataclass(frozen=True, slots=True)
class SegmentPoint:
    """A place in the tree of history: the state after `step` of `segment`."""

    segment: SegmentId
    step: int

    def __post_init__(self) -> None:
        check_count("step", self.step)


# ---- positions in the data order: what a step, or each of many steps, consumed ------------------


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Positions [first, end) in the data order; one position is one optimizer step's batch."""

    first: int
    end: int

    def __post_init__(self) -> None:
        if 0 <= self.first < self.end <= MAX_STEP:
            return  # a message holds hundreds of them
        check_count("first", self.first)
        check_count("end", self.end)
        if self.end <= self.first:
            raise ProtocolError(
                "end", f"lies after first ({self.first})", f"Got [{self.first}, {self.end})"
            )

    def __len__(self) -> int:
        return self.end - self.first

    def __contains__(self, position: int) -> bool:
        return self.first <= position < self.end

    def __str__(self) -> str:
        return f"[{self.first}, {self.end})"

    @property
    def phrase(self) -> str:
        """`batch 240`, `batches 239 to 244 (6)`."""
        return stretch_phrase(self.first, self.end - 1)


def stretch_phrase(first: int, last: int) -> str:
    """The same of positions that may be none."""
    if first >= last:
        return f"batch {first:,}"
    return f"batches {first:,} to {last:,} ({last - first + 1:,})"


@dataclass(frozen=True, slots=True)
class EvenRanges(Sequence[BatchRange]):
    """`length` ranges of `size` positions that follow one another from `first` on.

    Nearly always each step consumes as much as the one before and goes on where that ended, so the
    batches of many steps travel as three numbers.
    """

    first: int
    size: int
    length: int

    def __post_init__(self) -> None:
        check_count("first", self.first)
        check_count("size", self.size, least=1)
        check_count("length", self.length)
        if self.first + self.size * self.length > MAX_STEP:
            raise ProtocolError("length", "leaves the last range below 2**53", f"Got {self.length}")

    @classmethod
    def of(cls, ranges: Sequence[BatchRange | None]) -> EvenRanges | None:
        """The same ranges, if they are even; None where they are not, or not all known."""
        if isinstance(ranges, EvenRanges):
            return ranges
        if not ranges or (start := ranges[0]) is None:
            return None
        size = len(start)
        for expected, found in enumerate(ranges):
            first = start.first + expected * size
            if found is None or found.first != first or found.end != first + size:
                return None
        return cls(start.first, size, len(ranges))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[BatchRange]:
        ends = range(self.first + self.size, self.first + self.size * (self.length + 1), self.size)
        return (BatchRange(end - self.size, end) for end in ends)

    @overload
    def __getitem__(self, at: int) -> BatchRange: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[BatchRange]: ...
    def __getitem__(self, at: int | slice) -> BatchRange | Sequence[BatchRange]:
        rows = range(self.length)[at]
        if isinstance(rows, int):
            first = self.first + rows * self.size
            return BatchRange(first, first + self.size)
        if rows.step != 1:
            return [self[row] for row in rows]
        return EvenRanges(self.first + rows.start * self.size, self.size, len(rows))
