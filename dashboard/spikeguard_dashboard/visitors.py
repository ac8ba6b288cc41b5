"""How much of this process those may take who have not signed in.

A page of Streamlit's is a web socket, and each of its messages runs a script in a thread that all
pages share. Whoever reaches the port can open one and write to it without a pause.

Invariants: who has signed in is limited alone, by their own session. All others share what is left
to strangers: so many sockets, scripts and minutes by address and in all. A message that comes too
early waits; nothing that is remembered grows without a bound. Lives in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from ipaddress import IPv6Network, ip_address
from time import monotonic
from typing import Final, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "spikeguard_session"
MAX_COOKIE: Final = 200  # characters
MAX_MESSAGE: Final = 2**20  # bytes: a page of ours uploads nothing
MOST_OF_ADDRESS: Final = 16  # sockets of strangers
MOST: Final = 64  # of all of them
STRANGER_S: Final = 1800.0  # a stranger's socket; the browser then opens another
BELIEVED_S: Final = 60.0  # how long a session that worked is believed to work
REMEMBERED: Final = 2000
ALL: Final = "strangers"
BUSY, TOO_BIG, GOING = 1013, 1009, 1001


class Pace(NamedTuple):
    """How often somebody may have a script run."""

    per_s: float
    burst: float


OF_PERSON: Final = Pace(20.0, 80.0)
OF_ADDRESS: Final = Pace(1.0, 4.0)  # a script takes some 0.3 s; an open page asks every 5 s
OF_STRANGERS: Final = Pace(1.5, 5.0)
OPENED: Final = Pace(3.0, 15.0)  # by one address: to open a socket costs little
ALL_OPENED: Final = Pace(6.0, 30.0)


@dataclass
class Paces:
    """When each may go on: the time at which their bucket would be full."""

    _full_at: OrderedDict[Hashable, float] = field(default_factory=OrderedDict)

    def take(self, who: Hashable, pace: Pace, now: float) -> float:
        """Count one script of theirs; seconds until it may run."""
        full_at = max(self._full_at.pop(who, now), now) + 1.0 / pace.per_s
        self._full_at[who] = full_at
        if len(self._full_at) > REMEMBERED:
            self._full_at.popitem(last=False)
        return max(0.0, full_at - now - pace.burst / pace.per_s)


class Visitors:
    """Stands before Streamlit's web socket. `check` says whether a session's secret works; it is
    asked in a thread."""

    def __init__(self, app: ASGIApp, check: Callable[[str], bool]) -> None:
        self._app, self._check = app, check
        self._paces = Paces()
        self._open: Counter[str] = Counter()
        self._known: OrderedDict[bytes, float] = OrderedDict()  # hashes of secrets, and until when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        secret = HTTPConnection(scope).cookies.get(COOKIE, "")[: MAX_COOKIE + 1]
        person = hashlib.sha256(secret.encode("utf-8", "replace")).digest()
        if self._known.get(person, 0.0) > monotonic():
            await self._serve_person(person, scope, receive, send)
        else:
            await self._serve_stranger(secret, person, scope, receive, send)

    async def _serve_person(
        self, person: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def paced() -> Message:
            message = await _receive(receive, send, None)
            await asyncio.sleep(self._paces.take(person, OF_PERSON, monotonic()))
            return message

        await self._app(scope, paced, send)

    async def _serve_stranger(
        self, secret: str, person: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """A stranger, or somebody whose session has to be asked for first."""
        address = address_of((scope.get("client") or ("",))[0])
        if self._open[address] >= MOST_OF_ADDRESS or self._open.total() >= MOST:
            await send({"type": "websocket.close", "code": BUSY})  # before it is accepted: a 403
            return
        self._open[address] += 1
        try:
            await asyncio.sleep(self._paces.take(("opened", address), OPENED, monotonic()))
            await asyncio.sleep(self._paces.take("opened", ALL_OPENED, monotonic()))
            known = await self._works(secret)
            if not known:
                await self._serve_until(address, scope, receive, send)
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]
        if known:
            self._note(person)
            await self._serve_person(person, scope, receive, send)

    async def _works(self, secret: str) -> bool:
        if not 0 < len(secret) <= MAX_COOKIE:
            return False
        return await run_in_threadpool(self._check, secret)

    async def _serve_until(self, address: str, scope: Scope, receive: Receive, send: Send) -> None:
        end_s = monotonic() + STRANGER_S

        async def paced() -> Message:
            message = await _receive(receive, send, end_s)
            if message["type"] == "websocket.receive":
                await self._turn(address)
            return message

        await self._app(scope, paced, send)

    async def _turn(self, address: str) -> None:
        """Wait until a stranger's script may run."""
        now = monotonic()
        await asyncio.sleep(self._paces.take(address, OF_ADDRESS, now))
        await asyncio.sleep(self._paces.take(ALL, OF_STRANGERS, monotonic()))

    def _note(self, person: bytes) -> None:
        self._known.pop(person, None)
        self._known[person] = monotonic() + BELIEVED_S
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


async def _receive(receive: Receive, send: Send, end_s: float | None) -> Message:
    """The next message; the socket's end where it is too long or the time is over."""
    left_s = None if end_s is None else max(0.0, end_s - monotonic())
    try:
        message = await asyncio.wait_for(receive(), left_s)
    except TimeoutError:
        return await _closed(send, GOING)
    size = len(message.get("bytes") or b"") + len(message.get("text") or "")
    return await _closed(send, TOO_BIG) if size > MAX_MESSAGE else message


async def _closed(send: Send, code: int) -> Message:
    await send({"type": "websocket.close", "code": code})
    return {"type": "websocket.disconnect", "code": code}


def address_of(host: str) -> str:
    """Whose address it is: of IPv6 the network, of which one machine has every address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host[:64]
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), 64), strict=False))
