"""An attempt without a server: everything that would be sent waits on disk for `spikeguard sync`.

Law: the same outbox, the same bound and the same drop order as with a server; nothing here opens a
connection. An attempt that later finds a server sends what lies here before its own messages.
"""

from __future__ import annotations

from spikeguard.uplink.outbox import Outbox


class Shelf:
    """Stands where the sender would: closes the outbox when the attempt ends."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def start(self) -> None:
        """Nobody is called."""

    def wake(self) -> None:
        """Nobody is in a hurry."""

    def finish(self, within_s: float) -> bool:
        """Leave everything on disk; at once, unless the disk hangs."""
        self._outbox.close(within_s, ended=True)
        return self._outbox.empty
