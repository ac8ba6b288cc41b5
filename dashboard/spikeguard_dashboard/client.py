"""The HTTP API as typed calls.

Law: every failure leaves as one `ApiError` that says what happened and what to do; nothing waits
longer than its timeout; no token is kept, each call is given the one it acts with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx

from spikeguard_dashboard.notice_shapes import Channel, ChannelTest, Delivery, Silence
from spikeguard_dashboard.shapes import (
    AuditEntry,
    Command,
    Incident,
    IncidentDetail,
    Me,
    Run,
    RunDetail,
    Series,
    read_series,
)
from spikeguard_protocol import ProtocolError, RunId

CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 8.0
TEST_TIMEOUT_S = 60.0  # the server waits for the channel's own service
MAX_POINTS = 2000
T = TypeVar("T")


class ApiError(Exception):
    """A call failed. `code` is the server's word for it, or ours where no answer came."""

    def __init__(
        self,
        message: str,
        remedy: str,
        *,
        code: str = "unreachable",
        status: int | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
        self.status = status
        self.body = body or {}

    @property
    def current(self) -> Command | None:
        """The proposal that took the place of the one decided on (409 `revision_changed`)."""
        found = self.body.get("current")
        return cast(Command, found) if isinstance(found, dict) and "revision" in found else None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a list, newest first."""

    items: Sequence[T]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Document:
    """A post-mortem in one of its formats."""

    content: bytes
    media_type: str


class Client:
    """Calls of one server, each with the token of whoever acts."""

    def __init__(self, server: str, *, http: httpx.Client | None = None) -> None:
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self.server = server
        self._http = http or httpx.Client(base_url=server, timeout=timeout)

    def close(self) -> None:
        """Give back the connections."""
        self._http.close()

    def me(self, token: str) -> Me:
        """Whose token it is."""
        return cast(Me, _object(self._get("/v1/me", token), Me))

    def sign_out(self, token: str) -> None:
        """End a person's session."""
        self._call("DELETE", "/v1/sessions/current", token)

    def runs(self, token: str, *, limit: int = 200, cursor: str | None = None) -> Page[Run]:
        """Runs, newest first."""
        answer = self._get("/v1/runs", token, limit=limit, cursor=cursor)
        return _page(answer, Run)

    def run(self, token: str, run: RunId) -> RunDetail:
        """One run with attempts, segments and rollback targets."""
        return cast(RunDetail, _object(self._get(_run_path(run), token), RunDetail))

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
        path = f"{_run_path(run)}/series"
        window = {"first": first, "last": last, "points": points}
        return _series(self._get(path, token, signals=",".join(signals), **window))

    def incidents(
        self, token: str, *, run: RunId | None = None, state: str | None = None, limit: int = 50
    ) -> Page[Incident]:
        """Incidents, newest first, of one run or of all."""
        name = f"{run.project}/{run.name}" if run else None
        answer = self._get("/v1/incidents", token, run=name, state=state, limit=limit)
        return _page(answer, Incident)

    def incident(self, token: str, run: RunId, number: int) -> IncidentDetail:
        """One incident with revisions, evidence and commands."""
        answer = self._get(_incident_path(run, number), token)
        return cast(IncidentDetail, _object(answer, IncidentDetail))

    def incident_series(self, token: str, run: RunId, number: int) -> Series:
        """The copied samples around an incident."""
        return _series(self._get(f"{_incident_path(run, number)}/series", token))

    def postmortem(self, token: str, run: RunId, number: int, format: str) -> Document:
        """The post-mortem as `md`, `html` or `json`."""
        path = f"{_incident_path(run, number)}/postmortem"
        answer = self._get(path, token, format=format)
        media = answer.headers.get("content-type", "application/octet-stream")
        return Document(answer.content, media.split(";")[0])

    def audit(self, token: str, run: RunId, *, limit: int = 100) -> Page[AuditEntry]:
        """Every intervention in a run, newest first."""
        return _page(self._get(f"{_run_path(run)}/audit", token, limit=limit), AuditEntry)

    def channels(self, token: str, project: str) -> Page[Channel]:
        """Where the people of a project are told, by name."""
        return _page(self._get("/v1/channels", token, project=project), Channel)

    def test_channel(self, token: str, project: str, channel: str) -> ChannelTest:
        """Send a test as the person behind `token`; answers when it is known what became of it."""
        path = f"/v1/channels/{quote(project, safe='')}/{quote(channel, safe='')}/test"
        answer = self._call("POST", path, token, timeout=TEST_TIMEOUT_S)
        return cast(ChannelTest, _object(answer, ChannelTest))

    def silences(self, token: str, project: str) -> Page[Silence]:
        """Silences and maintenance windows in force or to come."""
        return _page(self._get("/v1/silences", token, project=project), Silence)

    def deliveries(self, token: str, project: str, *, limit: int = 50) -> Page[Delivery]:
        """What was told and what was not, newest first."""
        answer = self._get("/v1/deliveries", token, project=project, limit=limit)
        return _page(answer, Delivery)

    def approve(
        self, token: str, run: RunId, incident: int, command: int, revision: int
    ) -> Command:
        """Approve the revision that was seen, as the person behind `token`."""
        path = f"{_incident_path(run, incident)}/commands/{command}/approve"
        return _command(self._call("POST", path, token, json={"revision": revision}))

    def reject(
        self, token: str, run: RunId, incident: int, command: int, revision: int, reason: str
    ) -> Command:
        """Reject the revision that was seen, as the person behind `token`."""
        path = f"{_incident_path(run, incident)}/commands/{command}/reject"
        body = {"revision": revision, "reason": reason}
        return _command(self._call("POST", path, token, json=body))

    def _get(self, path: str, token: str, **query: str | int | None) -> httpx.Response:
        asked = {name: value for name, value in query.items() if value is not None}
        return self._call("GET", path, token, params=asked)

    def _call(self, method: str, path: str, token: str, **rest: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            answer = self._http.request(method, path, headers=headers, **rest)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise _no_answer(self.server, error) from error
        if not answer.is_success:
            raise _refusal(answer)
        return answer


def _run_path(run: RunId) -> str:
    return f"/v1/runs/{quote(run.project, safe='')}/{quote(run.name, safe='')}"


def _incident_path(run: RunId, number: int) -> str:
    return f"{_run_path(run)}/incidents/{number}"


def _no_answer(server: str, error: Exception) -> ApiError:
    if isinstance(error, httpx.TimeoutException):
        return ApiError(
            f"The server at {server} did not answer in time",
            "It may be starting or overloaded; this page asks again by itself.",
            code="timeout",
        )
    return ApiError(
        f"The server at {server} can't be reached",
        "Start it with `spikeguard up` or `spikeguard serve`, or set SPIKEGUARD_SERVER to its "
        "address. Training goes on without it.",
    )


_REMEDIES = {
    401: "Sign in again; if nobody is signed in, set SPIKEGUARD_TOKEN or SPIKEGUARD_TOKEN_FILE "
    "of the dashboard to a viewer's token.",
    403: "Ask for a token with the role that this needs: viewer to read, operator to decide.",
    404: "Check the name in the address, or open it from the list of runs.",
}


def _refusal(answer: httpx.Response) -> ApiError:
    """The server's own words where it gave them in the agreed shape."""
    body = _plain(answer)
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {}
    return ApiError(
        str(error.get("message") or f"The server answered {answer.status_code}"),
        str(error.get("remedy") or _REMEDIES.get(answer.status_code, "See the server's log.")),
        code=str(error.get("code") or f"http_{answer.status_code}"),
        status=answer.status_code,
        body={**body, **error} if isinstance(body, dict) else None,
    )


def _plain(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _stranger(what: str) -> ApiError:
    return ApiError(
        f"The server's answer is not what this dashboard understands: {what}",
        "Run server and dashboard in the same version, and check that SPIKEGUARD_SERVER is "
        "spikeguard's server.",
        code="not_understood",
    )


def _object(answer: httpx.Response, shape: Any) -> Mapping[str, Any]:
    return _checked(_plain(answer), shape)


def _checked(plain: Any, shape: Any) -> Mapping[str, Any]:
    """`plain` if it has every key of `shape`; pages then read it without looking again."""
    if not isinstance(plain, dict):
        raise _stranger(f"no {shape.__name__}")
    if missing := shape.__required_keys__ - plain.keys():
        raise _stranger(f"{shape.__name__} without {min(missing)!r}")
    return plain


def _page(answer: httpx.Response, shape: Any) -> Page[Any]:
    plain = _plain(answer)
    if not isinstance(plain, dict) or not isinstance(plain.get("items"), list):
        raise _stranger("no list")
    return Page([_checked(item, shape) for item in plain["items"]], plain.get("next_cursor"))


def _command(answer: httpx.Response) -> Command:
    return cast(Command, _object(answer, Command))


def _series(answer: httpx.Response) -> Series:
    plain = _plain(answer)
    if not isinstance(plain, dict):
        raise _stranger("no Series")
    try:
        series = read_series(plain)
    except ProtocolError as error:
        raise _stranger(str(error)) from error
    return replace(series, fingerprint=sha256(answer.content).hexdigest())
