"""The outboxes that attempts left which are dead: found, cut down, sent by whoever lives.

What is none of ours stays where it is.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from spikeguard.faults import log
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.spool import LOCK
from spikeguard_protocol import RunId
from spikeguard_protocol.identity import ATTEMPT_PATTERN

KILLED = "killed"


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
    for lock in sorted(parent.glob(f"*/{LOCK}")):
        with suppress(OSError):
            handle = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield lock.parent.name
            finally:
                os.close(handle)


def earlier_outboxes(
    parent: Path, run: RunId, tell: Callable[[str], object] = log.warning
) -> list[Outbox]:
    """The outboxes under `parent` whose attempts are dead and left something, oldest first.

    Never raises: what cannot be read stays where it is. `tell`: called with what was damaged.
    """
    found = []
    for folder in attempt_folders(parent):
        try:
            outbox = Outbox(folder, run, folder.name, sys.maxsize, tell)
            if not outbox.ended and outbox.sequence > 0:
                outbox.end_killed(KILLED)
        except (OSError, ValueError):
            continue  # its attempt is alive and holds the lock, or the disk will not have it
        if outbox.empty:
            outbox.close()
        else:
            found.append(outbox)
    return found


def shrink_to(limit: int, outboxes: Sequence[Outbox]) -> int:
    """Drop what is over `limit` bytes, the oldest attempt's first; returns the bytes that stay."""
    for outbox in outboxes:
        while sum(each.size for each in outboxes) > limit and outbox.drop():
            pass
        if outbox.dropped:
            outbox.tell_dropped()
    return sum(each.size for each in outboxes)
