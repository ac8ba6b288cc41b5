"""Lines of JSON with a checksum: of the journal, and of the messages that wait for the server.

A line is a JSON object that ends with its number and a checksum. The name of its file is part of
the checksum, so a line that was moved to another file or another place is not taken for sound.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, NamedTuple

_SEALED = re.compile(rb'(.*), "n": ([0-9]{1,15}), "crc": "([0-9a-f]{8})"\}', re.DOTALL)
SPOOLED = b'{"total":'  # how a line of a message begins that waits for the server


class Position(NamedTuple):
    """A place between two records of an attempt."""

    number: int = 1  # of the record that comes next
    total: int = 0  # samples before it


class SpooledLine(NamedTuple):
    """One record that waits for the server."""

    start: Position
    end: Position
    at: float  # seconds since the epoch, when the record was made
    entry: dict[str, Any]  # a step's sample: `segment`, `step`, `signals`; else `record`
    raw: bytes  # the whole line

    @property
    def record(self) -> bytes:
        """The record's text as it travels; empty for a step's sample."""
        body = self.raw[: self.raw.rindex(b', "n": ')]
        return body.partition(b'"record":')[2]


def seal(body: bytes, number: int, name: str) -> bytes:
    """`body`, the text of a JSON object, as line `number` of the file called `name`."""
    text = body[:-1]
    return b'%b, "n": %d, "crc": "%08x"}\n' % (text, number, _checksum(text, number, name))


def unseal(line: bytes, name: str) -> tuple[int, bool] | None:
    """The line's number, and whether it is unchanged; None for a line without a checksum."""
    found = _SEALED.fullmatch(line)
    if found is None:
        return None
    number = int(found[2])
    return number, int(found[3], 16) == _checksum(found[1], number, name)


def _checksum(text: bytes, number: int, name: str) -> int:
    return zlib.crc32(text, zlib.crc32(f"{name} {number}".encode()))


def spool_name(attempt: str, message: int) -> str:
    """The name under which the lines of that message are sealed."""
    return f"{attempt}/{message}"


def read_spooled(data: bytes, name: str) -> tuple[list[SpooledLine], int]:
    """Every sound line of `data` by number, each once; how many bytes belong to none."""
    found: dict[int, SpooledLine] = {}
    damaged = 0
    for raw in data.split(b"\n"):
        if line := _spooled(raw, name):
            found.setdefault(line.start.number, line)
        else:
            damaged += len(raw)
    return [found[number] for number in sorted(found)], damaged


def _spooled(raw: bytes, name: str) -> SpooledLine | None:
    sealed = unseal(raw, name)
    if sealed is None or not sealed[1]:
        return None
    try:
        entry = json.loads(raw)
        start = Position(sealed[0], entry["total"])
        samples = 1 if "step" in entry else entry.get("lost", 0)
        end = Position(start.number + 1, start.total + samples)
        return SpooledLine(start, end, entry["at"], entry, raw)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
