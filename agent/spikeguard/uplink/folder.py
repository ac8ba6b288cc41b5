"""The folder in which an attempt's outbox lies: claimed by one process, noted in, removed.

Law: nothing here knows what a message is. The lock's file also holds the highest number of one.
No link is followed: what is written and removed lies here, whoever else can write here. Where
several users may write nothing lies that one of them could have put there.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from spikeguard_protocol.identity import ATTEMPT_PATTERN

_NOTE = re.compile(r"([0-9]{12}) (open|ended)")


def own_problem(top: Path, *names: str) -> str | None:
    """Why another user could have put there, or exchange, what lies in `top`/`names`; None: nobody.

    What is missing is made, for this user alone. `top` may be one that the system lets all write
    in, as /tmp: what is below is this user's. Whoever owns a folder above `top`, or a link on the
    way to it, can exchange all that is below.
    """
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    real = top.resolve()
    for place in (top.absolute(), real):
        for path in (place, *place.parents):
            if (owner := path.lstat().st_uid) not in _trusted(path, real):
                return f"{path} belongs to user {owner}"
    path = top
    for name in names:
        path /= name
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return f"{path} is no folder"
        if found.st_uid != os.geteuid():
            return f"{path} belongs to user {found.st_uid}"
        if found.st_mode & stat.S_IWOTH:
            return f"all may write in {path}"
    return None


def _trusted(path: Path, top: Path) -> set[int]:
    """Whose folders do no harm there; whoever owns the root may be unmapped in a container."""
    ours = {0, os.geteuid()}
    return ours if path == top else ours | {os.stat("/").st_uid}


def attempt_folders(parent: Path) -> list[Path]:
    """Oldest first; two attempts may tidy the same parent, so any of them may vanish meanwhile."""
    dated = []
    with suppress(OSError):
        for path in parent.iterdir():
            if ATTEMPT_PATTERN.fullmatch(path.name) and not path.is_symlink():
                with suppress(OSError):
                    dated.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(dated)]


def live_attempts(parent: Path) -> Iterator[str]:
    """Attempts whose folder a process of this machine holds."""
    for lock in sorted(parent.glob("*/lock")):
        with suppress(OSError):
            handle = os.open(lock, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield lock.parent.name
            finally:
                os.close(handle)


def read_note(handle: int) -> tuple[int, bool]:
    """Highest number and whether the attempt ended; a power loss may leave NULs in its place."""
    try:
        text = os.pread(handle, 32, 0).decode("ascii", "replace")
    except OSError:
        return 0, False
    note = _NOTE.match(text)
    return (int(note[1]), note[2] == "ended") if note else (0, False)


def claim(folder: Path) -> int:
    """Lock the folder for this process; raise OSError (BlockingIOError) if another lives in it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def give_up(folder: Path, handle: int, used_up: bool) -> None:
    """Unlock the folder; one that is `used_up` goes, unless something else lies there."""
    if used_up:
        with suppress(OSError):
            (folder / "lock").unlink(missing_ok=True)
            folder.rmdir()
    with suppress(OSError):  # what a network's file system says as it closes
        os.close(handle)


def write_note(handle: int, sequence: int, state: str) -> None:
    """That messages up to `sequence` have got a number, and whether more will."""
    with suppress(OSError):
        os.pwrite(handle, f"{sequence:012d} {state:5}".encode(), 0)


def synced(file: IO[bytes]) -> bool:
    """Close `file`; whether all of it is on the disk."""
    try:
        file.flush()
        os.fdatasync(file.fileno())
    except OSError:
        return False
    finally:
        with suppress(OSError):
            file.close()
    return True
