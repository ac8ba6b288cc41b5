"""One call of the API: the request, the answer in its shape, and one error for all that fails.

Law: standard library only; every call has a timeout; whatever fails leaves as one `ApiError` with
the server's own words.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from http.client import HTTPException, HTTPResponse
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import (
    BaseHandler,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
    build_opener,
)

from spikeguard_client.reading import NotUnderstood, Page, read, read_page
from spikeguard_client.shapes import Command
from spikeguard_protocol.bearer import bearer
from spikeguard_protocol.bounded_answer import (
    BoundedHTTPHandler,
    BoundedHTTPSHandler,
    read_json,
)
from spikeguard_protocol.escaping import printable

# what comes back is no HTTP, ends early, is too long, or says that no memory holds it
UNREADABLE = (OSError, HTTPException, ValueError, OverflowError, MemoryError)
T = TypeVar("T")
PAGE = 200
Query = str | int | None
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ApiError(Exception):
    """A call failed. `code` is the server's word for it, or `unreachable`, `timeout`,
    `not_understood`.

    `message`, `remedy` and `error` are what the server said; as text, and so in a traceback, it is
    escaped for a terminal.
    """

    def __init__(
        self,
        message: str,
        remedy: str,
        *,
        code: str,
        status: int | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(printable(f"{message}. {remedy}" if remedy else message))
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


class Calls:
    """Calls of one server with one token, by method and path. Keeps no connection.

    `headers` go with every call. Raises `ProtocolError` for a token that no header takes.
    """

    def __init__(
        self, server: str, token: str, timeout_s: float, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self.server = server.rstrip("/")
        self.timeout_s = timeout_s
        self._headers = {**headers, "Authorization": bearer(token)}

    def get(self, shape: type[T], path: str, **query: Query) -> T:
        """What is there, as `shape`."""
        return self.send(shape, "GET", with_query(path, **query), None)

    def send(self, shape: type[T], method: str, path: str, body: Any) -> T:
        """The answer to `body` as JSON, as `shape`."""
        content = None if body is None else json.dumps(body).encode()
        return understood(shape, self.call(method, path, content))

    def page(self, shape: type[T], path: str, **query: Query) -> Page[T]:
        """One page of a list, with the cursor of the next one."""
        answer = self.call("GET", with_query(path, **query))
        return _understood(partial(read_page, shape), answer)

    def items(
        self, shape: type[T], path: str, *, paged: bool = True, **query: Query
    ) -> Iterator[T]:
        """The items of a list, page by page as they are read; `paged=False`: it comes whole."""
        cursor: str | None = None
        limits: dict[str, Query] = {"limit": PAGE} if paged else {}
        while True:
            page = self.page(shape, path, cursor=cursor, **limits, **query)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def call(
        self, method: str, path: str, body: bytes | None = None, media: str = "application/json"
    ) -> bytes:
        """The answer as it came, whole: of at most 64 MiB, within five minutes."""
        headers = {} if body is None else {"Content-Type": media}
        try:
            with self._answer(self._bounded, method, path, body, headers, self.timeout_s) as answer:
                return answer.read()
        except UNREADABLE as error:
            raise self._unreachable(error) from error

    def open(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> HTTPResponse:
        """The answer while it comes, without an end; whoever asks closes it."""
        return self._answer(self._endless, method, path, body, headers, timeout_s)

    def _answer(
        self,
        opener: OpenerDirector,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> HTTPResponse:
        given = {**self._headers, **headers}
        try:
            request = Request(self.server + path, body, given, method=method)
            answer: HTTPResponse = opener.open(request, timeout=timeout_s)
        except HTTPError as error:
            raise _refusal(error) from error
        except UNREADABLE as error:
            raise self._unreachable(error) from error
        return answer

    @cached_property
    def _bounded(self) -> OpenerDirector:
        return self._opener(BoundedHTTPHandler(), BoundedHTTPSHandler)

    @cached_property
    def _endless(self) -> OpenerDirector:
        return self._opener(HTTPHandler(), HTTPSHandler)

    def _opener(self, plain: BaseHandler, over_tls: type[HTTPSHandler]) -> OpenerDirector:
        if not self.server.startswith("https://"):
            return build_opener(_NoRedirect, plain)
        return build_opener(_NoRedirect, plain, over_tls(context=ssl.create_default_context()))

    def _unreachable(self, error: BaseException) -> ApiError:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            return ApiError(
                f"{self.server} did not answer in time ({reason})",
                "It may be starting or overloaded: try again",
                code="timeout",
            )
        return ApiError(
            f"{self.server} does not answer ({str(reason)[:500] or type(reason).__name__})",
            "Is the server up, and is this its address?",
            code="unreachable",
        )


class _NoRedirect(HTTPRedirectHandler):
    """The token is for the server that was named, not for whom it points to."""

    def redirect_request(self, *_: Any) -> None:
        """Nowhere: the answer becomes an `HTTPError`."""


def with_query(path: str, **query: Query) -> str:
    """`path` with what is asked; None asks nothing."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def understood(shape: type[T], answer: bytes) -> T:
    """An answer as `shape`."""
    return _understood(partial(read, shape), answer)


def _understood(reading: Callable[[Any], T], answer: bytes) -> T:
    try:
        return reading(read_json(answer))
    except (NotUnderstood, ValueError, RecursionError) as error:
        raise stranger(str(error)) from error


def _refusal(error: HTTPError) -> ApiError:
    """The server's own words where it gave them in the agreed shape."""
    if 300 <= error.code < 400:
        place = str(error.headers.get("Location"))[:200]
        return ApiError(
            f"The server points elsewhere ({error.code}, {place}): no token is sent there",
            "Name the address that answers itself",
            code="points_elsewhere",
        )
    try:
        told = dict(read_json(error.read())["error"])
    except (*UNREADABLE, KeyError, TypeError, RecursionError):
        told = {}
    message = told.get("message", f"The server answered {error.code}")
    remedy = told.get("remedy", "" if told else "See the server's log")
    code = told.get("code", f"http_{error.code}")
    return ApiError(f"{message}", f"{remedy or ''}", code=f"{code}", status=error.code, error=told)


def stranger(what: str) -> ApiError:
    """An answer that is not what the API promises."""
    return ApiError(
        f"The answer is not in the form that this version expects: {what}",
        "Run client and server in the same version, and check that this is the server's address",
        code="not_understood",
    )
