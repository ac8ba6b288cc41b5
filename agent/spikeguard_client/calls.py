"""One call of the API: the request, the answer in its shape, and one error for all that fails.

httpx carries the call, msgspec reads the answer. Every call has a timeout, and whatever fails
leaves as one `ApiError`, with the server's own words where it gave them.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import httpx
import msgspec

from spikeguard_client.shapes import Command
from spikeguard_protocol.bearer import bearer
from spikeguard_protocol.escaping import printable

PAGE = 200
# no server there, an answer cut short or no HTTP; ImportError: a SOCKS proxy wants more
NO_ANSWER = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ImportError)
NOT_READ = (ValueError, RecursionError)
T = TypeVar("T")
Query = str | int | list[str] | None


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
            return msgspec.convert(self.error.get("current"), Command, strict=False)
        except msgspec.ValidationError:
            return None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a list, and what to ask for its next ones with, if there are any."""

    items: list[T]
    next_cursor: str | None = None


class Calls:
    """Calls of one server with one token, by method and path. Keeps no connection, so that threads
    may share it.

    Raises `ProtocolError` for a token that no header takes.
    """

    def __init__(self, server: str, token: str, timeout_s: float) -> None:
        self.server = server.rstrip("/")
        self.timeout_s = timeout_s
        self._headers = {"Authorization": bearer(token), "Accept-Encoding": "identity"}

    def get(self, shape: type[T], path: str, **query: Query) -> T:
        """What is there, as `shape`."""
        return read(shape, self.call("GET", path, **query))

    def send(self, shape: type[T], method: str, path: str, body: Any = None, **query: Query) -> T:
        """The answer to `body` as JSON, as `shape`."""
        return read(shape, self.call(method, path, body, **query))

    def page(self, shape: type[T], path: str, **query: Query) -> Page[T]:
        """One page of a list, with the cursor of the next one."""
        pages: Any = Page
        found: Page[T] = self.get(pages[shape], path, **query)
        return found

    def items(self, shape: type[T], path: str, **query: Query) -> Iterator[T]:
        """The items of a list, page by page as they are read."""
        cursor: str | None = None
        while True:
            page = self.page(shape, path, cursor=cursor, limit=PAGE, **query)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def call(self, method: str, path: str, body: Any = None, **query: Query) -> bytes:
        """The answer, as it came, to `body` as JSON and what is asked; None asks nothing."""
        given = {name: value for name, value in query.items() if value is not None}
        asked = urlencode(given, doseq=True)
        url = f"{self.server}{path}{asked and '?'}{asked}"
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            answer = self._http.request(method, url, content=content, headers=headers)
        except NO_ANSWER as error:
            raise self._unreachable(error) from error
        if answer.is_success:
            return answer.content
        raise _refusal(answer)

    @cached_property
    def _http(self) -> httpx.Client:
        """Follows no redirect: the token is for the server that was named."""
        return httpx.Client(
            headers=self._headers,
            timeout=self.timeout_s,
            verify=_tls(trusting=self.server.startswith("https://")),
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def _unreachable(self, error: BaseException) -> ApiError:
        if isinstance(error, httpx.TimeoutException):
            return ApiError(
                f"{self.server} did not answer in time ({error})",
                "It may be starting or overloaded: try again",
                code="timeout",
            )
        if "[SSL" in str(error):
            return ApiError(
                f"There is no secure connection to {self.server} ({error})",
                "Have this machine trust its certificate (SSL_CERT_FILE=FILE), or write http:// "
                "where it speaks no TLS",
                code="unreachable",
            )
        return ApiError(
            f"{self.server} does not answer ({str(error)[:500] or type(error).__name__})",
            "Is the server up, and is this its address?",
            code="unreachable",
        )


@cache
def _tls(*, trusting: bool) -> ssl.SSLContext:
    """`trusting`: the machine's authorities, which take 20 ms to load and plain HTTP does not
    need. httpx has its own, and a company's are not among those."""
    return ssl.create_default_context() if trusting else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def read(shape: type[T], answer: bytes) -> T:
    """An answer as `shape`; "nan", "inf" and "-inf" become floats where it has them."""
    try:
        return msgspec.json.decode(answer, type=shape, strict=False)
    except NOT_READ as error:
        raise not_understood(error) from error


def _refusal(answer: httpx.Response) -> ApiError:
    """The server's own words where it gave them in the agreed shape."""
    status = answer.status_code
    if 300 <= status < 400:
        place = str(answer.headers.get("Location"))[:200]
        return ApiError(
            f"The server points elsewhere ({status}, {place}): no token is sent there",
            "Name the address that answers itself",
            code="points_elsewhere",
        )
    try:
        told = read(dict[str, dict[str, Any]], answer.content)["error"]
    except (ApiError, KeyError):
        told = {}
    message = told.get("message", f"The server answered {status}")
    remedy = told.get("remedy", "" if told else "See the server's log")
    code = told.get("code", f"http_{status}")
    return ApiError(f"{message}", f"{remedy or ''}", code=f"{code}", status=status, error=told)


def not_understood(error: BaseException) -> ApiError:
    """An answer that is not what the API promises."""
    return ApiError(
        f"The answer is not in the form that this version expects: {error}",
        "Run client and server in the same version, and check that this is the server's address",
        code="not_understood",
    )
