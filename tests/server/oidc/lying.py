"""A provider of ours that can lie: what it says is changed claim by claim, key by key."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from benchmarks.http_server import Answer, Request, answering

CLIENT_ID = "spikeguard"
Claims = dict[str, Any]


@cache
def usual_key() -> RSAKey:
    """Made once: it takes a tenth of a second of a core."""
    return new_key("first")


def new_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"}, private=True)


@dataclass
class Liar:
    """What it says, and what it was asked."""

    issuer: str = ""
    keys: KeySet = field(default_factory=lambda: KeySet([usual_key()]))
    signs_with: RSAKey | None = None  # None: the first of `keys`
    algorithm: str = "RS256"
    claims: Claims = field(default_factory=dict)  # over what is right; None takes one away
    description: Claims = field(default_factory=dict)
    instead: str | None = None  # of a token of its own
    answers: threading.Event = field(default_factory=threading.Event)  # not set: it hangs
    status: int = 200
    codes: dict[str, str] = field(default_factory=dict)  # code -> nonce; good once
    challenges: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # paths

    @property
    def ada(self) -> str:
        """Whom it signs in; another account than that of another provider."""
        return f"ada@{self.issuer.rpartition(':')[2]}.example.org"

    def code(self, address: str) -> tuple[str, str]:
        """The code and state with which it sends the browser of `address` back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        code = f"code-{len(self.codes)}-{time.monotonic_ns()}"
        self.codes[code], self.challenges[code] = asked["nonce"], asked["code_challenge"]
        return code, asked["state"]

    def token(self, nonce: str) -> str:
        now = int(time.time())
        claims: Claims = {
            "iss": self.issuer, "aud": CLIENT_ID, "sub": "248289761001", "nonce": nonce,
            "iat": now, "exp": now + 300, "auth_time": now, "email": self.ada,
            "groups": ["ml-oncall"], **self.claims,
        }  # fmt: skip
        key = self.signs_with or self.keys.keys[0]
        header = {"alg": self.algorithm, "kid": key.kid}
        said = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(header, said, key, algorithms=[self.algorithm])


@contextmanager
def lying() -> Iterator[Liar]:
    """On a free port of this machine."""
    liar = Liar()
    liar.answers.set()

    def answer(request: Request) -> Answer:
        liar.asked.append(request.path)
        liar.answers.wait(120)
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        status, said = ANSWERS[request.path](liar, form)
        return liar.status if liar.status != 200 else status, {}, json.dumps(said).encode()

    with answering(answer) as liar.issuer:
        yield liar


def _describe(liar: Liar, _: dict[str, str]) -> tuple[int, Claims]:
    return 200, {
        "issuer": liar.issuer,
        "authorization_endpoint": f"{liar.issuer}/authorize",
        "token_endpoint": f"{liar.issuer}/token",
        "jwks_uri": f"{liar.issuer}/keys",
        **liar.description,
    }


def _keys(liar: Liar, _: dict[str, str]) -> tuple[int, Any]:
    return 200, liar.keys.as_dict(private=False)


def _token(liar: Liar, form: dict[str, str]) -> tuple[int, Claims]:
    nonce = liar.codes.pop(form.get("code", ""), None)
    if nonce is None:
        return 400, {"error": "invalid_grant"}
    return 200, {
        "access_token": "a",
        "token_type": "Bearer",
        "id_token": liar.instead or liar.token(nonce),
    }


ANSWERS: dict[str, Callable[[Liar, dict[str, str]], tuple[int, Any]]] = {
    "/.well-known/openid-configuration": _describe,
    "/keys": _keys,
    "/token": _token,
}
