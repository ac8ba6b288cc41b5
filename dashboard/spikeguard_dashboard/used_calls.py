"""What of Streamlit's own calls and socket messages our pages use; the rest is not answered.

Streamlit serves every page's needs: uploads, agents, statistics, a developer's tools. Whoever
reaches the port can ask for them, with no widget of ours: files are kept in memory, and a message
of 1 MB is answered by 116.

Invariants: pure but for the refusal. What is not named here is refused, so that nothing which a
later release adds is open before somebody looks at it.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.WidgetStates_pb2 import WidgetState

METHODS: Final = frozenset({"GET", "HEAD"})
REFUSED: Final = {"Allow": "GET, HEAD", "Connection": "close"}  # what follows is not read
OWN: Final = "/_stcore/"  # the framework's own calls, the socket among them
CALLS: Final = frozenset({"/_stcore/health", "/_stcore/host-config", "/_stcore/stream"})
NOT_OURS: Final = ("/auth/", "/oauth2callback", "/component/")  # people sign in at the server
MESSAGES: Final = frozenset(
    {"rerun_script", "stop_script", "app_heartbeat", "backend_operation_request"}
)
FIELDS: Final = frozenset(  # what the state of a field may be; no page of ours takes files
    {
        *("trigger_value", "string_trigger_value", "json_trigger_value", "bool_value"),
        *("double_value", "int_value", "string_value", "json_value"),
        *("double_array_value", "int_array_value", "string_array_value"),
    }
)
MOST_FIELDS: Final = 500  # whose state a page sends: each is kept, at 500 bytes; ours have 100
MOST_PARTS: Final = 1_000  # of lists: two bytes of a message can be 70 that are kept
LONGEST_JSON: Final = 8_000  # characters: which rows of 50 are ticked
LONGEST_QUERY: Final = 8_000  # characters: six runs that are compared take 1,000
OPERATIONS: Final = frozenset({"deferred_file"})  # a file that is made when its button is pressed


class UsedCalls:
    """Answers 404 or 405 to what no page of ours asks for, and reads no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] not in METHODS:
            await PlainTextResponse(
                "The dashboard is read by GET\n", 405, REFUSED
            )(scope, receive, send)  # fmt: skip
        elif not used_path(scope["path"]):
            await PlainTextResponse("There is nothing here\n", 404)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def used_path(path: str) -> bool:
    """Whether a page of ours asks for it."""
    return path in CALLS if OWN in path else not path.startswith(NOT_OURS)


def used_message(message: Message) -> bool:
    """Whether a page of ours sends it; what is no message at all the framework refuses itself."""
    content = message.get("bytes")
    if not content:
        return True
    said = BackMsg()
    try:
        said.ParseFromString(content)
    except DecodeError:
        return True
    kind = said.WhichOneof("type")
    if kind == "backend_operation_request":
        return said.backend_operation_request.WhichOneof("payload") in OPERATIONS
    return kind in MESSAGES and _small(said.rerun_script)


def _small(said: ClientState) -> bool:
    """Whether what a session keeps of it is about as large as the message."""
    fields = said.widget_states.widgets
    return (
        len(fields) <= MOST_FIELDS
        and len(said.query_string) <= LONGEST_QUERY
        and all(_plain(field) for field in fields)
        and len(said.cached_message_hashes) + sum(map(_parts, fields)) <= MOST_PARTS
    )


def _plain(field: WidgetState) -> bool:
    kind = field.WhichOneof("value")
    json = len(field.json_value) + len(field.json_trigger_value)
    return (kind is None or kind in FIELDS) and json <= LONGEST_JSON


def _parts(field: WidgetState) -> int:
    lists = field.double_array_value, field.int_array_value, field.string_array_value
    return sum(len(one.data) for one in lists)
