"""One sign-in attempt at an identity provider: what the browser keeps of it, and who signed in."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from spikeguard_server.errors import Forbidden

CALLBACK: Final = "/login/oidc/callback"
LASTS_S: Final = 600  # between the beginning and the answer
SKEW_S: Final = 60  # of two clocks of ours


class SignInAttempt(msgspec.Struct, frozen=True, array_like=True):
    """What a cookie of the browser keeps between the beginning and the provider's answer: an answer
    is worth nothing in another browser."""

    state: str  # what the answer has to bring back
    nonce: str  # what the provider has to sign
    verifier: str  # what proves to the provider that the code is ours (RFC 7636)
    begun_at: int  # seconds since the epoch
    next_path: str = ""
    project: str = ""
    fresh: bool = False  # the person has to show who they are, signed in there or not

    def cookie(self) -> str:
        """As the browser keeps it."""
        return text_of(msgspec.json.encode(self))


def read_attempt(cookie: str, now_s: float) -> SignInAttempt | None:
    """What a cookie keeps; None for none, for another thing and for one that is too old."""
    try:
        content = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
        found = msgspec.json.decode(content, type=SignInAttempt)
    except (ValueError, binascii.Error, RecursionError):
        return None
    whole = all(len(part) == 43 and part.isascii() for part in (found.state, found.verifier))
    return found if whole and now_s - LASTS_S <= found.begun_at <= now_s + SKEW_S else None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a token is about."""

    subject: str
    claims: Mapping[str, Any]
    signed_in_s: float | None  # how long ago; None where the provider does not say


def not_believed(why: str) -> Forbidden:
    """The refusal of what the provider is said to have said."""
    return Forbidden(
        f"The identity provider's answer is not believed: {why}",
        "Sign in again; if that does not help, ask an admin to look at the server's and the "
        "provider's clocks and settings",
    )


def text_of(content: bytes) -> str:
    """As URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
