"""The server with one mechanism left out that exists for speed alone, to see what it buys.

    python -m benchmarks.ingest_without NAME serve --port PORT

Invariants: each stand-in does what the mechanism does, by the plain way; the server is otherwise as
shipped. Used by `python -m benchmarks.ingest --without NAME`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
import sqlalchemy as sql
from psycopg.adapt import Dumper
from psycopg.pq import Format
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import spikeguard_server.http.app as app_module
from spikeguard_cli.main import main
from spikeguard_core.monitor import monitor
from spikeguard_protocol import plain_json
from spikeguard_server.http.fast import ingest_middleware
from spikeguard_server.http.routes import messages
from spikeguard_server.store import chunks, detectors, message_opening, runs
from spikeguard_server.store.fast import pipeline
from spikeguard_server.store.fast.packing import FLOAT8_ARRAY, INT8_ARRAY, FloatColumn, WholeColumn
from spikeguard_server.store.fast.pipeline import driver


def _without_middleware() -> None:
    """The framework asks every middleware, and its router, before a message is read."""
    made = ingest_middleware.IngestMiddleware.__init__

    def note(self: Any, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        _Endpoints.endpoint = self._endpoint

    async def pass_on(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def take(request: Request) -> Response:
        endpoint, host = _Endpoints.endpoint, ingest_middleware._host(request.scope)
        bearer = await endpoint.admit(ingest_middleware._secret(request.scope), host)
        answer, extra = await endpoint.take(bearer, await request.body(), host)
        return Response(answer, media_type="application/json", headers=dict(extra))

    ingest_middleware.IngestMiddleware.__init__ = note  # type: ignore[method-assign]
    ingest_middleware.IngestMiddleware.__call__ = pass_on  # type: ignore[method-assign]
    routes = messages.router.routes
    routes[:] = [Route("/v1/messages", take, methods=["POST"])]


class _Endpoints:
    endpoint: Any = None


def _without_json() -> None:
    """The standard library reads the body."""
    setattr(messages, "read_json", plain_json)  # noqa: B010 - a name that it imported


def _without_pipeline() -> None:
    """One statement after the other, each waited for, by the driver's cursor."""
    psycopg.adapters.register_dumper(FloatColumn, _Floats)
    psycopg.adapters.register_dumper(WholeColumn, _Whole)

    def ask(connection: sql.Connection, *asked: Any) -> list[list[tuple[Any, ...]]]:
        asked = (*connection.info.pop("to be written", []), *asked)
        with driver(connection) as raw, raw.cursor(binary=True) as cursor:
            return [_rows(cursor, one.text, _packed(one, values)) for one, values in asked]

    for module in (pipeline, message_opening):
        setattr(module, "ask", ask)  # noqa: B010


class _Floats(Dumper):
    format, oid = Format.BINARY, FLOAT8_ARRAY

    def dump(self, obj: FloatColumn) -> bytes:
        return obj.packed


class _Whole(Dumper):
    format, oid = Format.BINARY, INT8_ARRAY

    def dump(self, obj: WholeColumn) -> bytes:
        return obj.packed


def _packed(one: Any, values: Mapping[str, Any]) -> list[Any]:
    return [values[name] for name, _ in one.parameters]


def _rows(cursor: Any, text: bytes, values: list[Any]) -> list[tuple[Any, ...]]:
    if text in (pipeline.COMMIT.text, pipeline.BEGIN.text):
        if text == pipeline.COMMIT.text:
            cursor.connection.commit()
        return []
    placed = _percent(text)
    cursor.execute(placed, {str(n): value for n, value in enumerate(values, 1)})
    return list(cursor.fetchall()) if cursor.description else []


def _percent(text: bytes) -> bytes:
    known = _PLACED.get(text)
    if known is None:
        found = text.replace(b"%", b"%%")
        for number in range(200, 0, -1):
            found = found.replace(b"$%d" % number, b"%%(%d)s" % number)
        known = _PLACED[text] = found
    return known


_PLACED: dict[bytes, bytes] = {}


def _without_queue() -> None:
    """Every write waits for its own answer."""

    def later(connection: sql.Connection, wanted: Any, values: Mapping[str, Any]) -> None:
        pipeline.ask(connection, (wanted, values))

    for module in (chunks, detectors, runs):
        setattr(module, "later", later)  # noqa: B010


def _without_kept() -> None:
    """The detector of each message comes from the database."""
    setattr(app_module, "Monitors", lambda _: None)  # noqa: B010


def _without_stretches() -> None:
    """Rows are judged one by one."""
    setattr(monitor, "FEWEST", 2**60)  # noqa: B010


MECHANISMS: Final[Mapping[str, Callable[[], None]]] = {
    "middleware": _without_middleware,
    "json": _without_json,
    "pipeline": _without_pipeline,
    "queue": _without_queue,
    "kept": _without_kept,
    "stretches": _without_stretches,
    "nothing": lambda: None,
}


if __name__ == "__main__":
    MECHANISMS[sys.argv[1]]()
    sys.argv[1:] = sys.argv[2:]
    sys.exit(main())
