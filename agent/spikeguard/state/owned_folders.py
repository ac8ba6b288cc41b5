"""Which folders are this product's, and the only place where it removes any.

A folder may be removed if it has a name that spikeguard gives and holds a marker. `claim` writes
the marker into an empty folder, before anything else lies there, so a folder that somebody else
filled never gets one.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from contextlib import suppress
from pathlib import Path

MARKER = ".spikeguard"
_SAID = b"Written by spikeguard, which removes this folder when no rollback needs it any more.\n"


def claim(folder: Path) -> None:
    """Make `folder` ours before anything is written there; raise OSError where it is another's."""
    folder.mkdir(parents=True, exist_ok=True)
    if _is_marked(folder):
        return
    if any(folder.iterdir()):
        said = "holds files that spikeguard did not write: move it elsewhere"
        raise FileExistsError(errno.EEXIST, said, str(folder))
    with (folder / MARKER).open("wb") as file:
        file.write(_SAID)
        file.flush()
        os.fsync(file.fileno())


def is_owned(folder: Path, names: re.Pattern[str]) -> bool:
    """Whether `folder` has one of the `names` that we give, and our marker; a link has not."""
    return bool(names.fullmatch(folder.name)) and not folder.is_symlink() and _is_marked(folder)


def remove(folder: Path, names: re.Pattern[str]) -> bool:
    """Remove `folder` and all in it; False, and nothing is removed, where it is not owned."""
    if not is_owned(folder, names):
        return False
    with suppress(OSError):  # the marker last: a removal that is cut short can be taken up again
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != MARKER:
                entry.unlink()
        if [entry.name for entry in folder.iterdir()] == [MARKER]:
            (folder / MARKER).unlink()
            folder.rmdir()
    return True


def remove_beside(folder: Path, names: re.Pattern[str], first: str) -> bool:
    """The same in a thread, but for its file `first`, which goes at once."""
    if not is_owned(folder, names):
        return False
    (folder / first).unlink(missing_ok=True)
    name = "spikeguard-removal"
    threading.Thread(target=remove, args=(folder, names), name=name, daemon=True).start()
    return True


def sync_folder(folder: Path) -> None:
    """Have the names in it on the disk; raise OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_marked(folder: Path) -> bool:
    try:
        return (folder / MARKER).read_bytes() == _SAID
    except OSError:
        return False
