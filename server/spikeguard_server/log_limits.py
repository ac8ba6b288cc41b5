"""Where this process writes its log, and how often.

While the database is away everything that this process does by itself fails several times a second:
a message that is logged again and again about the same thing is written once a minute, with how
often it came. A second run's failure is another thing, and its traceback is written.
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from threading import Lock
from time import monotonic
from typing import Final

from spikeguard_server.log_format import context, formatter_for

EVERY_S: Final = 60.0
MAX_KEPT: Final = 1000  # messages, of all things
_Kind = tuple[str, int, str, str]


class RepeatLimit(logging.Filter):
    """Lets one of each kind of message about each thing through every `EVERY_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._seen: OrderedDict[tuple[_Kind, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the record; says of how many others it speaks."""
        now, key = monotonic(), (_kind(record), _about(record))
        with self._lock:
            since, count = self._seen.pop(key, (-EVERY_S, 0))
            passes = now - since >= EVERY_S
            self._seen[key] = (now, 0) if passes else (since, count + 1)
            if len(self._seen) > MAX_KEPT:
                self._seen.popitem(last=False)
        if passes and count:
            record.msg = f"{record.getMessage()} ({count} more like it in the last minutes)"
            record.args = None
        return passes


def _kind(record: logging.LogRecord) -> _Kind:
    error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    return record.name, record.levelno, str(record.msg), error


def _about(record: logging.LogRecord) -> str:
    """The run that is at work and what the message names; not numbers and errors' texts, which
    differ each time."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    named = [str(one)[:200] for one in arguments if not isinstance(one, int | float | Exception)]
    return "\n".join([str(context().get("run", "")), *named])


def write_log(form: str) -> None:
    """Write what this process logs, its libraries included, to standard error in `form`
    (`log_format.FORMS`; empty: text on a terminal, JSON elsewhere), repetitions left out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatLimit())
    handler.setFormatter(formatter_for(form, sys.stderr))
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(True)
    # The driver warns of each pipeline that an error ended, beside the error itself.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
