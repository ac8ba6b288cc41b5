"""What those may take of the dashboard's process who have not signed in, at its ASGI face."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic, thread_time
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import (
    BackendOperationRequest,
    BackMsg,
    DeferredFileRequestPayload,
    InstallSkillsRequestPayload,
)
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.Common_pb2 import (
    FileUploaderState,
    FileURLsRequest,
    SInt64Array,
    StringArray,
    UploadedFileInfo,
)
from streamlit.proto.WidgetStates_pb2 import WidgetState, WidgetStates

from spikeguard_dashboard.script_costs import COSTS, HEADER, Costs
from spikeguard_dashboard.socket_queue import MAX_MESSAGE, MOST_WAITING
from spikeguard_dashboard.visitors import MOST_OF_PERSON, OF_PERSON, OF_STRANGERS, Visitors

T = TypeVar("T")
SECRET = "the-session-of-ada"
FLOOD = "a-session-of-eve"
TOKENS = {SECRET: 1, FLOOD: 2, "another-session-of-eve": 2}  # the token behind each session


def run(work: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: the browser's tests leave a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Page:
    """Counts the messages that reach it, as Streamlit would run a script for each."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.closed: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del send
        while (await receive())["type"] != "websocket.disconnect":
            self.ran[scope["path"]] += 1

    async def visit(
        self, face: Visitors, path: str, *messages: Message, cookie: str = "", leaves: bool = False
    ) -> None:
        """A socket whose messages are all there at once, and which stays open then or `leaves`."""
        waiting = list(messages)

        async def receive() -> Message:
            if waiting:
                return waiting.pop(0)
            if leaves:
                return {"type": "websocket.disconnect", "code": 1001}
            await asyncio.sleep(60)
            raise AssertionError

        async def send(message: Message) -> None:
            self.closed.append(message["code"])

        headers = [(b"x-spikeguard-visitor", b"token 1")]  # what anybody can say
        headers += [(b"cookie", f"spikeguard_dashboard={cookie}".encode())] if cookie else []
        scope = {"type": "websocket", "path": path, "headers": headers, "client": ("10.0.0.7", 1)}
        await face(scope, receive, send)


def message(size: int = 3) -> Message:
    return {"type": "websocket.receive", "bytes": b"x" * size}


async def together(page: Page, ada: int, *visits: tuple[str, str, int]) -> float:
    """Sockets of (path, cookie, messages), beside one of Ada's, until `ada` messages of hers ran;
    how many seconds that took."""
    face = Visitors(page, TOKENS.get)
    tasks = [
        asyncio.create_task(page.visit(face, path, *[message()] * count, cookie=cookie))
        for path, cookie, count in (*visits, ("/ada", SECRET, ada))
    ]
    began = monotonic()
    while page.ran["/ada"] < ada and monotonic() < began + 10:
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return monotonic() - began


def test_ten_sockets_that_write_without_a_pause_run_a_few_scripts_and_a_person_all() -> None:
    page = Page()
    floods = [("/stranger", "", 30)] * 9 + [("/stranger", "made-up", 30)]
    took_s = run(together(page, 12, *floods))
    assert page.ran["/ada"] == 12
    assert page.ran["/stranger"] <= OF_STRANGERS.burst + 2 + OF_STRANGERS.per_s * took_s


def test_a_message_longer_than_any_page_sends_ends_its_socket() -> None:
    page = Page()
    face = Visitors(page, TOKENS.get)
    run(page.visit(face, "/", message(MAX_MESSAGE + 1)))
    assert (page.closed, page.ran["/"]) == ([1009], 0)


def test_who_only_reads_cannot_have_more_scripts_run_by_more_sockets_or_sessions() -> None:
    page = Page()
    eve = [("/eve", FLOOD, 30)] * 5 + [("/eve", "another-session-of-eve", 30)] * 5
    took_s = run(together(page, 12, *eve))
    assert page.ran["/ada"] == 12
    assert page.ran["/eve"] <= OF_PERSON.burst + 2 + OF_PERSON.per_s * took_s


class DearPage(Page):
    """Whose scripts take 0.8 s of a core, but Ada's, which take what is usual."""

    def __init__(self) -> None:
        super().__init__()
        with COSTS.counted("nobody"):  # the first of a process is not counted
            pass

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visitor = Headers(scope=scope)[HEADER]

        async def and_run() -> Message:
            message = await receive()
            COSTS.add(visitor, 0.2 if scope["path"] == "/ada" else 0.8)
            return message

        await super().__call__(scope, and_run, send)


def test_who_asks_for_dear_pages_has_fewer_of_them_whoever_they_say_they_are() -> None:
    page = DearPage()
    eve = [("/eve", FLOOD, 30)] * 5 + [("/stranger", "", 30)] * 5
    took_s = run(together(page, 14, *eve))
    assert page.ran["/ada"] == 14
    assert page.ran["/eve"] <= 5 + (OF_PERSON.burst + OF_PERSON.per_s * took_s) / 4
    assert page.ran["/stranger"] <= 5 + (OF_STRANGERS.burst + OF_STRANGERS.per_s * took_s) / 4


