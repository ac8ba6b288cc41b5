"""Requests to the identity provider: its description, its keys, the tokens of a code, user info.

Invariants: only sign-ins wait for it, a few at once. Each asks anew what the provider says of
itself and which keys it signs with: nothing is kept that may be old. Every answer is bounded in
size and time, no redirect is followed, and of a description all lies at https (or, as the issuer,
on this machine).
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import Any, Final, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from spikeguard_server.access.oidc.addresses import is_careful
from spikeguard_server.access.oidc.attempt import AT_ONCE, CALLBACK, Callback, SignInAttempt
from spikeguard_server.access.oidc.id_token import ExpectedClaims, read_id_token, signing_keys
from spikeguard_server.access.oidc.identity import Identity, not_believed
from spikeguard_server.errors import Forbidden, ProviderUnready
from spikeguard_server.settings import Settings

T = TypeVar("T")
MOST_BYTES: Final = 512 * 1024
_PLAIN: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Description:
    """Where what is asked for lies (OpenID Connect Discovery)."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None
    basic: bool  # it takes the secret in a header
    names_itself: bool  # in the answer that the browser brings (RFC 9207)


class Provider:
    """The one provider that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._issuer = settings.oidc_issuer
        self._room = CapacityLimiter(AT_ONCE)

    @property
    def host(self) -> str:
        """What people know it by."""
        return urlsplit(self._issuer).netloc

    @property
    def callback(self) -> str:
        """Where it sends people back to, by the server's own settings and no caller's word."""
        return self._settings.public_url.rstrip("/") + CALLBACK

    async def wait_for(self, asked: Callable[[], T]) -> T:
        """What `asked` learns from the provider. No thread and no connection that other calls need
        is held meanwhile."""
        return await run_sync(asked, limiter=self._room)

    def address(self, attempt: SignInAttempt) -> str:
        """Where a browser signs in; raise `ProviderUnready`."""
        endpoint = self._describe().authorization_endpoint
        asked = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self.callback,
            "scope": self._settings.oidc_scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        if attempt.fresh:
            asked |= {"prompt": "login", "max_age": "0"}
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(asked)}"

    def identify(self, answer: Callback, attempt: SignInAttempt, now_s: float) -> Identity:
        """Who signed in; raise `Forbidden` or `ProviderUnready`."""
        found = self._describe()
        if (answer.issuer or found.names_itself) and answer.issuer != self._issuer:
            raise not_believed("it comes from another issuer")
        tokens = self._redeem(found, answer.code, attempt.verifier)
        expected = ExpectedClaims(
            self._issuer, self._settings.oidc_client_id, attempt.nonce, now_s,
            self._settings.oidc_skew_s,
            self._settings.fresh_sign_in_s if attempt.fresh else None,
        )  # fmt: skip
        keys = signing_keys(self._ask("GET", found.jwks_uri))
        identity = read_id_token(str(tokens.get("id_token")), keys.get_by_kid, expected)
        return self._completed(found, identity, tokens.get("access_token"))

    def _completed(self, found: Description, identity: Identity, token: Any) -> Identity:
        """`identity` with the claims that the provider keeps for those who ask."""
        wanted = (self._settings.oidc_person_claim, self._settings.oidc_groups_claim)
        complete = all(name in identity.claims for name in wanted)
        if complete or found.userinfo_endpoint is None or not isinstance(token, str):
            return identity
        headers = {"Authorization": f"Bearer {token}"}
        more = _mapping(self._ask("GET", found.userinfo_endpoint, headers=headers))
        if more.get("sub") != identity.subject:
            raise not_believed("it tells of two people")
        claims = {**more, **identity.claims}  # what is signed counts
        return Identity(identity.subject, claims, identity.signed_in_s)

    def _redeem(self, found: Description, code: str, verifier: str) -> Mapping[str, Any]:
        mine, secret = self._settings.oidc_client_id, self._settings.oidc_client_secret
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.callback,
            "code_verifier": verifier,
        }
        auth = None
        if secret and found.basic:
            auth = httpx.BasicAuth(quote_plus(mine), quote_plus(secret))
        else:
            form |= {"client_id": mine} | ({"client_secret": secret} if secret else {})
        return _mapping(self._ask("POST", found.token_endpoint, form=form, auth=auth))

    def _describe(self) -> Description:
        """What it says of itself."""
        address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        return self._read(_mapping(self._ask("GET", address)))

    def _read(self, document: Mapping[str, Any]) -> Description:
        if document.get("issuer") != self._issuer:
            raise self._unready("describes another issuer than SPIKEGUARD_OIDC_ISSUER")
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        userinfo = document.get("userinfo_endpoint")
        return Description(
            authorization_endpoint=self._endpoint(document, "authorization_endpoint"),
            token_endpoint=self._endpoint(document, "token_endpoint"),
            jwks_uri=self._endpoint(document, "jwks_uri"),
            userinfo_endpoint=self._endpoint(document, "userinfo_endpoint") if userinfo else None,
            basic="client_secret_basic" in methods,
            names_itself=document.get("authorization_response_iss_parameter_supported") is True,
        )

    def _endpoint(self, document: Mapping[str, Any], name: str) -> str:
        address = document.get(name)
        if not isinstance(address, str) or not is_careful(address):
            raise self._unready(f"names no {name} at https")
        return address

    def _ask(
        self,
        method: str,
        address: str,
        *,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        auth: httpx.BasicAuth | None = None,
    ) -> Any:
        """The JSON of an answer; raise `Forbidden` where it refuses, `ProviderUnready` where it
        does not answer as it must."""
        limit_s = self._settings.oidc_timeout_s
        given = {**_PLAIN, **(headers or {})}
        try:
            with (
                httpx.Client(verify=_tls(), timeout=limit_s, trust_env=False) as client,
                client.stream(
                    method, address, headers=given, data=form, auth=auth or httpx.USE_CLIENT_DEFAULT
                ) as answer,
            ):
                status, body = answer.status_code, _body(answer, monotonic() + limit_s)
        except httpx.TimeoutException:
            raise self._unready(f"did not answer within {limit_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError):
            raise self._unready("cannot be reached") from None
        if body is None:
            raise self._unready(f"did not end its answer within {limit_s:g} s and {MOST_BYTES} B")
        if 400 <= status < 500 and form is not None:
            raise Forbidden(
                f"The identity provider refuses this sign-in ({_error(body)})",
                "Sign in again; a code is good once and for a short time",
            )
        if status != 200:
            raise self._unready(f"answered {status}")
        return _json(body)

    def _unready(self, why: str) -> ProviderUnready:
        return ProviderUnready(
            f"The identity provider {self.host} {why}",
            "Try again, or sign in with an access token below",
        )


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _body(answer: httpx.Response, deadline: float) -> bytes | None:
    """The body; None where it is too long, or still comes at the deadline."""
    parts, size = [], 0
    for part in answer.iter_bytes():
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES or monotonic() > deadline:
            return None
    return b"".join(parts)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _mapping(document: Any) -> Mapping[str, Any]:
    return document if isinstance(document, Mapping) else {}


def _error(body: bytes) -> str:
    """The error's code, if it is one."""
    code = _mapping(_json(body)).get("error")
    known = isinstance(code, str) and code.isascii() and code.replace("_", "").isalnum()
    return str(code)[:60] if known else "it does not say why"
