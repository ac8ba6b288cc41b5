"""The log of this process: its two forms, text for people or one JSON object a line, and how often.

While the database is away everything that this process does by itself fails several times a second:
a message that is logged again and again about the same thing is written once a minute. A second
run's failure is another thing, and its traceback is written.

A record is one line, whatever its text came from; in the form for people a traceback stands below
it, indented. What is known of the work that is done (its request, run and incident) is kept in the
context, which follows it into other threads.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

from spikeguard_protocol.escaping import printable

FORMS: Final = ("json", "text")
EVERY_S: Final = 60.0
MAX_KEPT: Final = 1000  # messages, of all things
_DIGITS: Final = re.compile(r"\d+")
_context: ContextVar[Mapping[str, str | int]] = ContextVar("log_context")


def add_context(**known: str | int) -> None:
    """Every record from here on in this context (a request, a message, a job) has these fields."""
    _context.set({**_context.get({}), **known})


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
        """The object, with what is known of the work: request, run, incident."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_context.get({}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class RepeatLimit(logging.Filter):
    """Lets a message about a run through once every `EVERY_S`, whatever its numbers are."""

    def __init__(self) -> None:
        super().__init__()
        self._written = dict[tuple[object, str], float]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the record."""
        now, key = monotonic(), (_context.get({}).get("run"), _DIGITS.sub("", record.getMessage()))
        if now - self._written.get(key, -EVERY_S) < EVERY_S:
            return False
        if len(self._written) >= MAX_KEPT:
            self._written.clear()
        self._written[key] = now
        return True


def write_log(form: str) -> None:
    """Write what this process logs, its libraries included, to standard error in `form`
    (`FORMS`; empty: text on a terminal, JSON elsewhere), repetitions left out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatLimit())
    people = form == "text" or (not form and sys.stderr.isatty())
    handler.setFormatter(LineFormatter() if people else JsonFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(True)
    # The driver warns of each pipeline that an error ended, beside the error itself.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
