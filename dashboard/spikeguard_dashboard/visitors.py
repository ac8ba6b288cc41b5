"""How much of this process those may take who have not signed in.

A page of Streamlit's is a web socket, and each of its messages runs a script in a thread that all
pages share. Whoever reaches the port can open one and write to it without a pause.

Invariants: who has signed in is limited alone, with everybody who uses the same token, however many
sessions it opened: a role that only reads may not hold up the others. All others share what is left
to strangers: so many sockets, scripts and minutes by address and in all. A script that took more
than one usually does counts as several. A message that comes too early waits; nothing that is
remembered grows without a bound. Lives in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv6Network, ip_address
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spikeguard_dashboard.script_costs import COSTS, HEADER
from spikeguard_dashboard.socket_queue import SocketQueue
from spikeguard_dashboard.used_calls import used_message

COOKIE: Final = "spikeguard_dashboard"
MAX_COOKIE: Final = 200  # characters
MOST_OF_PERSON: Final = 32  # sockets
MOST_OF_ADDRESS: Final = 16  # sockets of strangers
MOST: Final = 64  # of all of them
STRANGER_S: Final = 1800.0  # a stranger's socket; the browser then opens another
BELIEVED_S: Final = 60.0  # how long a session that worked is believed to work
REMEMBERED: Final = 2000
ALL: Final = "strangers"
BUSY: Final = 1013


class Pace(NamedTuple):
    """How often somebody may have a script run."""

    per_s: float
    burst: float


OF_PERSON: Final = Pace(3.0, 12.0)  # a script takes some 0.2 s of a core
OF_ADDRESS: Final = Pace(1.0, 4.0)  # a script takes some 0.3 s; an open page asks every 5 s
OF_STRANGERS: Final = Pace(1.5, 5.0)
OPENED: Final = Pace(3.0, 15.0)  # by one address: to open a socket costs little
ALL_OPENED: Final = Pace(6.0, 30.0)


@dataclass
class Paces:
    """When each may go on: the time at which their bucket would be full."""

    _full_at: OrderedDict[Hashable, float] = field(default_factory=OrderedDict)

    def take(self, who: Hashable, pace: Pace, now: float, scripts: float = 1.0) -> float:
        """Count so many scripts of theirs; seconds until the last may run."""
        full_at = max(self._full_at.pop(who, now), now) + scripts / pace.per_s
        self._full_at[who] = full_at
        if len(self._full_at) > REMEMBERED:
            self._full_at.popitem(last=False)
        return max(0.0, full_at - now - pace.burst / pace.per_s)


class Visitors:
    """Stands before Streamlit's web socket. `check` tells the token behind a session's secret, None
    where it does not work; it is asked in a thread."""

    def __init__(self, app: ASGIApp, check: Callable[[str], int | None]) -> None:
        self._app, self._check = app, check
        self._paces = Paces()
        self._open: Counter[str] = Counter()  # of strangers, by address
        self._of_token: Counter[int] = Counter()
        self._known: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # hashes of secrets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        secret = HTTPConnection(scope).cookies.get(COOKIE, "")[: MAX_COOKIE + 1]
        hashed = hashlib.sha256(secret.encode("utf-8", "replace")).digest()
        token, until = self._known.get(hashed, (None, 0.0))
        if token is not None and until > monotonic():
            await self._serve_person(token, scope, receive, send)
        else:
            await self._serve_stranger(secret, hashed, scope, receive, send)

    async def _serve_person(self, token: int, scope: Scope, receive: Receive, send: Send) -> None:
        if self._of_token[token] >= MOST_OF_PERSON:
            await refuse(send)
            return
        with _counted(self._of_token, token):
            async with SocketQueue(receive, send) as queue:
                visitor = f"token {token}"

                async def turn() -> None:
                    scripts = 1.0 + COSTS.pay(visitor)
                    await asyncio.sleep(self._paces.take(token, OF_PERSON, monotonic(), scripts))

                await self._app(_named(scope, visitor), partial(_next, queue, turn), send)

    async def _serve_stranger(
        self, secret: str, hashed: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """A stranger, or somebody whose session has to be asked for first."""
        address = address_of((scope.get("client") or ("",))[0])
        if self._open[address] >= MOST_OF_ADDRESS or self._open.total() >= MOST:
            await refuse(send)
            return
        with _counted(self._open, address):
            await asyncio.sleep(self._paces.take(("opened", address), OPENED, monotonic()))
            await asyncio.sleep(self._paces.take("opened", ALL_OPENED, monotonic()))
            token = await self._token_of(secret)
            if token is None:
                await self._serve_until(address, scope, receive, send)
                return
        self._note(hashed, token)
        await self._serve_person(token, scope, receive, send)

    async def _token_of(self, secret: str) -> int | None:
        if not 0 < len(secret) <= MAX_COOKIE:
            return None
        return await run_in_threadpool(self._check, secret)

    async def _serve_until(self, address: str, scope: Scope, receive: Receive, send: Send) -> None:
        async with SocketQueue(receive, send, until_s=monotonic() + STRANGER_S) as queue:
            turn, named = partial(self._turn, address), _named(scope, _stranger(address))
            await self._app(named, partial(_next, queue, turn), send)

    async def _turn(self, address: str) -> None:
        """Wait until a stranger's script may run."""
        scripts = 1.0 + COSTS.pay(_stranger(address))
        await asyncio.sleep(self._paces.take(address, OF_ADDRESS, monotonic(), scripts))
        await asyncio.sleep(self._paces.take(ALL, OF_STRANGERS, monotonic(), scripts))

    def _note(self, hashed: bytes, token: int) -> None:
        self._known.pop(hashed, None)
        self._known[hashed] = token, monotonic() + BELIEVED_S
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _stranger(address: str) -> str:
    return f"address {address}"


def _named(scope: Scope, visitor: str) -> Scope:
    """With whom the scripts of this socket are counted for, whatever a client says there."""
    name = HEADER.encode()
    others = [one for one in scope["headers"] if one[0].lower() != name]
    return {**scope, "headers": [*others, (name, visitor.encode("latin-1", "replace"))]}


async def _next(queue: SocketQueue, turn: Callable[[], Awaitable[None]]) -> Message:
    """The next message that a page of ours could have sent, once it is its `turn`; what is left
    out has had one too, since it has to be read."""
    while True:
        message = await queue.next()
        if message["type"] != "websocket.receive":
            return message
        await turn()
        if used_message(message):
            return message


async def refuse(send: Send) -> None:
    """Turn a socket away before it is accepted: its browser sees a 403, and tries again."""
    await send({"type": "websocket.close", "code": BUSY})


K = TypeVar("K", bound=Hashable)


@contextmanager
def _counted(counts: Counter[K], key: K) -> Iterator[None]:
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


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
