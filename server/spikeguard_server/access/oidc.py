"""Sign-in by OpenID Connect: the authorization code flow with PKCE, at one identity provider.

Only sign-ins wait for the provider. Each asks anew what it says of itself and which keys it signs
with. Every answer is bounded in size and time, no redirect is followed, and all addresses are at
https (or, as the issuer, on this machine). What it says counts once signature, issuer, audience,
times and nonce were checked; from then on there is a session as any other.
"""

from __future__ import annotations

import hashlib
import json
import ssl
from asyncio import timeout
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from spikeguard_server.access.oidc_attempt import (
    CALLBACK,
    Identity,
    SignInAttempt,
    not_believed,
    text_of,
)
from spikeguard_server.access.oidc_roles import is_careful
from spikeguard_server.errors import Forbidden, ProviderUnready
from spikeguard_server.settings import Settings

MOST_BYTES: Final = 512 * 1024  # of one answer
ISSUED_S: Final = 600.0  # how long ago a token may have been issued that is used now
MAX_SUBJECT: Final = 255
ALGORITHMS: Final = (  # signatures by a public key
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
)  # fmt: skip
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_PLAIN: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}
_WHY: Final = {
    "ExpiredTokenError": "it has expired",
    "BadSignatureError": "its signature is not good",
    "InvalidKeyIdError": "its key is not known",
}


