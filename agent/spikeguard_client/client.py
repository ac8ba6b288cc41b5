"""The calls of the API, one method each.

Law: standard library only; every call has a timeout; whatever fails leaves as one `ApiError` with
the server's own words. A stream of events is joined again where it broke, and nothing in it is
missing or comes twice.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from spikeguard_client.reading import NotUnderstood, Page, read, read_page
from spikeguard_client.shapes import (
    AuditEntry,
    Channel,
    ChannelTest,
    Command,
    Delivery,
    HappenedEvent,
    Incident,
    IncidentDetail,
    Layers,
    Me,
    Policy,
    Run,
    RunDetail,
    Series,
    Silence,
)
from spikeguard_client.stream import read_events
from spikeguard_protocol import CommandId, IncidentId, RunId
from spikeguard_protocol.paths import (
    channel_path,
    command_path,
    incident_path,
    run_path,
    silence_path,
)

T = TypeVar("T")
PAGE = 200
SILENT_S = 45.0  # a stream gives a sign of life every 15 s
Query = str | int | None


class ApiError(Exception):
    """A call failed. `code` is the server's word for it, or `unreachable`, `not_understood`."""

    def __init__(
        self,
        message: str,
        remedy: str,
        *,
        code: str,
        status: int | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{message}. {remedy}" if remedy else message)
        self.message, self.remedy = message, remedy
        self.code, self.status = code, status
        self.error = dict(error or {})  # with a code's own keys: `current`, `expected`, `limit`

    @property
    def current(self) -> Command | None:
        """The proposal that took the place of the one decided on (`revision_changed`)."""
        try:
            return read(Command, self.error.get("current"))
        except NotUnderstood:
            return None


class Client:
    """Calls of one server with one token. Threads may share it: it keeps no connection."""

    def __init__(self, server: str, token: str, *, timeout_s: float = 15.0) -> None:
        self.server = server.rstrip("/")
        self.timeout_s = timeout_s
        self._token = token

    def me(self) -> Me:
        """Whose token it is."""
        return self._get(Me, "/v1/me")

    def runs(self) -> Iterator[Run]:
        """Every run that the token may see, newest first, page by page as they are read."""
        return self._items(Run, "/v1/runs")

    def run(self, run: RunId) -> RunDetail:
        """One run with attempts, segments and rollback targets."""
        return self._get(RunDetail, run_path(run))

    def series(
        self,
        run: RunId,
        *signals: str,
        first: int | None = None,
        last: int | None = None,
        points: int = 2000,
    ) -> Series:
        """Curves of steps [first, last], thinned to `points` a segment with every extreme kept."""
        wanted = ",".join(signals or ("loss",))
        path = f"{run_path(run)}/series"
        return self._get(Series, path, signals=wanted, first=first, last=last, points=points)

    def audit(self, run: RunId) -> Iterator[AuditEntry]:
        """What happened to a run, newest first."""
        return self._items(AuditEntry, f"{run_path(run)}/audit")

    def incidents(self, run: RunId | None = None, state: str | None = None) -> Iterator[Incident]:
        """Spikes, newest first; `state` is `open`, `recovering`, `closed`, or several by commas."""
        name = None if run is None else f"{run.project}/{run.name}"
        return self._items(Incident, "/v1/incidents", run=name, state=state)

    def incident(self, incident: IncidentId) -> IncidentDetail:
        """One spike with its evidence and its commands."""
        return self._get(IncidentDetail, incident_path(incident))

    def incident_series(self, incident: IncidentId) -> Series:
        """The samples around a spike, which outlive the run's own."""
        return self._get(Series, f"{incident_path(incident)}/series")

    def incident_layers(self, incident: IncidentId, signal: str = "grad_norm") -> Layers:
        """Norms by layer around a spike's onset, as far as the agent sent them."""
        return self._get(Layers, f"{incident_path(incident)}/layers", signal=signal)

    def postmortem(self, incident: IncidentId, form: str = "md") -> bytes:
        """The post-mortem as `md`, `html` or `json`."""
        return self._call("GET", _with(f"{incident_path(incident)}/postmortem", format=form))

    def approve(self, command: CommandId, revision: int) -> Command:
        """Say yes to the revision that was seen, in the name that stands behind the token."""
        path = f"{command_path(command)}/approve"
        return self._send(Command, "POST", path, {"revision": revision})

    def reject(self, command: CommandId, revision: int, reason: str) -> Command:
        """Say no to the revision that was seen."""
        path = f"{command_path(command)}/reject"
        return self._send(Command, "POST", path, {"revision": revision, "reason": reason})

    def policy(self, project: str) -> Policy:
        """The policy in force."""
        return self._get(Policy, "/v1/policy", project=project)

    def put_policy(
        self, project: str, policy: Mapping[str, Any], replaces: int | None = None
    ) -> Policy:
        """Put a policy in force; a conflict if `replaces` is no longer the version in force."""
        body = {"project": project, "policy": dict(policy), "version": replaces}
        return self._send(Policy, "PUT", "/v1/policy", body)

    def channels(self, project: str) -> list[Channel]:
        """Where the people of a project are told."""
        return list(self._items(Channel, "/v1/channels", paged=False, project=project))

    def put_channel(self, project: str, name: str, channel: Mapping[str, Any]) -> Channel:
        """Write a channel; without `target` it keeps the one that it has."""
        return self._send(Channel, "PUT", channel_path(project, name), dict(channel))

    def delete_channel(self, project: str, name: str) -> None:
        """Tell nothing there any more."""
        self._call("DELETE", channel_path(project, name))

    def test_channel(self, project: str, name: str) -> ChannelTest:
        """Send a test now, and say what became of it."""
        return self._send(ChannelTest, "POST", f"{channel_path(project, name)}/test", None)

    def deliveries(self, project: str, *, channel: str | None = None) -> Iterator[Delivery]:
        """What was told and what was not, newest first."""
        return self._items(Delivery, "/v1/deliveries", project=project, channel=channel)

    def silences(self, project: str) -> list[Silence]:
        """Silences and maintenance windows in force or to come."""
        return list(self._items(Silence, "/v1/silences", paged=False, project=project))

    def silence(
        self,
        project: str,
        *,
        lasts_s: float,
        reason: str,
        run: str | None = None,
        incident: int | None = None,
        begins_in_s: float = 0.0,
    ) -> Silence:
        """Say nothing about a project, a run or an incident for a while."""
        body = {
            "project": project, "run": run, "incident": incident, "begins_in_s": begins_in_s,
            "lasts_s": lasts_s, "reason": reason,
        }  # fmt: skip
        return self._send(Silence, "POST", "/v1/silences", body)

    def end_silence(self, project: str, number: int) -> None:
        """Take a silence back; what it held is told."""
        self._call("DELETE", silence_path(project, number))

    def events(
        self, project: str, *, run: str | None = None, after: str | None = None
    ) -> Iterator[HappenedEvent]:
        """What happens, as it happens, for ever; from behind the event whose id is `after`.

        A stream that breaks is joined again where it broke. Raises `ApiError` for a refusal that
        does not pass: a token that ended, a run that is not there.
        """
        path, wait_s = _with("/v1/events", project=project, run=run), 0.5
        while True:
            try:
                with self._open("GET", path, None, _place(after), SILENT_S) as stream:
                    for event in read_events(stream):
                        after, wait_s = event["id"], 0.5
                        yield event
            except ApiError as error:
                if error.status is not None and error.status not in (429, 502, 503, 504):
                    raise
            except NotUnderstood as error:
                raise _stranger(str(error)) from error
            except (OSError, HTTPException):
                pass  # it broke: go on behind the last event
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 30.0)

    def _get(self, shape: type[T], path: str, **query: Query) -> T:
        return self._send(shape, "GET", _with(path, **query), None)

    def _send(self, shape: type[T], method: str, path: str, body: Any) -> T:
        content = None if body is None else json.dumps(body).encode()
        return _understood(partial(read, shape), self._call(method, path, content))

    def _items(
        self, shape: type[T], path: str, *, paged: bool = True, **query: Query
    ) -> Iterator[T]:
        cursor: str | None = None
        limits: dict[str, Query] = {"limit": PAGE} if paged else {}
        while True:
            answer = self._call("GET", _with(path, cursor=cursor, **limits, **query))
            page: Page[T] = _understood(partial(read_page, shape), answer)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            with self._open(method, path, body, {}, self.timeout_s) as answer:
                return answer.read()
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from error

    def _open(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> HTTPResponse:
        given = {"Authorization": f"Bearer {self._token}", **headers}
        if body is not None:
            given["Content-Type"] = "application/json"
        request = Request(self.server + path, body, given, method=method)
        try:
            answer: HTTPResponse = urlopen(request, timeout=timeout_s, context=self._tls)
        except HTTPError as error:
            raise _refusal(error) from error
        except URLError as error:
            raise self._unreachable(error.reason) from error
        return answer

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.server.startswith("https://") else None

    def _unreachable(self, reason: object) -> ApiError:
        return ApiError(
            f"{self.server} does not answer ({reason})",
            "Is the server up, and is this its address?",
            code="unreachable",
        )


def _place(after: str | None) -> dict[str, str]:
    return {} if after is None else {"Last-Event-ID": after}


def _with(path: str, **query: Query) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _understood(reading: Callable[[Any], T], answer: bytes) -> T:
    try:
        return reading(json.loads(answer))
    except (NotUnderstood, ValueError) as error:
        raise _stranger(str(error)) from error


def _refusal(error: HTTPError) -> ApiError:
    """The server's own words where it gave them in the agreed shape."""
    try:
        told = json.loads(error.read())["error"]
        message, remedy, code = told["message"], told["remedy"], told["code"]
    except (ValueError, KeyError, TypeError):
        told, remedy, code = {}, "See the server's log", f"http_{error.code}"
        message = f"The server answered {error.code}"
    return ApiError(message, remedy, code=code, status=error.code, error=told)


def _stranger(what: str) -> ApiError:
    return ApiError(
        f"The answer is not what this client understands: {what}",
        "Use a client of the server's version",
        code="not_understood",
    )
