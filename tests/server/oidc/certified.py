"""A certified provider (npm's oidc-provider) in a process of its own, and a browser that signs in.

`make test` fetches it where node and npm are; without it the tests that need it skip.
"""

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
