"""Files that are opened without a wait: a pipe or a device in the place of a file is none.

Law: who waits at a pipe waits for ever, and what is read of a device has no end. Both are an
`OSError`, as if the file could not be read.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO, Any


def open_plain(path: Path, flags: int = os.O_RDONLY, mode: str = "rb") -> IO[Any]:
    """The file, opened with `flags` and, where it is made, for this user alone; raise OSError where
    it is none."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        return os.fdopen(handle, mode)
    except BaseException:
        os.close(handle)
        raise


def read_plain(path: Path) -> bytes:
    """All of it; raise OSError."""
    with open_plain(path) as file:
        found: bytes = file.read()
    return found
