"""Server-sent events, as the WHATWG's HTML standard (section 9.2) writes them.

Law: an event that broke off before its blank line never happened. One that does not end is an
error at `MAX_EVENT` bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase

from spikeguard_client.reading import NotUnderstood, read
from spikeguard_client.shapes import AuditEntry

MAX_EVENT = 2**20  # bytes, with the names of its fields


class HappenedEvent(AuditEntry):
    """An audit entry as it comes by, with its name (`command.approve`) and its place."""

    event: str
    id: str  # what to go on after
    project: str
    run: str


@dataclass
class Place:
    """How far streams were read: the id behind which the next one goes on."""

    id: str | None = None

    @property
    def header(self) -> dict[str, str]:
        return {} if self.id is None else {"Last-Event-ID": self.id}


def lines_of(stream: BufferedIOBase) -> Iterator[bytes]:
    """Its lines, none of them longer than `MAX_EVENT`; one that is comes in pieces."""
    return iter(partial(stream.readline, MAX_EVENT), b"")


def read_events(lines: Iterable[bytes], place: Place) -> Iterator[HappenedEvent]:
    """The events in the lines of a stream. An id without an event moves the place, too: so a
    stream that told nothing yet says where it began."""
    fields: dict[str, str] = {}
    size = 0
    for line in lines:
        size += 0 if line.startswith(b":") else len(line)
        if max(size, len(line)) >= MAX_EVENT:
            raise NotUnderstood(f"an event is longer than {MAX_EVENT} bytes")
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not text:
            place.id = fields.get("id", place.id)
            if "data" in fields:
                yield _event(fields)
            fields, size = {}, 0
        elif not text.startswith(":"):
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            known = fields.get(name)
            fields[name] = value if name != "data" or known is None else f"{known}\n{value}"


def _event(fields: dict[str, str]) -> HappenedEvent:
    try:
        plain = json.loads(fields["data"])
    except (ValueError, RecursionError) as error:
        raise NotUnderstood("an event is not JSON") from error
    if not isinstance(plain, dict):
        raise NotUnderstood("an event is no object")
    named = {"event": fields.get("event", "message"), "id": fields.get("id", "")}
    return read(HappenedEvent, {**plain, **named})
