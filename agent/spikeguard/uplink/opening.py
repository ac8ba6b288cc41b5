"""Opens the way to the server on rank 0: the outbox, and who carries its messages.

Invariants
- The journal stays in the run's directory, where a restart on any machine finds it. What was not
  sent yet may lie on a disk of this machine instead: it is lost to no run, only late.
- Without a server everything waits on disk for `spikeguard sync`, within the same limit.
- What dead attempts left may take half of that limit: whatever is over goes as this attempt begins.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from spikeguard.commands.orders import Inbox
from spikeguard.faults import Faults, log
from spikeguard.ranks.rank_group import World
from spikeguard.settings import Connection, Settings
from spikeguard.uplink.earlier_attempts import earlier_outboxes, shrink_to
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.sender import Sender
from spikeguard.uplink.transport import Transport
from spikeguard_protocol import RunId
from spikeguard_protocol.plain_http import plain_http_warning


def outbox_home(home: Path, run: RunId, settings: Settings) -> Path:
    """The run's directory, or its place in the one that the settings name for all runs.

    What another user put there would be sent in this job's name, so that one is this user's alone.
    """
    if not settings.outbox_directory:
        return home
    top = Path(settings.outbox_directory)
    place, problem = top / run.project / run.name, ""
    with suppress(OSError):  # told where the outbox is opened
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = top.stat()
        if found.st_uid != os.geteuid():
            problem = f"{top} belongs to user {found.st_uid}"
        elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            problem = f"others may write in {top}"
    if not problem:
        return place
    log.warning(
        "%s: the outbox lies in the run's directory instead. Let SPIKEGUARD_OUTBOX_DIRECTORY "
        "name a folder of this user's own (chmod 700)",
        problem,
    )
    return home


def open_uplink(
    world: World,
    connection: Connection,
    home: Path,
    attempt: str,
    inbox: Inbox,
    settings: Settings,
    faults: Faults,
) -> tuple[Outbox | None, Sender | None]:
    """The outbox of `attempt`, and its sender if there is a server; nothing on ranks above 0."""
    if not world.leads:
        return None, None
    place, run = outbox_home(home, connection.run, settings), connection.run
    folder, tell = place / "outbox", partial(faults.note, "outbox")
    places = dict.fromkeys((home / "outbox", folder))  # it may have been moved since
    earlier = [box for parent in places for box in earlier_outboxes(parent, run, tell)]
    used = shrink_to(settings.outbox_bytes // 2, earlier)
    if connection.server is None:
        log.warning(
            "no server: set SPIKEGUARD_SERVER to have run %s watched. What it measured is in %s: "
            "look at it with spikeguard replay, upload it with spikeguard sync",
            run,
            place,
        )
        for box in earlier:  # free for `spikeguard sync`
            box.close()
        return _open_outbox(folder, run, attempt, settings.outbox_bytes - used, tell), None
    _warn_of_plain_http(connection.server, settings)
    outbox = _open_outbox(folder, run, attempt, settings.outbox_bytes, tell, earlier)
    transport = Transport(connection.server, connection.token, settings.timeout_s)
    return outbox, Sender(transport, outbox, earlier, inbox, settings, faults)


def _open_outbox(
    parent: Path,
    run: RunId,
    attempt: str,
    limit: int,
    tell: Callable[[object], None],
    earlier: Sequence[Outbox] = (),
) -> Outbox:
    """On disk; in memory only where the folder cannot be written or locked (NFS, Lustre)."""
    try:
        return Outbox(parent / attempt, run, attempt, limit, tell, earlier)
    except (OSError, ValueError) as error:
        tell(error)
        return Outbox(None, run, attempt, limit, tell, earlier)


def _warn_of_plain_http(server: str, settings: Settings) -> None:
    warning = plain_http_warning(server, {})  # the environment's word is in the settings already
    if warning is not None and not settings.allow_plain_http:
        log.warning("%s (or Settings.allow_plain_http)", warning)