class Provider:
    """The one provider that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._issuer = settings, settings.oidc_issuer

    @property
    def host(self) -> str:
        """What people know it by."""
        return urlsplit(self._issuer).netloc

    @property
    def callback(self) -> str:
        """Where it sends people back to, by the server's own settings and no caller's word."""
        return self._settings.public_url.rstrip("/") + CALLBACK

    async def address(self, attempt: SignInAttempt) -> str:
        """Where a browser signs in; raise `ProviderUnready`."""
        endpoint = (await self._describe())["authorization_endpoint"]
        asked = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self.callback,
            "scope": self._settings.oidc_scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": text_of(hashlib.sha256(attempt.verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        if attempt.fresh:
            asked |= {"prompt": "login", "max_age": "0"}
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(asked)}"

    async def identify(
        self, code: str, issuer: str, attempt: SignInAttempt, now_s: float
    ) -> Identity:
        """Who signed in, by what the browser brought back; raise `Forbidden`, `ProviderUnready`.

        `issuer`: whom the answer names (RFC 9207), empty: it does not say.
        """
        found = await self._describe()
        names_itself = found.get("authorization_response_iss_parameter_supported") is True
        if (issuer or names_itself) and issuer != self._issuer:
            raise not_believed("it comes from another issuer")
        tokens = await self._redeem(found, code, attempt.verifier)
        keys = signing_keys(await self._ask("GET", found["jwks_uri"]))
        identity = self._read_id_token(str(tokens.get("id_token")), keys, attempt, now_s)
        return await self._completed(found, identity, tokens.get("access_token"))

    def _read_id_token(
        self, text: str, keys: KeySet, attempt: SignInAttempt, now_s: float
    ) -> Identity:
        mine, skew_s = self._settings.oidc_client_id, self._settings.oidc_skew_s
        rules = jwt.JWTClaimsRegistry(
            now=int(now_s), leeway=int(skew_s),
            sub={"essential": True}, exp={"essential": True}, iat={"essential": True},
            aud={"essential": True, "value": mine},
        )  # fmt: skip
        try:
            token = jwt.decode(text, keys, algorithms=ALGORITHMS)
            rules.validate(token.claims)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise not_believed(_why(error)) from None
        claims = token.claims
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        other = claims.get("azp", mine) != mine or (len(audience) > 1 and "azp" not in claims)
        refusals = {
            "it comes from another issuer": claims.get("iss") != self._issuer,
            "it answers another sign-in": claims.get("nonce") != attempt.nonce,
            "it was made for another application": other,
            "it was issued too long ago": claims["iat"] < now_s - ISSUED_S - skew_s,
            "it names nobody": not 1 <= len(claims["sub"]) <= MAX_SUBJECT,
        }
        if why := next((why for why, wrong in refusals.items() if wrong), None):
            raise not_believed(why)
        at = claims.get("auth_time")
        known = isinstance(at, int | float) and not isinstance(at, bool)
        ago_s = max(0.0, now_s - float(at or 0)) if known else None
        if attempt.fresh and ago_s is None:
            raise not_believed("it does not say when you signed in")
        if attempt.fresh and (ago_s or 0.0) > self._settings.fresh_sign_in_s + skew_s:
            raise not_believed("you were not asked to sign in again")
        return Identity(claims["sub"], claims, ago_s)

    async def _completed(
        self, found: Mapping[str, Any], identity: Identity, token: Any
    ) -> Identity:
        """`identity` with the claims that the provider keeps for those who ask."""
        wanted = (self._settings.oidc_person_claim, self._settings.oidc_groups_claim)
        place = found.get("userinfo_endpoint")
        if all(name in identity.claims for name in wanted) or not place or not token:
            return identity
        headers = {"Authorization": f"Bearer {token}"}
        more = await self._ask("GET", self._endpoint(found, "userinfo_endpoint"), headers=headers)
        if more.get("sub") != identity.subject:
            raise not_believed("it tells of two people")
        claims = {**more, **identity.claims}  # what is signed counts
        return Identity(identity.subject, claims, identity.signed_in_s)

    async def _redeem(
        self, found: Mapping[str, Any], code: str, verifier: str
    ) -> Mapping[str, Any]:
        mine, secret = self._settings.oidc_client_id, self._settings.oidc_client_secret
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.callback,
            "code_verifier": verifier,
        }
        methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if secret and "client_secret_basic" in methods:
            auth = httpx.BasicAuth(quote_plus(mine), quote_plus(secret))
            return await self._ask("POST", found["token_endpoint"], data=form, auth=auth)
        form |= {"client_id": mine} | ({"client_secret": secret} if secret else {})
        return await self._ask("POST", found["token_endpoint"], data=form)

    async def _describe(self) -> Mapping[str, Any]:
        """What it says of itself (OpenID Connect Discovery)."""
        address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        found = await self._ask("GET", address)
        if found.get("issuer") != self._issuer:
            raise self._unready("describes another issuer than SPIKEGUARD_OIDC_ISSUER")
        for name in _ENDPOINTS:
            self._endpoint(found, name)
        return found

    def _endpoint(self, found: Mapping[str, Any], name: str) -> str:
        address = found.get(name)
        if not isinstance(address, str) or not is_careful(address):
            raise self._unready(f"names no {name} at https")
        return address

    async def _ask(self, method: str, address: str, **given: Any) -> Mapping[str, Any]:
        """The JSON object of an answer; raise `Forbidden` where it refuses a code,
        `ProviderUnready` where it does not answer as it must."""
        limit_s, body = self._settings.oidc_timeout_s, bytearray()
        given["headers"] = {**_PLAIN, **given.get("headers", {})}
        try:
            async with (
                timeout(limit_s),
                httpx.AsyncClient(verify=_tls(), timeout=limit_s, trust_env=False) as client,
                client.stream(method, address, **given) as answer,
            ):
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > MOST_BYTES:
                        raise self._unready(f"did not end its answer within {MOST_BYTES} B")
        except (httpx.TimeoutException, TimeoutError):
            raise self._unready(f"did not answer within {limit_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError):
            raise self._unready("cannot be reached") from None
        if method == "POST" and 400 <= answer.status_code < 500:
            raise Forbidden(
                f"The identity provider refuses this sign-in ({_error(bytes(body))})",
                "Sign in again; a code is good once and for a short time",
            )
        if answer.status_code != 200:
            raise self._unready(f"answered {answer.status_code}")
        return _object(bytes(body))

    def _unready(self, why: str) -> ProviderUnready:
        return ProviderUnready(
            f"The identity provider {self.host} {why}",
            "Try again, or sign in with an access token below",
        )


def signing_keys(document: Mapping[str, Any]) -> KeySet:
    """The public keys of a key set that sign; keys of kinds that we do not know are left out."""
    entries, found = document.get("keys"), []
    for entry in entries if isinstance(entries, list) else ():
        try:
            if entry["kty"] in ("RSA", "EC", "OKP") and entry.get("use", "sig") == "sig":
                found += KeySet.import_key_set({"keys": [dict(entry)]}).keys
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return KeySet(found)


def _why(error: Exception) -> str:
    """The kind of failure; its text may repeat what was sent."""
    claim = getattr(error, "claim", None)
    other = f"its {claim} is not good" if isinstance(claim, str) else "it cannot be read"
    return _WHY.get(type(error).__name__, other)


def _error(body: bytes) -> str:
    """The error's code, if it is one."""
    code = _object(body).get("error")
    known = isinstance(code, str) and code.isascii() and code.replace("_", "").isalnum()
    return str(code)[:60] if known else "it does not say why"


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
