"""Files that hold secrets: readable by their owner alone, read where nobody else could write them.

Who a file belongs to is asked of what was opened, not of its name.
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


def write_own(path: Path, text: str) -> None:
    """Write `text` with mode 0600 from the first byte, and replace `path` in one move."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # whoever was there first keeps no hold on it
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def not_ours(found: os.stat_result) -> str | None:
    """Why another user can have written what is in a file; None if none can."""
    if not stat.S_ISREG(found.st_mode):
        return "is no plain file"
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {found.st_uid}, who could put tokens of theirs into it"
    if found.st_mode & stat.S_IWOTH:
        return "can be written by every user of this machine"
    return None
