"""An HTTP answer that ends: so many bytes, within so many seconds, whoever sends it.

`http.client` bounds a line and the number of headers, and a socket's timeout bounds one read. A
server that sends a byte now and then, or one `100 Continue` after the other, goes on for ever.
"""

from __future__ import annotations

import io
import json
import socket
import time
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, Request

MAX_ANSWER = 256 * 1024  # bytes of an answer, its head and all that comes before it included
MAX_DOCUMENT = 64 * 2**20  # the same where people ask: a list, a post-mortem with its plots
DOCUMENT_S = 300.0


class BoundedReader(io.RawIOBase):
    """What a connection reads for one answer: so many bytes, until a moment that is fixed.

    The connection's own timeout bounds each read alone: a byte now and then would hold it for ever.
    """

    def __init__(
        self,
        connection: socket.socket,
        timeout_s: float,
        max_bytes: int = MAX_ANSWER,
        silence_s: float | None = None,
    ) -> None:
        """`silence_s` bounds each read, too: a server that says nothing is given up on first."""
        self._connection, self._timeout_s, self._max_bytes = connection, timeout_s, max_bytes
        self._silence_s = timeout_s if silence_s is None else silence_s
        self._raw = connection.makefile("rb", buffering=0)
        self._deadline = time.monotonic() + timeout_s
        self._left = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the answer was not complete after {self._timeout_s:g} s")
        if self._left <= 0:
            raise ValueError(f"the answer is longer than {self._max_bytes} bytes")
        self._connection.settimeout(min(left_s, self._silence_s))
        read: int | None = self._raw.readinto(memoryview(buffer)[: self._left])
        self._left -= read or 0
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(HTTPResponse):
    """An answer that is read within `BoundedReader`."""

    timeout_s, max_bytes = 0.0, MAX_ANSWER

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(self.bounded(sock))

    def bounded(self, sock: socket.socket) -> BoundedReader:
        """What the answer is read from."""
        return BoundedReader(sock, self.timeout_s, self.max_bytes)


class _Document(_Answer):
    """A long one, of which no part comes later than the connection's timeout after the last."""

    timeout_s, max_bytes = DOCUMENT_S, MAX_DOCUMENT

    def bounded(self, sock: socket.socket) -> BoundedReader:
        return BoundedReader(sock, self.timeout_s, self.max_bytes, sock.gettimeout())


def answer_within(timeout_s: float, max_bytes: int = MAX_ANSWER) -> type[HTTPResponse]:
    """For a connection's `response_class`: the whole answer within `timeout_s` and `max_bytes`."""
    return type("Answer", (_Answer,), {"timeout_s": timeout_s, "max_bytes": max_bytes})


def _bounded(kind: type[HTTPConnection]) -> type[HTTPConnection]:
    return type(kind.__name__, (kind,), {"response_class": _Document})


class BoundedHTTPHandler(HTTPHandler):
    """For `urllib`: an answer of at most `MAX_DOCUMENT` bytes, within `DOCUMENT_S`."""

    def do_open(self, http_class: Any, req: Request, **arguments: Any) -> HTTPResponse:
        return super().do_open(_bounded(http_class), req, **arguments)


class BoundedHTTPSHandler(HTTPSHandler):
    """The same over TLS."""

    def do_open(self, http_class: Any, req: Request, **arguments: Any) -> HTTPResponse:
        return super().do_open(_bounded(http_class), req, **arguments)


MAX_CONTAINERS = 1_000_000  # lists and tables of an answer; each takes 64 bytes and more


def read_json(answer: bytes) -> Any:
    """An answer's JSON; raise `ValueError` for what is none, and for what takes many times its
    length of memory, as lists of nothing do."""
    if answer.count(b"[") + answer.count(b"{") > MAX_CONTAINERS:
        raise ValueError(f"it has more than {MAX_CONTAINERS:,} lists and tables")
    return json.loads(answer)
