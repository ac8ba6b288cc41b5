"""Files of lines that are only added to: how a line gets there, and how lines are read back.

Law: what was added is durable and whole, or as if never tried; the torn last line of a process
that was killed is as if never written, and does not swallow the next.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def append_line(path: Path, line: bytes) -> None:
    """Durable and whole, or as if never tried. Several lines are one in this; raise OSError."""
    with path.open("a+b", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        if length and os.pread(file.fileno(), 1, length - 1) != b"\n":
            line = b"\n" + line  # what stands there was cut short: it must not swallow this
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                file.truncate(length)
                os.fsync(file.fileno())
            raise


def whole_lines(path: Path, offset: int, at_most: int) -> tuple[list[bytes], int]:
    """The lines from `offset` on, within `at_most` bytes, and the offset behind them."""
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read(at_most)
    whole = text[: text.rfind(b"\n") + 1]
    return whole.splitlines(), offset + len(whole)
