"""Checks an ID token: signature, issuer, audience, nonce and times.

Invariants: pure. Only signatures by a public key count. Clocks may differ by the skew that the
settings allow and by no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet

from spikeguard_server.access.oidc.identity import Identity, not_believed

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
)  # fmt: skip
ISSUED_S: Final = 600.0  # how long ago a token may have been issued that is used now
MAX_SUBJECT: Final = 255
_KEY_TYPES: Final = frozenset({"RSA", "EC", "OKP"})


@dataclass(frozen=True, slots=True)
class ExpectedClaims:
    """What a token has to say."""

    issuer: str
    client_id: str
    nonce: str
    now_s: float
    skew_s: float
    signed_in_within_s: float | None = None  # None: however long ago


def read_id_token(
    text: str, find_key: Callable[[str | None], Key], expected: ExpectedClaims
) -> Identity:
    """Whom `text` is about; raise `Forbidden` where anything of it is not as it must be."""
    try:
        token = jwt.decode(text, lambda it: find_key(_kid(it.headers())), algorithms=ALGORITHMS)
        rules = jwt.JWTClaimsRegistry(
            now=int(expected.now_s), leeway=int(expected.skew_s),
            sub={"essential": True}, exp={"essential": True}, iat={"essential": True},
            aud={"essential": True, "value": expected.client_id},
        )  # fmt: skip
        rules.validate(token.claims)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise not_believed(_why(error)) from None
    claims = token.claims
    if claims.get("iss") != expected.issuer:
        raise not_believed("it comes from another issuer")
    if claims.get("nonce") != expected.nonce:
        raise not_believed("it answers another sign-in")
    audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
    if claims.get("azp", expected.client_id) != expected.client_id or (
        len(audience) > 1 and "azp" not in claims
    ):
        raise not_believed("it was made for another application")
    if claims["iat"] < expected.now_s - ISSUED_S - expected.skew_s:
        raise not_believed("it was issued too long ago")
    if not 1 <= len(claims["sub"]) <= MAX_SUBJECT:
        raise not_believed("it names nobody")
    return Identity(claims["sub"], claims, _signed_in_s(claims, expected))


def signing_keys(document: Any) -> KeySet:
    """The public keys of a key set that sign; keys of kinds that we do not know are left out."""
    entries = document.get("keys") if isinstance(document, Mapping) else None
    found = []
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, Mapping) or entry.get("kty") not in _KEY_TYPES:
            continue
        if entry.get("use", "sig") != "sig":
            continue
        try:
            found += KeySet.import_key_set({"keys": [dict(entry)]}).keys
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    return KeySet(found)


def _kid(header: Mapping[str, Any]) -> str | None:
    kid = header.get("kid")
    return kid if isinstance(kid, str) else None


def _signed_in_s(claims: Mapping[str, Any], expected: ExpectedClaims) -> float | None:
    at = claims.get("auth_time")
    ago = None
    if isinstance(at, int | float) and not isinstance(at, bool):
        ago = max(0.0, expected.now_s - at)
    if expected.signed_in_within_s is not None:
        if ago is None:
            raise not_believed("it does not say when you signed in")
        if ago > expected.signed_in_within_s + expected.skew_s:
            raise not_believed("you were not asked to sign in again")
    return ago


def _why(error: Exception) -> str:
    """The kind of failure; its text may repeat what was sent."""
    words = {
        "ExpiredTokenError": "it has expired",
        "BadSignatureError": "its signature is not good",
        "InvalidKeyIdError": "its key is not known",
    }
    claim = getattr(error, "claim", None)
    if type(error).__name__ in words:
        return words[type(error).__name__]
    return f"its {claim} is not good" if isinstance(claim, str) else "it cannot be read"
