"""The header that a token travels in.

A token that no header takes is refused before anything is sent, and is not repeated in the refusal:
`http.client` quotes it whole in its own, which ends in a log.
"""

from __future__ import annotations

from spikeguard_protocol.errors import ProtocolError


def bearer(token: str) -> str:
    """The value of `Authorization`; raise `ProtocolError` for what is no token."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ProtocolError(
            "token",
            "is one word of letters, digits and signs of ASCII",
            "Give what `spikeguard token create` printed, and in a file nothing beside it",
        )
    return f"Bearer {token}"
