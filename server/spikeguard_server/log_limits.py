"""How this process writes its log: each message is one line, and repetitions are left out.

While the database is away everything that this process does by itself fails several times a second:
a message that is logged again and again is written once a minute, with how often it came. What
comes from outside is escaped, and a traceback is indented, so that no text looks like another line.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from threading import Lock
from time import monotonic
from typing import Any, Final

from spikeguard_protocol.escaping import printable

EVERY_S: Final = 60.0
MAX_KEPT: Final = 1000  # kinds of messages
_Kind = tuple[str, int, str, str]


class LineFormatter(logging.Formatter):
    """One line a message; what is not printable in it is written as its escape."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line itself."""
        return printable(super().formatMessage(record).rstrip())

    def formatException(self, ei: Any) -> str:
        """The traceback below it."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"    {printable(line)}" for line in lines)


class RepeatLimit(logging.Filter):
    """Lets one of each kind of message through every `EVERY_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._seen: OrderedDict[_Kind, tuple[float, int]] = OrderedDict()  # since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the record; says of how many others it speaks."""
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        kind = (record.name, record.levelno, str(record.msg), error)
        with self._lock:
            since, count = self._seen.pop(kind, (-EVERY_S, 0))
            passes = monotonic() - since >= EVERY_S
            self._seen[kind] = (monotonic(), 0) if passes else (since, count + 1)
            if len(self._seen) > MAX_KEPT:
                self._seen.popitem(last=False)
        if passes and count:
            record.msg = f"{record.getMessage()} ({count} more like it in the last minutes)"
            record.args = None
        return passes


def limit_repeats() -> None:
    """Write what this process logs to standard error, repetitions left out."""
    limit = RepeatLimit()
    handler = logging.StreamHandler()
    handler.addFilter(limit)
    handler.setFormatter(LineFormatter())
    ours = logging.getLogger("spikeguard_server")
    ours.addHandler(handler)
    ours.propagate = False
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        for other in logging.getLogger(name).handlers:
            other.addFilter(limit)
            other.setFormatter(LineFormatter())
