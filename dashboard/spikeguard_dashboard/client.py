"""The HTTP API as the pages ask it: the typed client, with a token for each call.

Invariants: every failure leaves as one `ApiError` that says what happened and what to do; nothing
waits longer than its timeout; no token is kept, each call is given the one it acts with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Any, TypeVar

from spikeguard_client import (
    ApiError,
    AuditEntry,
    Command,
    Incident,
    IncidentDetail,
    Me,
    Run,
    RunDetail,
)
from spikeguard_client import Client as TypedClient
from spikeguard_client import Series as SeriesAnswer
from spikeguard_client.calls import Calls, stranger, understood, with_query
from spikeguard_client.reading import NotUnderstood, Page, read_page
from spikeguard_dashboard.series import Series, series_of
from spikeguard_protocol import IncidentId, ProtocolError, RunId
from spikeguard_protocol.paths import incident_path, run_path

READ_TIMEOUT_S = 8.0
MAX_POINTS = 2000
T = TypeVar("T")
MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "md": "text/markdown",
        "html": "text/html",
        "json": "application/json",
    }
)


@dataclass(frozen=True, slots=True)
class Document:
    """A post-mortem in one of its formats."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class RunPage(Page[Run]):
    """Some runs of a list."""

    total: int | None  # of all pages


class Client:
    """Calls of one server, each with the token of whoever acts."""

    def __init__(self, server: str) -> None:
        self.server = server

    def me(self, token: str) -> Me:
        """Whose token it is."""
        return self._of(token).me()

    def runs(self, token: str, *, limit: int = 200) -> Page[Run]:
        """Runs: those with an open incident first, then those that go on, the projects in turn."""
        return self._calls(token).page(Run, "/v1/runs", limit=limit, order="attention")

    def list_runs(self, token: str, asked: Mapping[str, Any], cursor: str | None) -> RunPage:
        """A page of the runs that are `asked` for, and how many there are."""
        path = with_query("/v1/runs", **asked, cursor=cursor, count="true")
        return _run_page(self._calls(token).call("GET", path))

    def run(self, token: str, run: RunId) -> RunDetail:
        """One run with attempts, segments and rollback targets."""
        return self._of(token).run(run)

    def series(
        self,
        token: str,
        run: RunId,
        signals: Sequence[str],
        *,
        first: int | None = None,
        last: int | None = None,
        points: int = MAX_POINTS,
    ) -> Series:
        """Curves of steps [first, last], thinned to `points` a segment."""
        window = {"first": first, "last": last, "points": points}
        path = with_query(f"{run_path(run)}/series", signals=",".join(signals), **window)
        return _series(self._calls(token).call("GET", path))

    def incidents(
        self, token: str, *, run: RunId | None = None, state: str | None = None, limit: int = 50
    ) -> Page[Incident]:
        """Incidents of one run or of all: open ones first, the projects in turn."""
        name = f"{run.project}/{run.name}" if run else None
        asked = {"run": name, "state": state, "limit": limit, "order": "attention"}
        return self._calls(token).page(Incident, "/v1/incidents", **asked)

    def incident(self, token: str, run: RunId, number: int) -> IncidentDetail:
        """One incident with revisions, evidence and commands."""
        return self._of(token).incident(IncidentId(run, number))

    def incident_series(
        self, token: str, run: RunId, number: int, signals: Sequence[str]
    ) -> Series:
        """The copied samples around an incident."""
        path = f"{incident_path(IncidentId(run, number))}/series"
        return _series(self._calls(token).call("GET", with_query(path, signals=",".join(signals))))

    def postmortem(self, token: str, run: RunId, number: int, format: str) -> Document:
        """The post-mortem in one of `MEDIA_TYPES`."""
        content = self._of(token).postmortem(IncidentId(run, number), format)
        return Document(content, MEDIA_TYPES[format])

    def audit(self, token: str, run: RunId, *, limit: int = 100) -> Page[AuditEntry]:
        """Every intervention in a run, newest first."""
        return self._calls(token).page(AuditEntry, f"{run_path(run)}/audit", limit=limit)

    def run_commands(self, token: str, run: RunId, *, limit: int = 20) -> Page[Command]:
        """What was ordered of a run itself, without an incident, newest first."""
        return self._calls(token).page(Command, f"{run_path(run)}/commands", limit=limit)

    def _of(self, token: str) -> TypedClient:
        calls = self._calls(token)
        return TypedClient(self.server, token, timeout_s=READ_TIMEOUT_S, calls=calls)

    def _calls(self, token: str) -> Calls:
        try:
            return _PageCalls(self.server, token, READ_TIMEOUT_S)
        except ProtocolError as error:
            raise ApiError(
                "That is no token", _REMEDIES[401], code="no_token", status=401
            ) from error


class _PageCalls(Calls):
    """The typed client's calls; a failure says what helps whoever looks at a page."""

    def call(
        self, method: str, path: str, body: bytes | None = None, media: str = "application/json"
    ) -> bytes:
        try:
            return super().call(method, path, body, media)
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


def _run_page(content: bytes) -> RunPage:
    try:
        plain = json.loads(content)
        page: Page[Run] = read_page(Run, plain)
    except (NotUnderstood, ValueError, RecursionError) as error:
        raise stranger(str(error)) from error
    total = plain.get("total")
    return RunPage(page.items, page.next_cursor, total if isinstance(total, int) else None)


def _series(content: bytes) -> Series:
    try:
        return series_of(understood(SeriesAnswer, content), sha256(content).hexdigest())
    except NotUnderstood as error:
        raise stranger(str(error)) from error
