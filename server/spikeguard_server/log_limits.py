"""Where this process writes its log, and how often.

While the database is away everything that this process does by itself fails several times a second:
a message that is logged again and again is written once a minute, with how often it came.
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from threading import Lock
from time import monotonic
from typing import Final

from spikeguard_server.log_format import formatter_for

EVERY_S: Final = 60.0
MAX_KEPT: Final = 1000  # kinds of messages
_Kind = tuple[str, int, str, str]


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


def write_log(form: str) -> None:
    """Write what this process logs, its libraries included, to standard error in `form`
    (`log_format.FORMS`; empty: text on a terminal, JSON elsewhere), repetitions left out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatLimit())
    handler.setFormatter(formatter_for(form, sys.stderr))
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(True)
