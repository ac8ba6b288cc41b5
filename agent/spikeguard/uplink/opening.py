"""Opens the way to the server on rank 0: the outbox, and who carries its messages.

Invariants
- Without a server everything waits on disk for `spikeguard sync`, within the same limit.
- What dead attempts left may take half of that limit: whatever is over goes as this attempt begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    run, folder, tell = connection.run, home / "outbox", partial(faults.note, "outbox")
    earlier = earlier_outboxes(folder, run, tell)
    used = shrink_to(settings.outbox_bytes // 2, earlier)
    if connection.server is None:
        log.warning(
            "no server: set SPIKEGUARD_SERVER to have run %s watched. What it measured is in %s: "
            "look at it with spikeguard replay, upload it with spikeguard sync",
            run,
            home,
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
