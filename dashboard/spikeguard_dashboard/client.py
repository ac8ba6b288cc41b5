"""The HTTP API as the pages ask it: the client of programs, with the token of whoever looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spikeguard_client import Client
from spikeguard_client.calls import Page
from spikeguard_client.shapes import AuditEntry, Incident, Run
from spikeguard_protocol import RunId
from spikeguard_protocol.paths import run_path

READ_TIMEOUT_S = 8.0


@dataclass(frozen=True, slots=True)
class RunPage(Page[Run]):
    """Some runs of a list."""

    total: int | None = None  # of all pages


class PageClient(Client):
    """Calls of one server with the token of whoever looks."""

    def __init__(self, server: str, token: str) -> None:
        """Raises `ProtocolError` for what is no token."""
        super().__init__(server, token, timeout_s=READ_TIMEOUT_S)

    def run_page(self, asked: Mapping[str, Any], cursor: str | None = None) -> RunPage:
        """A page of the runs that are `asked` for, and how many there are."""
        return self._calls.get(RunPage, "/v1/runs", **asked, cursor=cursor, count="true")

    def newest_incidents(self, run: RunId | None = None, *, limit: int = 50) -> list[Incident]:
        """Incidents of one run or of all: open ones first, the projects in turn."""
        name = f"{run.project}/{run.name}" if run else None
        asked = {"run": name, "limit": limit, "order": "attention"}
        return self._calls.page(Incident, "/v1/incidents", **asked).items

    def newest_audit(self, run: RunId, *, limit: int = 100) -> list[AuditEntry]:
        """Every intervention in a run, newest first."""
        return self._calls.page(AuditEntry, f"{run_path(run)}/audit", limit=limit).items
