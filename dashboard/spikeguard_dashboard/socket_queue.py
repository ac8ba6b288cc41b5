"""What a web socket sent and its page has not taken yet.

Invariants: read ahead, so that a socket which ended is known to have ended: what it left waiting is
not served after it. What waits is bounded in number and bytes; who sends more is cut off. Lives in
the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from types import TracebackType
from typing import Final, Self

from starlette.types import Message, Receive, Send

MAX_MESSAGE: Final = 2**17  # bytes: the longest form holds a policy, of 20,000 characters
MOST_BYTES: Final = 2**20  # of all that wait
MOST_WAITING: Final = 32  # messages; a page whose script is slow sends one every few seconds
FLOODED, TOO_BIG, GOING = 1008, 1009, 1001


class SocketQueue:
    """Reads `receive` in a task of its own while it is entered, until `until_s` (monotonic)."""

    def __init__(self, receive: Receive, send: Send, until_s: float | None = None) -> None:
        self._receive, self._send, self._until_s = receive, send, until_s
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._came = asyncio.Event()
        self._ended: Message | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def next(self) -> Message:
        """The next message; the socket's end, as soon as it came and whatever waits before it."""
        while not self._waiting and self._ended is None:
            self._came.clear()
            await self._came.wait()
        if self._ended is not None:
            return self._ended
        message = self._waiting.popleft()
        self._bytes -= _size(message)
        return message

    async def _read(self) -> None:
        while self._ended is None:
            message = await self._within_time()
            self._waiting.append(message)
            self._bytes += _size(message)
            if message["type"] == "websocket.disconnect":
                self._ended = message
            elif _size(message) > MAX_MESSAGE or self._bytes > MOST_BYTES:
                await self._end(TOO_BIG)
            elif len(self._waiting) > MOST_WAITING:
                await self._end(FLOODED)
            self._came.set()

    async def _within_time(self) -> Message:
        left_s = None if self._until_s is None else max(0.0, self._until_s - monotonic())
        try:
            return await asyncio.wait_for(self._receive(), left_s)
        except TimeoutError:
            await self._send({"type": "websocket.close", "code": GOING})
            return {"type": "websocket.disconnect", "code": GOING}

    async def _end(self, code: int) -> None:
        self._ended = {"type": "websocket.disconnect", "code": code}
        await self._send({"type": "websocket.close", "code": code})


def _size(message: Message) -> int:
    return len(message.get("bytes") or b"") + len(message.get("text") or "")
