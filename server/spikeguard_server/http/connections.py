"""Limits on connections: how many there are, and what each may cost before it is answered.

uvicorn bounds neither the header of a request nor the time that it takes to come, and accepts
connections until no descriptor is left.

Invariants:
- What a request holds in memory before the application is asked is at most `max_header_bytes` and
  what one read returns. Chunked trailers count as its header.
- A connection that is being answered is never cut for being idle: long-polls and streams of events
  stay. One that rests, or whose request is still coming, has a deadline.
- There are never more than `most` connections. Beyond it the one that has rested longest makes
  room, so that health checks and agents get in however many connections strangers hold.
- What peers leave unread of their answers holds `max_unread_bytes` in all. Beyond it the address
  that leaves most is cut, at the answer that has waited longest. No connection has a second answer
  made while its first one is unread.
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter, OrderedDict
from enum import Enum, StrEnum, auto
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from spikeguard_server.errors import (
    Busy,
    HeaderTooLarge,
    Malformed,
    RequestTimeout,
    ServiceError,
    Unready,
)
from spikeguard_server.http.proxies import LOCAL, believed_networks, is_in
from spikeguard_server.http.rate_limits import address_of
from spikeguard_server.metrics import Metrics
from spikeguard_server.settings import Settings, networks_of

SWEEP_S: Final = 1.0  # between two looks at the deadlines
TAKE_S: Final = 0.25  # for who reads to take an answer before it counts as unread
HIGH_WATER: Final = 16_384  # bytes of an answer that may wait uncounted
LINGER_S: Final = 2.0  # for the answer to arrive where the request is still being sent
MAX_DISCARDED: Final = (
    8 * 2**20
)  # bytes of that, or of a body whose answer is out; then it is reset
MAX_PIPELINED: Final = 16  # requests that wait behind one that is being answered
FRAMING: Final = 0.25  # bytes that a chunked body may spend on each byte of content: each chunk
# costs the event loop as much as some hundred bytes do, and chunks of one byte took all of it
# Descriptors for all that is no connection: files, pipes to child processes; and beyond them one
# turn of the event loop may accept a whole backlog before any of it is counted.
RESERVED: Final = 128 + 2048


class ConnectionClosed(StrEnum):
    """Why the server closed a connection."""

    ADDRESS = "address"  # its address has too many
    FULL = "full"  # there are too many, and none of them rests
    MADE_ROOM = "made_room"  # it rested longest when another one came
    IDLE = "idle"  # nothing was asked on it for long
    HEADER_SIZE = "header_size"
    HEADER_TIME = "header_time"
    BODY_TIME = "body_time"
    UNREAD = "unread"  # its peer does not take the answer
    MALFORMED = "malformed"  # not HTTP


class Coming(Enum):
    """What of a request is on its way."""

    NOTHING = auto()
    HEADER = auto()
    BODY = auto()


class Connections:
    """Every connection of one server process. Lives in the event loop's thread."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings = settings
        self.most = most_connections(settings)
        self._closed = metrics.connections_closed
        self._exempt = (*networks_of(LOCAL), *believed_networks(settings))
        self._by_address: Counter[str] = Counter()
        self._open: set[BoundedHttp] = set()
        self._resting: OrderedDict[BoundedHttp, None] = OrderedDict()  # the longest first
        self._unread: OrderedDict[BoundedHttp, int] = OrderedDict()  # bytes, the longest first
        self._unread_by_address: Counter[str] = Counter()
        self._making_room = False
        metrics.connections.set_function(lambda: len(self._open))

    def enter(self, connection: BoundedHttp, host: str) -> ServiceError | None:
        """Count a new connection; what to answer where it cannot stay."""
        connection.address = address_of(host)
        refusal = self._refusal(connection.address)
        if not self._open:
            asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        self._open.add(connection)
        self._by_address[connection.address] += 1
        return refusal

    def leave(self, connection: BoundedHttp) -> None:
        """Forget a connection that is closed."""
        self._open.discard(connection)
        self.works(connection)
        self.taken(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def rests(self, connection: BoundedHttp) -> None:
        """Nothing is asked on the connection: it may be closed to make room."""
        self._resting[connection] = None

    def works(self, connection: BoundedHttp) -> None:
        """Somebody waits for an answer on the connection."""
        self._resting.pop(connection, None)

    def waits(self, connection: BoundedHttp, size: int) -> None:
        """So much of an answer waits for its peer to take it."""
        self._unread[connection] = size
        self._unread_by_address[connection.address] += size
        if not self._making_room and self._too_much_unread():
            self._making_room = True
            asyncio.get_running_loop().call_later(TAKE_S, self._make_room)

    def taken(self, connection: BoundedHttp) -> None:
        """Nothing of it waits any more."""
        self._unread_by_address[connection.address] -= self._unread.pop(connection, 0)
        if not self._unread_by_address[connection.address]:
            del self._unread_by_address[connection.address]

    def count(self, why: ConnectionClosed) -> None:
        """Count a connection that the server closes."""
        self._closed.labels(why.value).inc()

    def _refusal(self, address: str) -> ServiceError | None:
        most = self.settings.max_connections_per_address
        if self._by_address[address] >= most and not is_in(address, self._exempt):
            self.count(ConnectionClosed.ADDRESS)
            return Busy(
                f"Your address holds {most} connections to this server",
                "Close some. Where they are a proxy's: SPIKEGUARD_TRUSTED_PROXIES names it",
                limit=most,
            )
        if len(self._open) < self.most:
            return None
        if not self._resting:
            self.count(ConnectionClosed.FULL)
            return Unready(f"All {self.most} connections of this server are in use", "Try again")
        longest, _ = self._resting.popitem(last=False)
        longest.cut(ConnectionClosed.MADE_ROOM)
        return None

    def _too_much_unread(self) -> bool:
        return self._unread_by_address.total() > self.settings.max_unread_bytes

    def _make_room(self) -> None:
        self._making_room = False
        while self._too_much_unread():
            ((address, _),) = self._unread_by_address.most_common(1)
            longest = next(each for each in self._unread if each.address == address)
            self.taken(longest)
            longest.cut(ConnectionClosed.UNREAD)

    def _sweep(self) -> None:
        """Close what is past its deadline, once a second while anything is open."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._open):
            connection.check(now)
        if self._open:
            loop.call_later(SWEEP_S, self._sweep)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol with bounds on the header, on every wait, and on how many there are."""

    address = ""

    def __init__(self, connections: Connections, **words: Any) -> None:
        super().__init__(**words)
        self._connections, self._limits = connections, connections.settings
        self._max_bytes = connections.settings.max_header_bytes
        self._max_fields = connections.settings.max_headers
        self._coming = Coming.NOTHING
        self._deadline = inf  # of what is coming, by the loop's clock
        self._answering: RequestResponseCycle | None = None
        self._unread_since: float | None = None  # when the peer stopped taking the answer
        self._next: tuple[RequestResponseCycle, Any] | None = None  # until it takes it
        self._refusal: ServiceError | None = None
        self._refused = False
        self._discarded = 0  # bytes of what was refused
        self._header_bytes = 0  # of the request that is coming
        self._header_count = 0
        self._body_bytes = 0
        self._unparsed = 0  # bytes that were fed and did not come back from the parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(HIGH_WATER)
        refusal = self._connections.enter(self, self.client[0] if self.client else "")
        if refusal is None:
            self._rest(self._limits.header_timeout_s)
        else:
            self._refused = True
            transport.write(_answer(refusal))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._discard(data)
            return
        if self._coming is Coming.NOTHING:
            self._unparsed = 0
            self._expect(Coming.HEADER, self._limits.header_timeout_s)
        if self._coming is Coming.BODY and self._answered():
            self._discard(data)
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > self._max_bytes + FRAMING * self._body_bytes:
            self._refuse(
                HeaderTooLarge(self._max_bytes, self._max_fields), ConnectionClosed.HEADER_SIZE
            )

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(
                Malformed("Too many requests at once", "Wait for an answer before the next request")
            )
        self._header_bytes = self._header_count = self._body_bytes = 0
        self._expect(Coming.HEADER, self._limits.header_timeout_s)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._count_header(len(name) + len(value) + 4)
        if self._coming is Coming.HEADER:  # the trailers of a chunked body are nobody's
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._connections.works(self)
        self._expect(Coming.BODY, self._limits.body_timeout_s)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed -= len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._expect(Coming.NOTHING, inf)
        super().on_message_complete()
        if self._answered():  # before the request had come to its end
            self._rest(self._limits.keep_alive_s)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._coming is Coming.NOTHING and self._answered():
            self._rest(self._limits.keep_alive_s)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle  # `self.cycle` is the one that came last
        if self.flow.write_paused:
            self._next = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since = self.loop.time()
        self._connections.waits(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since = None
        self._connections.taken(self)
        if self._next is not None:
            (cycle, app), self._next = self._next, None
            super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser, or a callback of ours, has refused."""
        refusal = self._refusal or Malformed(msg.rstrip("."), "Send HTTP/1.1")
        large = isinstance(refusal, HeaderTooLarge)
        self._refuse(refusal, ConnectionClosed.HEADER_SIZE if large else ConnectionClosed.MALFORMED)

    def check(self, now: float) -> None:
        """Close the connection if what it waits for did not come in time."""
        if self._unread_since is not None:
            if now - self._unread_since > self._limits.body_timeout_s:
                self.cut(ConnectionClosed.UNREAD)
        elif now < self._deadline or self._refused:
            return
        elif self.flow.read_paused:  # the server does not read
            self._expect(self._coming, self._limits.body_timeout_s)
        elif self._coming is Coming.HEADER:
            late = RequestTimeout("header", self._limits.header_timeout_s)
            self._refuse(late, ConnectionClosed.HEADER_TIME)
        elif self._coming is Coming.BODY:
            late = RequestTimeout("body", self._limits.body_timeout_s)
            self._refuse(late, ConnectionClosed.BODY_TIME)
        else:
            self.cut(ConnectionClosed.IDLE)

    def cut(self, why: ConnectionClosed) -> None:
        """Close without an answer."""
        self._connections.count(why)
        self._refused = True
        self.transport.abort()

    def _answered(self) -> bool:
        """Whether nobody waits for an answer."""
        answered = self._answering is None or self._answering.response_complete
        return answered and not self.pipeline

    def _expect(self, coming: Coming, within_s: float) -> None:
        self._coming, self._deadline = coming, self.loop.time() + within_s

    def _rest(self, within_s: float) -> None:
        self._expect(Coming.NOTHING, within_s)
        self._connections.rests(self)

    def _count_header(self, size: int) -> None:
        self._unparsed -= size
        self._header_bytes += size
        if self._header_bytes > self._max_bytes or self._header_count > self._max_fields:
            self._stop(HeaderTooLarge(self._max_bytes, self._max_fields))

    def _stop(self, refusal: ServiceError) -> None:
        """Leave the parser; uvicorn calls `send_400_response` for whatever a callback raises."""
        self._refusal = refusal
        raise refusal

    def _refuse(self, refusal: ServiceError, why: ConnectionClosed) -> None:
        """Answer and close. What is still being sent is thrown away for a moment: closing at once
        would reset the connection, and the answer would be lost with it."""
        if self._refused or self.transport.is_closing():
            return
        self._refused, self._deadline = True, inf
        self._connections.count(why)
        self._connections.works(self)
        if self._answering is None or self._answered() or not self._answering.response_started:
            self.transport.write(_answer(refusal))
        self._give_up()
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _give_up(self) -> None:
        """Let what is being answered, and what waits for it, write nothing more."""
        self.pipeline.clear()
        self._next = None
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > MAX_DISCARDED:
            self.transport.abort()


def most_connections(settings: Settings) -> int:
    """How many connections there may be: as many as are set, and as descriptors allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return settings.max_connections
    free = soft - min(RESERVED + settings.pool_size, soft // 2)
    return min(settings.max_connections, free)


def raise_descriptor_limit(settings: Settings) -> None:
    """Ask for as many descriptors as `max_connections` needs, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + RESERVED + settings.pool_size
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bounded_http(settings: Settings, metrics: Metrics) -> Any:
    """What uvicorn takes as `http`."""
    return partial(BoundedHttp, Connections(settings, metrics))


def _answer(refusal: ServiceError) -> bytes:
    body = json.dumps(refusal.body()).encode()
    headers = {
        **refusal.headers,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Connection": "close",
    }
    lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
