"""How long a new token may last, and with what else it ends.

A training job's token has a ceiling of its own: it goes on when whoever made it has logged out, and
also when their token ends by itself. No other token outlives the one that it is made with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spikeguard_protocol import Role
from spikeguard_server.errors import Unprocessable

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What bounds a new token."""

    agent_days: float = 365.0  # of a training job's token, whoever makes it
    made_with: int | None = None  # the grant of whoever makes it; None: the server's own machine
    left_s: float | None = None  # of that grant; None = for ever

    def lasts_s(self, role: Role, asked_s: float | None) -> float | None:
        """How long it lasts; raise `Unprocessable` where longer is asked for than may be."""
        if role is Role.AGENT:
            most, why = self.agent_days * DAY_S, "SPIKEGUARD_AGENT_TOKEN_DAYS"
        elif self.left_s is not None:
            most, why = self.left_s, "no token outlives the one that it is made with"
        else:
            return asked_s
        if asked_s is not None and asked_s > most:
            raise Unprocessable(
                f"This token may last {most / DAY_S:g} days at most ({why})",
                "Ask for less, or leave it out to get that",
                field="expires_in_s",
                limit=most,
            )
        return most if asked_s is None else asked_s


NO_CEILINGS: Final = Ceilings()