def test_what_a_script_computes_is_counted_once_and_for_nobody_else() -> None:
    costs = Costs()
    costs.add("first", 9.0)
    with suppress(ValueError), costs.counted("eve"), costs.counted("eve"):
        until = thread_time() + 0.3
        while thread_time() < until:
            pass
        raise ValueError
    assert 0.5 <= costs.pay("eve") < 1.0
    assert [costs.pay(who) for who in ("eve", "ada", "first")] == [0.0, 0.0, 0.0]


def test_a_socket_that_writes_more_than_it_waits_for_is_cut_off() -> None:
    page = Page()
    face = Visitors(page, TOKENS.get)
    flood = page.visit(face, "/eve", *[message()] * 10 * MOST_WAITING, cookie=FLOOD)
    run(asyncio.wait_for(flood, 5))
    assert page.closed == [1008]
    assert page.ran["/eve"] <= MOST_WAITING


def test_what_a_socket_left_waiting_is_not_run_once_it_is_gone() -> None:
    page = Page()
    face = Visitors(page, TOKENS.get)
    gone = page.visit(face, "/eve", *[message()] * 30, cookie=FLOOD, leaves=True)
    run(asyncio.wait_for(gone, 5))
    assert page.ran["/eve"] <= 1


def sent(**fields: Any) -> Message:
    return {"type": "websocket.receive", "bytes": BackMsg(**fields).SerializeToString()}


def test_a_message_that_no_page_of_ours_sends_reaches_nobody() -> None:
    """Streamlit answers 1 MB that asks for addresses of uploads by 116 MB, and others wait."""
    page = Page()
    face = Visitors(page, TOKENS.get)
    uploads = FileURLsRequest(request_id="1", file_names=[""] * 50_000)
    many = WidgetStates(widgets=[WidgetState(id=str(n)) for n in range(2_000)])
    skills = BackendOperationRequest(install_skills=InstallSkillsRequestPayload())
    file = BackendOperationRequest(deferred_file=DeferredFileRequestPayload(file_id="x"))
    odd = [sent(file_urls_request=uploads), sent(clear_cache=True), sent(load_git_info=True),
           sent(backend_operation_request=skills),
           sent(rerun_script=ClientState(widget_states=many))]  # fmt: skip
    ours = [sent(rerun_script=ClientState()), sent(backend_operation_request=file)]
    for path, cookie in (("/stranger", ""), ("/eve", FLOOD)):
        visit = page.visit(face, path, odd[0], *ours, *odd[1:], cookie=cookie)
        with suppress(TimeoutError):
            run(asyncio.wait_for(visit, 4))
        assert page.ran[path] == len(ours)
    assert page.closed == []


def test_a_message_of_which_more_would_be_kept_than_was_sent_reaches_nobody() -> None:
    """120 kB of files without a name, two bytes each, are 4.3 MB, until long after the socket."""
    page = Page()
    face = Visitors(page, TOKENS.get)
    files = FileUploaderState(uploaded_file_info=[UploadedFileInfo()] * 50_000)
    dense = [
        WidgetState(id="files", file_uploader_state_value=files),
        WidgetState(id="words", string_array_value=StringArray(data=[""] * 50_000)),
        WidgetState(id="numbers", int_array_value=SInt64Array(data=[0] * 50_000)),
        WidgetState(id="rows", json_value="[" * 50_000),
    ]
    odd = [sent(rerun_script=ClientState(widget_states=WidgetStates(widgets=[one])))
           for one in dense]  # fmt: skip
    odd += [sent(rerun_script=ClientState(cached_message_hashes=["a"] * 30_000)),
            sent(rerun_script=ClientState(query_string="a&" * 30_000))]  # fmt: skip
    ours = [
        WidgetState(id="policy", string_value="x" * 20_000),
        WidgetState(id="signals", string_array_value=StringArray(data=["loss", "lr"])),
        WidgetState(id="table", json_value='{"selection":{"rows":[1,2],"columns":[]}}'),
    ]
    states = WidgetStates(widgets=ours)
    form = ClientState(widget_states=states, query_string="run=a", cached_message_hashes=["b"] * 50)
    visit = page.visit(face, "/eve", *odd, sent(rerun_script=form), cookie=FLOOD)
    with suppress(TimeoutError):
        run(asyncio.wait_for(visit, 1))
    assert (page.ran["/eve"], page.closed) == (1, [])


def test_a_token_holds_so_many_sockets_and_no_more() -> None:
    page = Page()

    async def open_many() -> None:
        face = Visitors(page, TOKENS.get)
        await page.visit(face, "/eve", cookie=FLOOD, leaves=True)  # known from here on
        held = [page.visit(face, "/eve", cookie=FLOOD) for _ in range(MOST_OF_PERSON)]
        tasks = [asyncio.create_task(each) for each in held]
        await asyncio.sleep(0.1)
        assert page.closed == []
        await page.visit(face, "/eve", message(), cookie=FLOOD)
        assert page.closed == [1013]
        await page.visit(face, "/ada", message(), message(), cookie=SECRET, leaves=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(asyncio.wait_for(open_many(), 10))
    assert page.closed == [1013]  # others are not turned away
