"""What those may take of the dashboard's process who have not signed in, at its ASGI face."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.types import Message, Receive, Scope, Send

from spikeguard_dashboard.visitors import MAX_MESSAGE, OF_STRANGERS, Visitors

SECRET = "the-session-of-ada"


class Page:
    """Counts the messages that reach it, as Streamlit would run a script for each."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.closed: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del send
        while (await receive())["type"] != "websocket.disconnect":
            self.ran[scope["path"]] += 1

    async def visit(self, face: Visitors, path: str, *messages: Message, cookie: str = "") -> None:
        """A socket whose messages are all there at once, and which stays open then."""
        waiting = list(messages)

        async def receive() -> Message:
            if waiting:
                return waiting.pop(0)
            await asyncio.sleep(60)
            raise AssertionError

        async def send(message: Message) -> None:
            self.closed.append(message["code"])

        headers = [(b"cookie", f"spikeguard_session={cookie}".encode())] if cookie else []
        scope = {"type": "websocket", "path": path, "headers": headers, "client": ("10.0.0.7", 1)}
        await face(scope, receive, send)


def message(size: int = 3) -> Message:
    return {"type": "websocket.receive", "bytes": b"x" * size}


async def together(page: Page, *visits: tuple[str, str, int]) -> None:
    """Half a second of sockets of (path, cookie, messages)."""
    face = Visitors(page, lambda secret: secret == SECRET)
    tasks = [
        asyncio.create_task(page.visit(face, path, *[message()] * count, cookie=cookie))
        for path, cookie, count in visits
    ]
    await asyncio.wait(tasks, timeout=0.5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_ten_sockets_that_write_without_a_pause_run_a_few_scripts_and_a_person_all() -> None:
    page = Page()
    floods = [("/stranger", "", 200)] * 9 + [("/stranger", "made-up", 200)]
    asyncio.run(together(page, *floods, ("/ada", SECRET, 40)))
    assert page.ran["/ada"] == 40
    assert 1 <= page.ran["/stranger"] <= OF_STRANGERS.burst + 2


def test_a_message_longer_than_any_page_sends_ends_its_socket() -> None:
    page = Page()
    face = Visitors(page, lambda _: False)
    asyncio.run(page.visit(face, "/", message(MAX_MESSAGE + 1)))
    assert (page.closed, page.ran["/"]) == ([1009], 0)
