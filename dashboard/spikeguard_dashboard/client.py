"""The HTTP API as the pages ask it: the client of programs, with the token of whoever looks.

Every failure leaves as one `ApiError` that says what happened and what helps on a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from spikeguard_client import ApiError, Client
from spikeguard_client.calls import Calls, Page, Query
from spikeguard_client.shapes import AuditEntry, Incident, Run
from spikeguard_protocol import ProtocolError, RunId
from spikeguard_protocol.paths import run_path

READ_TIMEOUT_S = 8.0


@dataclass(frozen=True, slots=True)
class RunPage(Page[Run]):
    """Some runs of a list."""

    total: int | None = None  # of all pages


class PageClient(Client):
    """Calls of one server with the token of whoever looks."""

    def __init__(self, server: str, token: str) -> None:
        """Raises `ApiError` for what is no token."""
        try:
            calls = _PageCalls(server, token, READ_TIMEOUT_S)
        except ProtocolError as error:
            raise ApiError(
                "That is no token", _REMEDIES[401], code="no_token", status=401
            ) from error
        super().__init__(server, token, timeout_s=READ_TIMEOUT_S, calls=calls)

    def run_page(self, asked: Mapping[str, Any], cursor: str | None = None) -> RunPage:
        """A page of the runs that are `asked` for, and how many there are."""
        return self._calls.get(RunPage, "/v1/runs", **asked, cursor=cursor, count="true")

    def newest_incidents(self, run: RunId | None = None, *, limit: int = 50) -> list[Incident]:
        """Incidents of one run or of all, the newest first."""
        name = f"{run.project}/{run.name}" if run else None
        return self._calls.page(Incident, "/v1/incidents", run=name, limit=limit).items

    def newest_audit(self, run: RunId, *, limit: int = 100) -> list[AuditEntry]:
        """Every intervention in a run, newest first."""
        return self._calls.page(AuditEntry, f"{run_path(run)}/audit", limit=limit).items


class _PageCalls(Calls):
    """A failure says what helps whoever looks at a page."""

    def call(self, method: str, path: str, body: Any = None, **query: Query) -> bytes:
        try:
            return super().call(method, path, body, **query)
        except ApiError as error:
            raise _for_a_page(error) from error


_REMEDIES: Mapping[object, str] = MappingProxyType(
    {
        401: "Sign in again.",
        403: "Ask for a token with the role that this needs: viewer to read, operator to decide.",
        404: "Check the name in the address, or open it from the list of runs.",
        "timeout": "It may be starting or overloaded; this page asks again by itself.",
        "unreachable": "Start it with `spikeguard up` or `spikeguard serve`, or set "
        "SPIKEGUARD_SERVER to its address. Training goes on without it.",
    }
)


def _for_a_page(error: ApiError) -> ApiError:
    """The server's own words where it gave them; else what helps here."""
    if error.error:
        return error
    remedy = _REMEDIES.get(error.code) or _REMEDIES.get(error.status) or error.remedy
    return ApiError(error.message, remedy, code=error.code, status=error.status)
