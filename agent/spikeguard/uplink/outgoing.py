"""Where the outbox lies, and who carries its messages to the server; rank 0.

Law: the journal stays in the run's directory, where a restart on any machine finds it. What was not
sent yet may lie on a disk of this machine instead: it is lost to no run, only late.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from spikeguard.commands.inbox import Inbox
from spikeguard.commands.protection import Protection
from spikeguard.faults import Faults, log
from spikeguard.settings import Connection, Settings
from spikeguard.topology.rank_group import World
from spikeguard.uplink.folder import own_problem
from spikeguard.uplink.leftovers import Held, Unheld, leftovers
from spikeguard.uplink.mounts import network_kind
from spikeguard.uplink.offline import Shelf
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.room import Earlier, Room
from spikeguard.uplink.sender import Sender
from spikeguard.uplink.transport import Transport
from spikeguard_protocol import RunId
from spikeguard_protocol.plain_http import plain_http_warning


def open_line(
    world: World,
    connection: Connection,
    home: Path,
    attempt: str,
    inbox: Inbox,
    settings: Settings,
    faults: Faults,
) -> tuple[Outbox | None, Sender | Shelf | None]:
    """The outbox of `attempt`, and its sender; nothing on ranks above 0."""
    if not world.leads:
        return None, None
    place = outbox_home(home, connection.run, settings)
    _warn_of_network(place)
    folder = place / "outbox"
    if connection.server is None:
        log.warning(
            "no server: set SPIKEGUARD_SERVER to have run %s watched, or later: spikeguard sync %s",
            connection.run,
            place,
        )
        unheld = Unheld(folder, connection.run, attempt)
        kept = _open_outbox(folder, connection.run, attempt, settings, faults, unheld)
        return kept, Shelf(kept)
    _warn_of_plain_http(connection.server, settings)
    places = dict.fromkeys((home / "outbox", folder))  # it may have been moved since
    left = [box for parent in places for box in leftovers(parent, connection.run)]
    outbox = _open_outbox(folder, connection.run, attempt, settings, faults, Held(left))
    _take_up_protection(inbox, Protection(home))
    transport = Transport(connection.server, connection.token, settings.timeout_s)
    return outbox, Sender(transport, outbox, left, inbox, settings, faults)


def _take_up_protection(inbox: Inbox, protection: Protection) -> None:
    inbox.protected, inbox.keep = protection.read(), protection.write
    inbox.stirred = bool(inbox.protected)


def _open_outbox(
    parent: Path, run: RunId, attempt: str, settings: Settings, faults: Faults, earlier: Earlier
) -> Outbox:
    """On disk; in memory only where the folder cannot be written or locked (NFS, Lustre)."""
    room = Room(settings.outbox_bytes, earlier, partial(faults.note, "outbox"))
    try:
        return Outbox(parent / attempt, run, attempt, room)
    except (OSError, ValueError) as error:
        faults.note("outbox", error)
        return Outbox(None, run, attempt, room)


def outbox_home(home: Path, run: RunId, settings: Settings) -> Path:
    """The run's directory, or its place in the one that the settings name for all runs.

    That one may be for all users of a machine: what another one put there would be sent in this
    job's name, and a link in place of a file would lead to this job's own files.
    """
    if not settings.outbox_directory:
        return home
    top, names = Path(settings.outbox_directory), (run.project, run.name)
    try:
        problem = own_problem(top, *names, "outbox")
    except OSError:
        problem = None  # told where the outbox is opened
    if problem is None:
        return top.joinpath(*names)
    log.warning(
        "%s: the outbox lies in the run's directory instead. Let SPIKEGUARD_OUTBOX_DIRECTORY "
        "name a folder of this user's own",
        problem,
    )
    return home


def _warn_of_plain_http(server: str, settings: Settings) -> None:
    warning = plain_http_warning(server, {})  # the environment's word is in the settings already
    if warning is not None and not settings.allow_plain_http:
        log.warning("%s (or Settings.allow_plain_http)", warning)


def _warn_of_network(place: Path) -> None:
    kind = network_kind(place)
    if kind is not None:
        log.warning(
            "the outbox in %s lies on a network's file system (%s): if it hangs nothing is told "
            "until it is back, and locks may not hold between machines. Set "
            "SPIKEGUARD_OUTBOX_DIRECTORY to a disk of this machine; the journal stays where it is",
            place,
            kind,
        )
