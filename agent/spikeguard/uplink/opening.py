"""Opens the way to the server on rank 0: the outbox, who carries its messages, and what earlier
attempts left.

Without a server everything waits on disk for `spikeguard sync`, within the same limit. What dead
attempts left may take half of that limit: whatever is over goes as this attempt begins.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from spikeguard.commands.orders import Inbox
from spikeguard.faults import Faults, log
from spikeguard.settings import Connection, Settings
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.sender import Sender
from spikeguard.uplink.spool import LOCK
from spikeguard.uplink.transport import Transport
from spikeguard_protocol import RunId
from spikeguard_protocol.identity import ATTEMPT_PATTERN
from spikeguard_protocol.plain_http import plain_http_warning

KILLED = "killed"


def open_uplink(
    connection: Connection,
    home: Path,
    attempt: str,
    inbox: Inbox,
    settings: Settings,
    faults: Faults,
) -> tuple[Outbox, Sender | None]:
    """The outbox of `attempt`, and its sender if there is a server."""
    run, folder, tell = connection.run, home / "outbox", partial(faults.note, "outbox")
    earlier = earlier_outboxes(folder, run, tell)
    for box in earlier:
        while sum(each.size for each in earlier) > settings.outbox_bytes // 2 and box.drop():
            pass
        if box.dropped:
            box.tell_dropped()
    try:
        outbox = Outbox(folder / attempt, run, attempt, settings.outbox_bytes, tell, earlier)
    except (OSError, ValueError) as error:  # it cannot be written or locked (NFS, Lustre)
        tell(error)
        outbox = Outbox(None, run, attempt, settings.outbox_bytes, tell, earlier)
    if connection.server is None:
        log.warning(
            "no server: set SPIKEGUARD_SERVER to have run %s watched. What it measured is in %s: "
            "look at it with spikeguard replay, upload it with spikeguard sync",
            run,
            home,
        )
        for box in earlier:  # free for `spikeguard sync`
            box.close()
        return outbox, None
    warning = plain_http_warning(connection.server, {})  # the environment's word is in settings
    if warning is not None and not settings.allow_plain_http:
        log.warning("%s (or Settings.allow_plain_http)", warning)
    transport = Transport(connection.server, connection.token, settings.timeout_s)
    return outbox, Sender(transport, outbox, earlier, inbox, settings, faults)


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
