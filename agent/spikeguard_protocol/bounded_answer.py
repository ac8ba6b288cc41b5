"""An HTTP answer that ends: so many bytes, within so many seconds, whoever sends it.

`http.client` bounds a line and the number of headers, and a socket's timeout bounds one read. A
server that sends a byte now and then, or one `100 Continue` after the other, goes on for ever.
"""

from __future__ import annotations

import io
import socket
import time
from http.client import HTTPResponse
from typing import Any

MAX_ANSWER = 256 * 1024  # bytes of an answer, its head and all that comes before it included


class BoundedReader(io.RawIOBase):
    """What a connection reads for one answer: so many bytes, until a moment that is fixed.

    The connection's own timeout bounds each read alone: a byte now and then would hold it for ever.
    """

    def __init__(
        self, connection: socket.socket, timeout_s: float, max_bytes: int = MAX_ANSWER
    ) -> None:
        self._connection, self._timeout_s, self._max_bytes = connection, timeout_s, max_bytes
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
        self._connection.settimeout(left_s)
        read: int | None = self._raw.readinto(memoryview(buffer)[: self._left])
        self._left -= read or 0
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()


def answer_within(timeout_s: float, max_bytes: int = MAX_ANSWER) -> type[HTTPResponse]:
    """For a connection's `response_class`: the whole answer within `timeout_s` and `max_bytes`."""

    class Answer(HTTPResponse):
        def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            self.fp.close()
            self.fp = io.BufferedReader(BoundedReader(sock, timeout_s, max_bytes))

    return Answer
