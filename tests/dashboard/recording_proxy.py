"""A proxy before a real server: it keeps what is asked, and a test may change an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.http_server import Answer, Request, answering

JSON = {"Content-Type": "application/json"}
Change = Callable[[Any], None]


@dataclass
class RecordingProxy:
    """What was asked through it since a test began, and what the test has done to it."""

    server: str
    session: str  # of Ada Lovelace, who may decide
    address: str = ""
    asked: list[str] = field(default_factory=list)  # paths with their queries
    changes: list[tuple[str, Change]] = field(default_factory=list)  # of answers, by their paths
    broken: tuple[int, Any] | None = None  # answers everything, if set

    def change(self, path: str, change: Change) -> None:
        """From here on what is answered to `path` is changed so."""
        self.changes.append((path, change))

    def read(self, path: str) -> Any:
        """What the server answers to Ada."""
        headers = {"Authorization": f"Bearer {self.session}"}
        return httpx.get(self.server + path, headers=headers, timeout=120).json()

    def clean(self) -> None:
        """Make it as it was at first."""
        self.broken = None
        self.changes.clear()
        self.asked.clear()

    def answer(self, request: Request) -> Answer:
        self.asked.append(request.path)
        if self.broken:
            return self.broken[0], JSON, json.dumps(self.broken[1]).encode()
        headers = {"Authorization": request.headers.get("Authorization", "")}
        found = httpx.get(
            self.server + request.path, headers=headers, timeout=120, follow_redirects=True
        )
        content = found.content
        for path, change in self.changes:
            if path == request.path.partition("?")[0] and found.is_success:
                body = json.loads(content)
                change(body)
                content = json.dumps(body).encode()
        return found.status_code, {"Content-Type": found.headers["Content-Type"]}, content


@contextmanager
def recording(server: str, session: str) -> Iterator[RecordingProxy]:
    """That server on another port, asked through the proxy."""
    proxy = RecordingProxy(server, session)
    with answering(proxy.answer) as proxy.address:
        yield proxy
