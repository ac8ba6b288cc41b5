"""The HTTP API as the pages ask it, in the shapes of `spikeguard_client`.

Law: every failure leaves as one `ApiError` that says what happened and what to do; nothing waits
longer than its timeout; no token is kept, each call is given the one it acts with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any, TypeVar

import httpx

from spikeguard_client import (
    ApiError,
    AuditEntry,
    Channel,
    ChannelTest,
    Command,
    Delivery,
    Inbox,
    Incident,
    IncidentDetail,
    Me,
    Policy,
    Response,
    Run,
    RunCommand,
    RunDetail,
    Silence,
)
from spikeguard_client import Series as SeriesAnswer
from spikeguard_client.reading import NotUnderstood, Page, read, read_page
from spikeguard_dashboard.series import Series, series_of
from spikeguard_protocol import CommandId, IncidentId, RunId
from spikeguard_protocol.paths import (
    SPEAKS_FOR,
    channel_path,
    command_path,
    incident_path,
    run_path,
)

CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 8.0
TEST_TIMEOUT_S = 60.0  # the server waits for the channel's own service
MAX_POINTS = 2000
NOTHING: Mapping[str, str] = MappingProxyType({})
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Signer:
    """Who decides: their session, and where their browser is, as far as that is known."""

    token: str
    browser: str | None = None  # address


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
        return _read(Me, self._get("/v1/me", token))

    def sign_out(self, token: str) -> None:
        """End a person's session."""
        self._call("DELETE", "/v1/sessions/current", token)

    def runs(self, token: str, *, limit: int = 200) -> Page[Run]:
        """Runs: those with an open incident first, then those that go on, the projects in turn."""
        return _page(Run, self._get("/v1/runs", token, limit=limit, order="attention"))

    def run(self, token: str, run: RunId) -> RunDetail:
        """One run with attempts, segments and rollback targets."""
        return _read(RunDetail, self._get(run_path(run), token))

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
        path = f"{run_path(run)}/series"
        window = {"first": first, "last": last, "points": points}
        return _series(self._get(path, token, signals=",".join(signals), **window))

    def incidents(
        self, token: str, *, run: RunId | None = None, state: str | None = None, limit: int = 50
    ) -> Page[Incident]:
        """Incidents of one run or of all: open ones first, the projects in turn."""
        name = f"{run.project}/{run.name}" if run else None
        asked = {"run": name, "state": state, "limit": limit, "order": "attention"}
        answer = self._get("/v1/incidents", token, **asked)
        return _page(Incident, answer)

    def inbox(self, token: str) -> Inbox:
        """What waits for people, the most pressing first."""
        return _read(Inbox, self._get("/v1/inbox", token))

    def incident(self, token: str, run: RunId, number: int) -> IncidentDetail:
        """One incident with revisions, evidence and commands."""
        return _read(IncidentDetail, self._get(incident_path(IncidentId(run, number)), token))

    def incident_series(
        self, token: str, run: RunId, number: int, signals: Sequence[str]
    ) -> Series:
        """The copied samples around an incident."""
        path = f"{incident_path(IncidentId(run, number))}/series"
        return _series(self._get(path, token, signals=",".join(signals)))

    def postmortem(self, token: str, run: RunId, number: int, format: str) -> Document:
        """The post-mortem as `md`, `html` or `json`."""
        path = f"{incident_path(IncidentId(run, number))}/postmortem"
        answer = self._get(path, token, format=format)
        media = answer.headers.get("content-type", "application/octet-stream")
        return Document(answer.content, media.split(";")[0])

    def audit(self, token: str, run: RunId, *, limit: int = 100) -> Page[AuditEntry]:
        """Every intervention in a run, newest first."""
        return _page(AuditEntry, self._get(f"{run_path(run)}/audit", token, limit=limit))

    def run_commands(self, token: str, run: RunId, *, limit: int = 20) -> Page[RunCommand]:
        """What was ordered of a run itself, without an incident, newest first."""
        return _page(RunCommand, self._get(f"{run_path(run)}/commands", token, limit=limit))

    def run_policy(self, token: str, run: RunId) -> Policy:
        """The policy in force for a run, with its project's kill switch."""
        return _read(Policy, self._get(f"{run_path(run)}/policy", token))

    def channels(self, token: str, project: str) -> Page[Channel]:
        """Where the people of a project are told, by name."""
        return _page(Channel, self._get("/v1/channels", token, project=project))

    def test_channel(self, token: str, project: str, channel: str) -> ChannelTest:
        """Send a test as the person behind `token`; answers when it is known what became of it."""
        path = f"{channel_path(project, channel)}/test"
        return _read(ChannelTest, self._call("POST", path, token, timeout=TEST_TIMEOUT_S))

    def silences(self, token: str, project: str) -> Page[Silence]:
        """Silences and maintenance windows in force or to come."""
        return _page(Silence, self._get("/v1/silences", token, project=project))

    def deliveries(self, token: str, project: str, *, limit: int = 50) -> Page[Delivery]:
        """What was told and what was not, newest first."""
        answer = self._get("/v1/deliveries", token, project=project, limit=limit)
        return _page(Delivery, answer)

    def approve(
        self, person: Signer, run: RunId, incident: int, command: int, revision: int
    ) -> Command:
        """Approve the revision that was seen, as `person`."""
        return self._decide(person, run, incident, command, "approve", {"revision": revision})

    def reject(
        self, person: Signer, run: RunId, incident: int, command: int, revision: int, reason: str
    ) -> Command:
        """Reject the revision that was seen, as `person`."""
        body = {"revision": revision, "reason": reason}
        return self._decide(person, run, incident, command, "reject", body)

    def acknowledge(self, person: Signer, incident: IncidentId) -> IncidentDetail:
        """Say that `person` looks at an incident."""
        return self._respond("POST", person, incident, "acknowledgement")

    def take_back_acknowledgement(self, person: Signer, incident: IncidentId) -> IncidentDetail:
        """Say that nobody looks at it any more."""
        return self._respond("DELETE", person, incident, "acknowledgement")

    def assign(self, person: Signer, incident: IncidentId, assignee: str | None) -> IncidentDetail:
        """Make it somebody's; None: nobody's."""
        return self._respond("POST", person, incident, "assignee", json={"assignee": assignee})

    def comment(self, person: Signer, incident: IncidentId, text: str) -> Response:
        """Keep what `person` says of it."""
        path = f"{incident_path(incident)}/comments"
        said = {SPEAKS_FOR: person.browser} if person.browser else {}
        answer = self._call("POST", path, person.token, json={"text": text}, headers=said)
        return _read(Response, answer)

    def _respond(
        self, method: str, person: Signer, incident: IncidentId, what: str, **body: Any
    ) -> IncidentDetail:
        path = f"{incident_path(incident)}/{what}"
        said = {SPEAKS_FOR: person.browser} if person.browser else {}
        return _read(IncidentDetail, self._call(method, path, person.token, headers=said, **body))

    def _decide(
        self, person: Signer, run: RunId, incident: int, command: int, verdict: str,
        body: dict[str, Any],
    ) -> Command:  # fmt: skip
        path = f"{command_path(CommandId(IncidentId(run, incident), command))}/{verdict}"
        said = {SPEAKS_FOR: person.browser} if person.browser else {}
        return _read(Command, self._call("POST", path, person.token, json=body, headers=said))

    def _get(self, path: str, token: str, **query: str | int | None) -> httpx.Response:
        asked = {name: value for name, value in query.items() if value is not None}
        return self._call("GET", path, token, params=asked)

    def _call(
        self, method: str, path: str, token: str, *, headers: Mapping[str, str] = NOTHING,
        **rest: Any,
    ) -> httpx.Response:  # fmt: skip
        given = {**headers, "Authorization": f"Bearer {token}"} if token else headers
        try:
            answer = self._http.request(method, path, headers=given, **rest)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise _no_answer(self.server, error) from error
        if not answer.is_success:
            raise _refusal(answer)
        return answer


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
        code="unreachable",
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
        error=error,
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


def _read(shape: type[T], answer: httpx.Response) -> T:
    return _understood(partial(read, shape), answer)


def _page(shape: type[T], answer: httpx.Response) -> Page[T]:
    return _understood(partial(read_page, shape), answer)


def _series(answer: httpx.Response) -> Series:
    fingerprint = sha256(answer.content).hexdigest()
    return _understood(lambda plain: series_of(read(SeriesAnswer, plain), fingerprint), answer)


def _understood(reading: Callable[[Any], T], answer: httpx.Response) -> T:
    try:
        return reading(_plain(answer))
    except NotUnderstood as error:
        raise _stranger(str(error)) from error
