"""The HTTP API as the command line calls it: one request, one answer, one clear failure.

Law: standard library only, every call has a timeout, and an answer that is not what the API
promises becomes `CommandFailed` with the server's own words and remedy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from spikeguard_cli.command import CommandFailed, say, warn_of_plain_http
from spikeguard_cli.credentials import Credentials, load_login
from spikeguard_protocol import Role
from spikeguard_protocol.bearer import bearer
from spikeguard_protocol.bounded_answer import (
    MAX_DOCUMENT,
    BoundedHTTPHandler,
    BoundedHTTPSHandler,
)
from spikeguard_protocol.escaping import printable

TIMEOUT_S = 15.0


class Refused(CommandFailed):
    """The server answered with an error."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        error = body.get("error")
        error = error if isinstance(error, dict) else {}
        message, remedy = error.get("message", f"HTTP {status}"), error.get("remedy")
        super().__init__(printable(f"{message}. {remedy}" if remedy else f"{message}"))
        self.status = status
        self.code = error.get("code")
        self.body = error


class Api:
    """The calls of docs/protocol.md that commands need."""

    def __init__(self, credentials: Credentials) -> None:
        warn_of_plain_http(credentials.server)
        self.credentials = credentials

    def get(self, path: str, **query: str | int | None) -> Any:
        """The JSON answer to a GET."""
        return _plain(self.read(path, **query))

    def read(self, path: str, **query: str | int | None) -> bytes:
        """The raw answer to a GET."""
        return self._call("GET", _with_query(path, query))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to a POST of `body`."""
        return _plain(self._call("POST", path, json.dumps(body).encode()))

    def put(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to a PUT of `body`."""
        return _plain(self._call("PUT", path, json.dumps(body).encode()))

    def put_document(self, path: str, document: bytes, **query: str | None) -> Any:
        """The JSON answer to a PUT of a document as it stands."""
        return _plain(self._call("PUT", _with_query(path, query), document))

    def delete(self, path: str, **query: str | None) -> bytes:
        """The raw answer to a DELETE."""
        return self._call("DELETE", _with_query(path, query))

    def items(
        self, path: str, limit: int, *, held: bool = True, **query: str | int | None
    ) -> Iterator[dict[str, Any]]:
        """The newest `limit` entries of a list, over as many pages as that takes.

        `held`: whoever asks keeps them all, so the pages together are no longer than one answer.
        """
        cursor: str | None = None
        room = MAX_DOCUMENT
        while limit > 0:
            answer = self.read(path, limit=min(limit, 1000), cursor=cursor, **query)
            room -= len(answer) if held else 0
            if room < 0:
                raise CommandFailed(
                    f"the list is longer than {MAX_DOCUMENT} bytes. Ask for fewer entries with "
                    "--limit, or, where the command has it, for --jsonl or --csv"
                )
            page = _plain(answer)
            found = page["items"][:limit]
            yield from found
            limit -= len(found)
            cursor = page["next_cursor"]
            if cursor is None or not found:
                return

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            return self._ask(method, path, body)
        except Refused as refusal:
            if refusal.status not in (401, 403) or not self.credentials.source:
                raise
            if (login := self._login_instead()) is None:
                raise _with_source(refusal, self.credentials) from refusal
            say(
                f"spikeguard: {self.credentials.source} holds a training job's token; going on "
                f"with the login in {login.source}",
                to_error=True,
            )
            self.credentials = login
            return self._ask(method, path, body)

    def _login_instead(self) -> Credentials | None:
        """The login at the same server, where the environment holds a training job's token, as
        `spikeguard up` says to set it: such a token is never meant for a command."""
        mine = self.credentials
        if not mine.from_environment:
            return None
        try:
            login = load_login()
            role = json.loads(self._ask("GET", "/v1/me"))["role"]
        except CommandFailed:
            return None
        return login if role == Role.AGENT and login.server == mine.server else None

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        url = self.credentials.server + path
        headers = {"Authorization": bearer(self.credentials.token)}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            request = Request(url, body, headers, method=method)
            with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            raise _refused(error) from error
        except (OSError, HTTPException, ValueError, OverflowError, MemoryError) as error:
            # what comes back is no HTTP, ends early, or says that no memory holds it
            reason = error.reason if isinstance(error, URLError) else error
            said = printable(str(reason) or type(reason).__name__)[:500]
            raise CommandFailed(
                f"{self.credentials.server} does not answer ({said}). "
                "Is the server up, and is this its address?"
            ) from error


def _plain(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise CommandFailed(
            f"the answer is no JSON ({error}). Is this the address of a spikeguard server?"
        ) from error


def _with_query(path: str, query: Mapping[str, str | int | None]) -> str:
    given = {key: value for key, value in query.items() if value is not None}
    try:
        return f"{path}?{urlencode(given)}" if given else path
    except UnicodeEncodeError as error:
        raise CommandFailed(f"{printable(error.object)} is no UTF-8: type it as text") from error


def _with_source(refusal: Refused, used: Credentials) -> Refused:
    """The same, with where the token came from and the way to another."""
    if used.from_environment:
        variable = used.source.split(" ")[0]
        way = f"Unset {variable} and run `spikeguard login --server {used.server}`"
    else:
        way = f"`spikeguard login --server {used.server}` signs you in with another token"
    told = Refused(refusal.status, {"error": refusal.body})
    told.args = (f"{refusal}. The token came from {used.source}. {way}",)
    return told


class _NoRedirect(HTTPRedirectHandler):
    """The token is for the server that was named, not for whom it points to."""

    def redirect_request(self, *_: Any) -> None:
        """Nowhere: the answer becomes an `HTTPError`."""


_OPENER = build_opener(_NoRedirect, BoundedHTTPHandler, BoundedHTTPSHandler)


def _refused(error: HTTPError) -> CommandFailed:
    try:
        body = json.loads(error.read())
    except (OSError, HTTPException, ValueError, RecursionError):
        body = {}
    if 300 <= error.code < 400:
        elsewhere = printable(str(error.headers.get("Location")))[:200]
        return CommandFailed(
            f"the server points elsewhere ({error.code}, {elsewhere}): no token is sent there. "
            "Name the address that answers itself"
        )
    return Refused(error.code, body if isinstance(body, dict) else {})
