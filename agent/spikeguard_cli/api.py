"""The HTTP API as a command calls it: by the calls of the one client, in plain JSON.

Whatever fails becomes `CommandFailed` with the server's own words and remedy; a training job's
token is exchanged for the login that lies beside it. httpx is imported with the first call, so that
`--help`, and a copy without the extra `cli`, do without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from spikeguard_cli.command import (
    CHANGED,
    FAILED,
    NO_SERVER,
    NOT_ALLOWED,
    CommandFailed,
    NoServer,
    say,
    warn_of_plain_http,
    with_next,
)
from spikeguard_cli.credentials import Credentials, load_login
from spikeguard_protocol import DEFAULT_PROJECT, Role
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.plain_http import is_address

if TYPE_CHECKING:
    from spikeguard_client import ApiError

TIMEOUT_S = 15.0
Query = str | int | list[str] | None


class Refused(CommandFailed):
    """The server answered with an error, in its own words, and what to type next."""

    def __init__(self, error: ApiError, path: str) -> None:
        way = _next_of(error.status, path)
        unsaid = way and "`spikeguard " not in str(error)
        super().__init__(with_next(str(error), way) if unsaid else str(error))
        self.status, self.code, self.body = error.status, error.error.get("code"), error.error
        self.exit_status = _EXITS.get(error.status or 0, FAILED)


_EXITS = {401: NOT_ALLOWED, 403: NOT_ALLOWED, 409: CHANGED} | dict.fromkeys(
    (429, 502, 503, 504), NO_SERVER
)


def _next_of(status: int | None, path: str) -> str:
    """What helps where something is not there, or not as it was; empty: the words say it."""
    run = _RUN.match(path)
    name = f"{run[1]}/{run[2]}".removeprefix(f"{DEFAULT_PROJECT}/") if run else ""
    if status == 404:
        if run is None:  # where no server of ours is
            return "spikeguard login --server URL"
        return f"spikeguard incidents {name}" if run[3] else "spikeguard runs"
    if status == 409 and run:
        return f"spikeguard show '{name}#{run[3]}'" if run[3] else f"spikeguard show {name}"
    return ""


_RUN = re.compile(r"/v1/runs/([\w.-]+)/([\w.-]+)(?:/incidents/(\d+))?")


class Api:
    """The calls of docs/protocol.md that commands need."""

    def __init__(self, credentials: Credentials) -> None:
        if not is_address(credentials.server):
            remedy = "Write http://HOST:PORT or https://HOST"
            raise CommandFailed(f"{credentials.server!r:.80} is no server's address. {remedy}")
        warn_of_plain_http(credentials.server)
        self.credentials = credentials

    def get(self, path: str, **query: Query) -> dict[str, Any]:
        """The JSON answer to a GET."""
        return _plain(self.read(path, **query))

    def read(self, path: str, **query: Query) -> bytes:
        """The raw answer to a GET."""
        return self._call("GET", path, **query)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON answer to a POST of `body`."""
        return _plain(self._call("POST", path, body))

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON answer to a PUT of `body`."""
        return _plain(self._call("PUT", path, body))

    def delete(self, path: str, **query: Query) -> bytes:
        """The raw answer to a DELETE."""
        return self._call("DELETE", path, **query)

    def items(self, path: str, limit: int, **query: Query) -> Iterator[dict[str, Any]]:
        """The newest `limit` entries of a list, over as many pages as that takes."""
        cursor: str | None = None
        while limit > 0:
            page = self.get(path, limit=min(limit, 1000), cursor=cursor, **query)
            found = page["items"][:limit]
            yield from found
            limit -= len(found)
            cursor = page["next_cursor"]
            if cursor is None or not found:
                return

    def _call(self, method: str, path: str, body: Any = None, **query: Query) -> bytes:
        try:
            return self._ask(method, path, body, **query)
        except Refused as refusal:
            if refusal.status not in (401, 403) or not self.credentials.source:
                raise
            if (login := self._login_instead()) is None:
                raise _with_source(refusal, self.credentials) from refusal.__cause__
            say(
                f"spikeguard: {self.credentials.source} holds a training job's token; going on "
                f"with the login in {login.source}",
                to_error=True,
            )
            self.credentials = login
            return self._ask(method, path, body, **query)

    def _login_instead(self) -> Credentials | None:
        """The login at the same server, where the environment holds a training job's token, as
        `spikeguard up` says to set it: such a token is never meant for a command."""
        mine = self.credentials
        if not mine.from_environment:
            return None
        try:
            login = load_login()
            role = _plain(self._ask("GET", "/v1/me"))["role"]
        except CommandFailed:
            return None
        return login if role == Role.AGENT and login.server == mine.server else None

    def _ask(self, method: str, path: str, body: Any = None, **query: Query) -> bytes:
        from spikeguard_client.calls import ApiError, Calls

        server = self.credentials.server
        try:
            calls = Calls(server, self.credentials.token, TIMEOUT_S)
            return calls.call(method, path, body, **query)
        except UnicodeEncodeError as error:
            told = printable(error.object)
            raise CommandFailed(f"{told} is no UTF-8: type it as text") from error
        except ApiError as error:
            if error.status is not None:
                raise Refused(error, path) from error
            said = str(error)
            if error.error.get("code") != "timeout":  # that one is an address, and a login
                said = with_next(said, f"spikeguard login --server {server}")
            raise NoServer(said) from error


def _plain(answer: bytes) -> dict[str, Any]:
    from spikeguard_client.calls import ApiError, read

    try:
        return read(dict[str, Any], answer)
    except ApiError as error:
        raise CommandFailed(str(error)) from error


def _with_source(refusal: Refused, used: Credentials) -> Refused:
    """The same, with where the token came from and the way to another."""
    if used.from_environment:
        variable = used.source.split(" ")[0]
        way = f"Unset {variable} and run `spikeguard login --server {used.server}`"
    else:
        way = f"`spikeguard login --server {used.server}` signs you in with another token"
    refusal.args = (f"{refusal}. The token came from {used.source}. {way}",)
    return refusal
