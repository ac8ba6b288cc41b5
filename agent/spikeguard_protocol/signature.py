"""How a webhook proves where it comes from: HMAC-SHA256 over the time and the body.

A receiver checks the signature over the bytes as they came, refuses what is older than the window,
and remembers the `Idempotency-Key`s of a window: then nothing counts twice.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

TIMESTAMP_HEADER = "Spikeguard-Timestamp"  # seconds since the epoch
SIGNATURE_HEADER = "Spikeguard-Signature"  # v1=HEX
WINDOW_S = 300.0


class SignatureRefused(Exception):
    """A webhook that must not be acted on, and why."""


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """`v1=` and the hexadecimal HMAC-SHA256 of `timestamp`, a dot and the body."""
    signed = timestamp.encode() + b"." + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    now_s: float,
    window_s: float = WINDOW_S,
) -> None:
    """Return if `body` was signed with `secret` within `window_s` of `now_s`.

    Raises `SignatureRefused`. `headers` are looked up whatever their case.
    """
    given = {name.lower(): value for name, value in headers.items()}
    timestamp = given.get(TIMESTAMP_HEADER.lower(), "")
    if not timestamp.isdecimal():
        raise SignatureRefused(f"{TIMESTAMP_HEADER} is missing or is no number of seconds")
    if abs(now_s - int(timestamp)) > window_s:
        raise SignatureRefused(f"it was signed more than {window_s:.0f} s away from now")
    expected = sign(secret, timestamp, body)
    if not hmac.compare_digest(expected, given.get(SIGNATURE_HEADER.lower(), "")):
        raise SignatureRefused("the signature is not that of this body and this secret")
