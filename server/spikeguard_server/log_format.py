"""The fields of a log record, and its two forms: text for people, or one JSON object a line.

Invariants: a record is one line, whatever its text came from; in the form for people a traceback
stands below it, indented. What is known of the work that is done (its request, run and incident) is
kept in the context, which follows it into other threads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from spikeguard_protocol.escaping import printable

FORMS: Final = ("json", "text")
KNOWN: Final = ("request_id", "run", "incident")  # fields of a record, where they are known
_context: ContextVar[Mapping[str, str | int]] = ContextVar("log_context")


def add_context(**known: str | int) -> None:
    """Every record from here on in this context (a request, a message, a job) has these fields."""
    _context.set({**_context.get({}), **known})


def context() -> Mapping[str, str | int]:
    """What is known here."""
    return _context.get({})


class LineFormatter(logging.Formatter):
    """For people: level, logger and message; what is not printable is written as its escape."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line itself."""
        return printable(super().formatMessage(record).rstrip())

    def formatException(self, ei: Any) -> str:
        """The traceback below it."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"    {printable(line)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """For programs: one object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """The object; `extra` fields of a record come before those of its context."""
        known = {**context(), **{k: v for k, v in vars(record).items() if k in KNOWN}}
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **known,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def formatter_for(form: str, stream: TextIO) -> logging.Formatter:
    """The formatter of `form`; where that is empty, of what reads `stream`."""
    people = form == "text" or (not form and stream.isatty())
    return LineFormatter() if people else JsonFormatter()
