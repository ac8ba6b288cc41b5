"""Signatures of approved orders, for jobs that take only signed ones.

The job says which keys it takes, by their names. A person's own signature is stored as it came and
passed on: the server cannot check it, and needs no key. Where the server holds one of those keys it
signs what came without, at the approval: the job refuses what is changed in the database later.
"""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard_protocol import RunId
from spikeguard_protocol.order_signature import OrderKey, Signed, is_signature, sign
from spikeguard_server.settings import Settings
from spikeguard_server.store.commands import CommandRow

TOLD = "order_keys"  # in an attempt's settings


@dataclass(frozen=True, slots=True)
class Signing:
    """What an approval is signed with."""

    given: str | None = None  # by who approves
    key: str = ""  # the server's own, in hexadecimal digits

    def signature(
        self, run: RunId, command: CommandRow, attempt: str, settings: dict[str, str]
    ) -> str | None:
        """For an attempt of these `settings`; None where it takes none, or there is none."""
        names = order_keys(settings)
        if not names:
            return None
        if self.given is not None:
            good = is_signature(self.given) and self.given.partition(".")[0] in names
            return self.given if good else None
        own = OrderKey(bytes.fromhex(self.key)) if self.key else None
        if own is None or own.name not in names:
            return None
        about = Signed(command.public_id(run), attempt, command.action, command.expires_at_step)
        return sign(own, about, command.expires_at.timestamp())


def order_keys(settings: dict[str, str]) -> tuple[str, ...]:
    """The names of the keys that an attempt takes orders with; empty: it asks for no signature."""
    return tuple(name for name in settings.get(TOLD, "").split(",") if name)


def by_server(settings: Settings | None) -> Signing:
    """What nobody signed is signed with the server's key, if it has one."""
    return Signing(key=settings.order_key if settings is not None else "")
