"""One sign-in attempt, from its beginning to the provider's answer.

Invariants: pure. All of it lies in a cookie of the browser that began it: state, nonce and verifier
follow from a secret in there, so that an answer is worth nothing in another browser.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import Final

AT_ONCE: Final = 8  # that talk to the provider, each in a thread beside those of calls
LASTS_S: Final = 600  # between the beginning and the answer
CALLBACK: Final = "/login/oidc/callback"
SKEW_S: Final = 60  # of two clocks of ours


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """What the browser keeps meanwhile."""

    secret: str
    begun_at: int  # seconds since the epoch
    next_path: str = ""
    project: str = ""
    fresh: bool = False  # the person has to show who they are, signed in there or not

    @property
    def state(self) -> str:
        """What the answer has to bring back."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """What the provider has to sign."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """What proves to the provider that the code is ours (RFC 7636)."""
        return self._derived("verifier")

    @property
    def challenge(self) -> str:
        """What the provider holds the verifier against."""
        return _text(hashlib.sha256(self.verifier.encode()).digest())

    def cookie(self) -> str:
        """As the browser keeps it."""
        return _text(json.dumps(list(asdict(self).values())).encode())

    def _derived(self, purpose: str) -> str:
        said = f"{purpose}\n{self.cookie()}".encode()
        return _text(hmac.new(self.secret.encode(), said, hashlib.sha256).digest())


@dataclass(frozen=True, slots=True)
class Callback:
    """What the browser brings back from the provider."""

    code: str
    issuer: str  # empty: it does not say


def read_attempt(cookie: str, now_s: float) -> SignInAttempt | None:
    """What a cookie keeps; None for none, for another thing and for one that is too old."""
    try:
        secret, begun_at, next_path, project, fresh = json.loads(
            base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
        )
    except (ValueError, TypeError, binascii.Error, RecursionError):
        return None
    kinds = ((secret, str), (begun_at, int), (next_path, str), (project, str), (fresh, bool))
    if not all(type(value) is kind for value, kind in kinds) or len(secret) < 32:
        return None
    if not secret.isascii() or not now_s - LASTS_S <= begun_at <= now_s + SKEW_S:
        return None
    return SignInAttempt(secret, begun_at, next_path, project, fresh)


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
