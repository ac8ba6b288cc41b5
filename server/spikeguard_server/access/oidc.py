"""Sign-in by OpenID Connect at one identity provider: the authorization code flow with PKCE.

httpx asks the provider, joserfc reads its keys and checks its tokens. Each sign-in asks anew what
the provider says of itself and which keys it signs with; nothing is kept between two sign-ins.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
from asyncio import timeout
from collections.abc import Mapping
from functools import cache
from time import time
from typing import Any, Final
from urllib.parse import quote_plus, urlsplit

import httpx
import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from spikeguard_protocol.escaping import printable
from spikeguard_server.access.accounts import Account
from spikeguard_server.access.person_names import read_person
from spikeguard_server.errors import Forbidden, ProviderUnready
from spikeguard_server.identity.actors import KnownBy
from spikeguard_server.identity.permissions import accesses_of, new_secret, read_accesses
from spikeguard_server.settings import Settings, is_careful

CALLBACK: Final = "/login/oidc/callback"
SKEW_S: Final = 60.0  # by how much the provider's clock may differ
ANSWER_S: Final = 5.0  # how long an answer of the provider may take
LONG_AGO_S: Final = 10 * 365 * 86_400.0  # of a sign-in of which it does not say when it was
ALGORITHMS: Final = (  # signatures by a public key, whatever the provider offers
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519",
    "EdDSA",
)  # fmt: skip


class SignInAttempt(msgspec.Struct, frozen=True, array_like=True):
    """What a cookie of the browser keeps until the provider answers: the answer is worth nothing in
    another browser. The server keeps none of it, so any replica can take the answer."""

    next_path: str = ""
    project: str = ""
    fresh: bool = False  # the person has to show who they are, signed in there or not
    state: str = msgspec.field(default_factory=new_secret)  # the answer brings it back
    nonce: str = msgspec.field(default_factory=new_secret)  # the provider signs it
    verifier: str = msgspec.field(default_factory=new_secret)  # shows that the code is ours


class Provider:
    """The one provider that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._callback = settings.public_url.rstrip("/") + CALLBACK  # by no caller's word

    @property
    def host(self) -> str:
        """What people know it by."""
        return urlsplit(self._settings.oidc_issuer).netloc

    async def begin(self, next_path: str, project: str, fresh: bool) -> tuple[str, str]:
        """Where a browser signs in, and what its cookie keeps; raise `ProviderUnready`."""
        attempt = SignInAttempt(next_path, project, fresh)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest())
        asked = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self._callback,
            "scope": self._settings.oidc_scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        if attempt.fresh:
            asked |= {"prompt": "login", "max_age": "0"}
        endpoint = (await self._describe())["authorization_endpoint"]
        address = str(httpx.URL(endpoint).copy_merge_params(asked))
        return address, base64.urlsafe_b64encode(msgspec.json.encode(attempt)).decode()

    @staticmethod
    def attempt(cookie: str) -> SignInAttempt | None:
        """What `begin` gave the browser to keep; None for anything else."""
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(cookie), type=SignInAttempt)
        except ValueError:
            return None

    async def identify(self, code: str, attempt: SignInAttempt) -> tuple[Account, float]:
        """Who signed in, by the code that the browser brought back, and how long ago; raise
        `Forbidden`, `ProviderUnready`."""
        found = await self._describe()
        tokens = await self._redeem(found, code, attempt.verifier)
        keys = await self._ask("GET", found["jwks_uri"])
        claims = self._checked(str(tokens.get("id_token")), keys, attempt.nonce)
        signed_in_s = self._signed_in_s(claims, attempt.fresh)
        wanted = {self._settings.oidc_person_claim, self._settings.oidc_groups_claim}
        if not wanted <= set(claims) and found.get("userinfo_endpoint"):
            headers = {"Authorization": f"Bearer {tokens.get('access_token')}"}
            more = await self._ask("GET", found["userinfo_endpoint"], headers=headers)
            if more.get("sub") != claims["sub"]:
                raise not_believed("it tells of two people")
            claims = {**more, **claims}  # what is signed counts
        return self._account(claims), signed_in_s

    def _account(self, claims: Mapping[str, Any]) -> Account:
        name, told = self._settings.oidc_person_claim, claims.get(self._settings.oidc_person_claim)
        if not isinstance(told, str) or not told.strip():
            raise not_believed(f"it does not say who you are (claim {name})")
        verified = claims.get("email_verified", True)  # some providers say it in words
        if name == "email" and verified not in (True, "true"):
            raise not_believed("your e-mail address is not verified there")
        groups = claims.get(self._settings.oidc_groups_claim)
        return Account(
            f"{self._settings.oidc_issuer} {claims['sub']}", read_person(told), KnownBy.OIDC,
            accesses_of(groups, read_accesses(self._settings.sign_in_roles)),
        )  # fmt: skip

    def _checked(self, token: str, keys: Any, nonce: str) -> dict[str, Any]:
        """The claims of an ID token (OpenID Connect Core 3.1.3.7)."""
        mine = self._settings.oidc_client_id
        try:
            claims = jwt.decode(token, KeySet.import_key_set(keys), algorithms=ALGORITHMS).claims
            several = isinstance(claims.get("aud"), list) and len(claims["aud"]) > 1
            jwt.JWTClaimsRegistry(
                leeway=int(SKEW_S),
                iss={"essential": True, "value": self._settings.oidc_issuer},
                aud={"essential": True, "value": mine},
                azp={"essential": several, "value": mine},
                nonce={"essential": True, "value": nonce},
                sub={"essential": True}, exp={"essential": True}, iat={"essential": True},
            ).validate(claims)  # fmt: skip
        except JoseError as error:
            why = error.description or error.error.replace("_", " ")
            raise not_believed(printable(why)[:200]) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise not_believed("its token or its keys cannot be read") from None
        return claims

    def _signed_in_s(self, claims: Mapping[str, Any], fresh: bool) -> float:
        """How long ago the person showed who they are; `fresh`: it must be a moment ago."""
        at = claims.get("auth_time")
        ago_s = max(0.0, time() - at) if isinstance(at, int | float) else LONG_AGO_S
        if fresh and ago_s > self._settings.fresh_sign_in_s + SKEW_S:
            raise not_believed("it does not say that you signed in again just now")
        return ago_s

    async def _redeem(self, found: Mapping[str, Any], code: str, verifier: str) -> dict[str, Any]:
        mine, secret = self._settings.oidc_client_id, self._settings.oidc_client_secret
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "code_verifier": verifier,
        }
        methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if secret and "client_secret_basic" in methods:
            auth = httpx.BasicAuth(quote_plus(mine), quote_plus(secret))
            return await self._ask("POST", found["token_endpoint"], data=form, auth=auth)
        form |= {"client_id": mine} | ({"client_secret": secret} if secret else {})
        return await self._ask("POST", found["token_endpoint"], data=form)

    async def _describe(self) -> dict[str, Any]:
        """What it says of itself (OpenID Connect Discovery)."""
        issuer = self._settings.oidc_issuer
        found = await self._ask("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise self._unready("describes another issuer than SPIKEGUARD_OIDC_ISSUER")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_careful(str(found.get(name))):
                raise self._unready(f"names no {name} at https")
        return found

    async def _ask(self, method: str, address: str, **given: Any) -> dict[str, Any]:
        """The JSON object of an answer; raise `Forbidden` where the provider refuses a code,
        `ProviderUnready` where it does not answer as it must."""
        limit_s, found = ANSWER_S, None
        try:
            async with (
                timeout(limit_s),
                httpx.AsyncClient(verify=_tls(), timeout=limit_s, trust_env=False) as client,
            ):
                answer = await client.request(method, address, **given)
            found = answer.json()
        except (httpx.TimeoutException, TimeoutError):
            raise self._unready(f"did not answer within {limit_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError):
            raise self._unready("cannot be reached") from None
        except ValueError:
            pass
        if method == "POST" and answer.is_client_error:
            code = found.get("error") if isinstance(found, dict) else answer.status_code
            raise Forbidden(
                f"The identity provider refuses this sign-in ({printable(str(code))[:60]})",
                "Sign in again; a code is good once and for a short time",
            )
        if answer.status_code != 200 or not isinstance(found, dict):
            raise self._unready(f"answered {answer.status_code}, and no JSON object with 200")
        return found

    def _unready(self, why: str) -> ProviderUnready:
        return ProviderUnready(
            f"The identity provider {self.host} {why}",
            "Try again, or sign in with an access token below",
        )


def not_believed(why: str) -> Forbidden:
    """The refusal of what the provider is said to have said."""
    return Forbidden(
        f"The identity provider's answer is not believed: {why}",
        "Sign in again; if that does not help, ask an admin to look at the server's and the "
        "provider's clocks and settings",
    )


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
