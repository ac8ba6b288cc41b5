"""Files that hold secrets, read only where nobody else could have written them.

Invariants: who a file belongs to is asked of what was opened, not of its name.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spikeguard_cli.command import CommandFailed


def read_own(path: Path) -> str:
    """What is in the file; raise `CommandFailed` where another user of the machine can have put it
    there, `OSError` where it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if (why := not_ours(os.fstat(descriptor))) is not None:
        os.close(descriptor)
        raise CommandFailed(
            f"{path} {why}: it is not read. If you made it, `chown` it to yourself and "
            f"`chmod 600` it; else remove it"
        )
    with os.fdopen(descriptor, encoding="utf-8") as file:
        return file.read()


def not_ours(found: os.stat_result) -> str | None:
    """Why another user can have written what is in a file; None if none can."""
    if not stat.S_ISREG(found.st_mode):
        return "is no plain file"
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {found.st_uid}, who could put tokens of theirs into it"
    if found.st_mode & stat.S_IWOTH:
        return "can be written by every user of this machine"
    return None
