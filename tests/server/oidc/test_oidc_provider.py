"""Sign-in at a certified provider (npm's oidc-provider), from its form in a browser to a session.

`make test` fetches it where node and npm are; without it these tests skip."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_server.cli.serve import listen
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.server.conftest import Databases
from tests.server.face.serving import bearer_of, serving

HERE = Path(__file__).parent
CLIENT_ID, CLIENT_SECRET = "spikeguard", "a secret of the tests"
START_S = 120.0


def missing() -> str | None:
    """Why the provider cannot be started; None if it can."""
    if shutil.which("node") is None:
        return "there is no node on this machine"
    if not (HERE / "node_modules" / "oidc-provider").is_dir():
        return "no provider: run `npm install --no-package-lock` in tests/server/oidc"
    return None


@contextmanager
def provider(port: int, callback: str, people: Mapping[str, Any]) -> Iterator[str]:
    """Runs on `port` with keys of its own; yields its issuer."""
    settings = json.dumps({"port": port, "callback": callback, "people": people})
    with subprocess.Popen(
        ["node", "provider.mjs"], cwd=HERE, env={**os.environ, "PROVIDER": settings},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            _wait(process, f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _wait(process: subprocess.Popen[bytes], issuer: str) -> None:
    give_up_at = time.monotonic() + START_S
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            httpx.get(f"{issuer}/.well-known/openid-configuration", timeout=120)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the provider did not start")


class Browser:
    """Cookies by host and port, unlike a browser's, and no scripts. No connection outlives its
    call: the provider closes an idle one at any moment, and a browser would ask once more."""

    def __init__(self) -> None:
        self._clients: dict[str, httpx.Client] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def at(self, url: str) -> httpx.Client:
        """What keeps the cookies of a site."""
        site = str(httpx.URL(url).copy_with(path="/", query=None))
        if site not in self._clients:
            unkept = httpx.Limits(max_keepalive_connections=0)
            self._clients[site] = httpx.Client(base_url=site, timeout=120, limits=unkept)
        return self._clients[site]

    def get(self, url: str) -> httpx.Response:
        return self.at(url).get(url)

    def sign_in(self, url: str, account: str, back_at: str) -> str:
        """Follow `url` through the provider's forms; the address that leads to `back_at`."""
        answer = self.get(url)
        for _ in range(12):
            if answer.is_redirect:
                url = str(httpx.URL(str(answer.url)).join(answer.headers["location"]))
                if url.startswith(back_at):
                    return url
                answer = self.get(url)
                continue
            [action] = re.findall(r'<form[^>]*action="([^"]+)"', answer.text)
            [prompt] = re.findall(r'name="prompt" value="(\w+)"', answer.text)
            form = {"prompt": prompt, "login": account, "password": "any"}
            answer = self.at(action).post(action, data=form)
        raise AssertionError(f"the provider leads nowhere: {answer.text[:500]}")


CALLBACK = "/login/oidc/callback"
ROLES = "ml-oncall=operator, ml-leads=admin"
PEOPLE: dict[str, Any] = {
    "ada": {"email": "ada@example.org", "email_verified": True, "groups": ["ml-oncall"]},
    "lee": {"email": "lee@example.org", "email_verified": True, "groups": ["ml-leads"]},
    "eve": {"email": "eve@example.org", "email_verified": True, "groups": ["sales"]},
    "mallory": {"email": "ada@example.org", "email_verified": False, "groups": ["ml-leads"]},
}
pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.usefixtures("issuer"),
]


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    """Free ones, of the server and of the provider."""
    with listen("127.0.0.1", 0) as one, listen("127.0.0.1", 0) as other:
        return one.getsockname()[1], other.getsockname()[1]


@pytest.fixture(scope="module")
def database(databases: Databases) -> str:
    return databases.make("oidc_certified")


@pytest.fixture(scope="module")
def engine(database: str) -> Iterator[sql.Engine]:
    engine = open_engine(Settings(database_url=database))
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def server(database: str, ports: tuple[int, int]) -> Iterator[str]:
    mine, its = ports
    settings = Settings(
        database_url=database, public_url=f"http://127.0.0.1:{mine}",
        oidc_issuer=f"http://127.0.0.1:{its}", oidc_client_id=CLIENT_ID,
        oidc_client_secret=CLIENT_SECRET, oidc_scopes="openid email groups", sign_in_roles=ROLES,
    )  # fmt: skip
    with serving(settings, mine) as url:
        yield url


@pytest.fixture(scope="module")
def issuer(server: str, ports: tuple[int, int]) -> Iterator[str]:
    with provider(ports[1], server + CALLBACK, PEOPLE) as url:
        yield url


def come_back(browser: Browser, server: str, account: str, query: str = "") -> httpx.Response:
    """Sign in at the provider and follow it home."""
    begun = browser.get(f"{server}/login/oidc?{query}")
    assert begun.status_code == 303, begun.text
    back = browser.sign_in(begun.headers["location"], account, server + CALLBACK)
    return browser.get(back)


def me(browser: Browser, server: str, engine: sql.Engine) -> Any:
    secret = bearer_of(engine, browser.at(server).cookies.get("spikeguard_session") or "none")
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.get(f"{server}/v1/me", headers=headers, timeout=120).json()


def test_a_person_signs_in_by_the_providers_form_and_is_who_it_says(
    server: str, engine: sql.Engine
) -> None:
    """Two people, one whom no group lets in, and one whose address is another's and unverified."""
    for account, role in (("ada", "operator"), ("lee", "admin")):
        browser = Browser()
        answer = come_back(browser, server, account, "next=/confirm/default/gpt/1/1")
        assert (answer.status_code, answer.headers["location"]) == (303, "/confirm/default/gpt/1/1")
        found = me(browser, server, engine)
        assert (found["name"], found["role"]) == (f"{account}@example.org", role)
        browser.close()
    for account, said in (("eve", "none of the groups"), ("mallory", "not verified")):
        browser = Browser()
        answer = come_back(browser, server, account)
        assert (answer.status_code, said in answer.text) == (403, True)
        assert "error" in me(browser, server, engine)
        browser.close()


def test_a_fresh_sign_in_asks_whoever_is_signed_in_there_again_and_makes_admin_tokens(
    server: str, engine: sql.Engine
) -> None:
    browser = Browser()
    come_back(browser, server, "lee")
    silent = come_back(browser, server, "nobody")  # their session there goes on: no form comes
    assert silent.status_code == 303, silent.text
    assert (silent.status_code, me(browser, server, engine)["name"]) == (303, "lee@example.org")
    time.sleep(1.1)
    assert come_back(browser, server, "lee", "fresh=true").status_code == 303
    secret = bearer_of(engine, browser.at(server).cookies["spikeguard_session"])
    wanted = {"role": "admin", "person": "Deputy"}
    headers = {"Authorization": f"Bearer {secret}"}
    made = httpx.post(f"{server}/v1/tokens", json=wanted, headers=headers, timeout=120)
    assert made.status_code == 201, made.text
    browser.close()
